"""A benchmark of nothing but counting: as small as the contract of worlds/base.py allows."""

import dataclasses
import re

from sera_jax.worlds.base import StepResult


@dataclasses.dataclass(frozen=True)
class Task:
    """Reach `target`."""

    task_id: str
    target: int
    tier: str = "only"
    family: str = "up"


class World:
    done = False

    def __init__(self, task, count=0, starts=()):
        self.task, self.count, self.starts = task, count, dict(starts)

    @property
    def success(self):
        return self.count >= self.task.target

    def join(self, agent, *, beside=None, goal=None):
        self.starts[agent] = self.count

    def refuse_goal(self, goal):
        return "" if read_goal(goal) else "say how far up, as in: up 2"

    def copy(self):
        return World(self.task, self.count, self.starts)

    def step(self, agent, command):
        accepted = command == "up"
        self.count += accepted
        return StepResult(accepted, 0.0, False, f"{self.count}")

    def lookup(self, agent, command):
        return f"{self.count}" if command == "look" else None

    def observe(self, agent):
        return f"{self.count}"

    def state(self, agent):
        return {"count": self.count}


def read_goal(goal):
    found = re.search(r"up (\d{1,3})", goal)
    return int(found[1]) if found else None


def risen(world, goal, agent):
    """Whether the count has risen by so much since `agent` started."""
    asked = read_goal(goal)
    return None if asked is None else world.count - world.starts[agent] >= asked


VERIFIERS = {"risen": risen}


def training_tasks(config, seed, step, count):
    return [Task(f"train_{seed}_{step}_{i}", 2 + i % 2) for i in range(count)]


def evaluation_tasks(config):
    return {name: [Task(f"held_out_{i}", 3) for i in range(config.tasks)] for name in config.sets}
