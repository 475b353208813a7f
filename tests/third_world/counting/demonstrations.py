from sera_jax.rollout.rubric_text import spell_rubric, spell_score
from sera_jax.warmstart.script import action, delegate, finish

from . import Task, read_goal


def tasks(config, rng):
    return [Task(f"demonstration_{i}", rng.randint(2, 3)) for i in range(config.tasks)]


def vocabulary(tasks):
    return [" up"]


class Script:
    """The root has one step done by a child, a lazy one in every second tree."""

    def __init__(self, task, rng):
        self.task, self.lazy, self.sent = task, rng.random() < 0.5, False

    def act(self, situation):
        world, agent = situation.world, situation.agent
        if situation.goal is not None:
            risen = world.count - world.starts[agent] >= read_goal(situation.goal)
            return finish("up") if risen or self.lazy else action("up")
        if not self.sent and situation.can_delegate:
            self.sent = True
            return delegate(["up 1"])
        return finish("there") if world.success or self.lazy else action("up")

    def rubric(self, situation):
        return spell_rubric([("up", 3), ("quick", 1)])

    def score(self, situation):
        up = situation.world.count > situation.before.count
        return spell_score(int(up), [float(up), 1.0])
