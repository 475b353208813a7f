"""What the cooks of a demonstration write: the oracle's play with mistakes mixed in.

An action at random, a dish never eaten, a report of work not done, a root that does not check its
children or does everything itself. What they write and score as evaluators is as uneven.
"""

import dataclasses
import random
import re
from typing import Any

from sera_jax.rollout.situation import Situation
from sera_jax.warmstart import evaluator
from sera_jax.warmstart.script import action, delegate, finish
from sera_jax.worlds.textworld_sync import oracle
from sera_jax.worlds.textworld_sync.curriculum import fresh
from sera_jax.worlds.textworld_sync.tasks import Dish, Task

DOOR = "door open"  # a criterion that is beside the point


def tasks(config: Any, rng: random.Random) -> list[Task]:
    """Fresh tasks with shuffled preparations. `config`: tiers, tasks (their number)."""
    chosen = fresh("warmstart", tuple(config.tiers), 0, config.tasks)
    return [shuffle_preparations(task, rng) for task in chosen]


def vocabulary(tasks: list[Task]) -> list[str]:
    """Item names, which a small model could not reliably spell, each after a blank."""
    names = sorted({item.name for task in tasks for dish in task.dishes for item in dish.recipe})
    return [f" {name}" for name in names]


@dataclasses.dataclass(frozen=True)
class Mistakes:
    """Chances of each mistake; zero everywhere is the oracle itself."""

    random_action: float = 0.05  # a step
    stops_early: float = 0.012  # a step of a child
    forgets_to_eat: float = 0.2  # a child
    works_alone: float = 0.15  # a root
    does_not_check: float = 0.5  # a root
    # Not mistakes, but ways of working that a tree may have.
    pairs: float = 0.25  # a root whose team can hold two things starts children in pairs
    sub_delegates: float = 0.08  # a child hands one ingredient on


@dataclasses.dataclass
class _Plan:
    """What one scripted agent has set out to do."""

    dishes: list[str]
    items: list[str]
    alone: bool = False
    pairs: bool = False
    eats: bool = True
    checks: bool = True
    hands_on: bool = False
    queue: list[str] = dataclasses.field(default_factory=list)


def shuffle_preparations(task: Task, rng: random.Random) -> Task:
    """The same task with its preparations dealt anew over its foods.

    A model this small learns a fixed food -> preparation table by heart, which a fold with other
    preparations defeats; shuffled, the recipe has to be read.
    """
    dishes = []
    for dish in task.dishes:
        preparations = [item.preparation for item in dish.recipe]
        rng.shuffle(preparations)
        recipe = tuple(
            dataclasses.replace(item, preparation=preparation)
            for item, preparation in zip(dish.recipe, preparations, strict=True)
        )
        dishes.append(dataclasses.replace(dish, recipe=recipe))
    return dataclasses.replace(task, dishes=tuple(dishes))


def goal_text(dish: Dish) -> str:
    return f"eat {dish.dish_id} : {' '.join(item.name for item in dish.recipe)}"


class Script:
    """Plays every agent of one tree of `task` (warmstart/script.py)."""

    def __init__(self, task: Task, rng: random.Random, mistakes: Mistakes | None = None):
        self.task, self.rng, self.mistakes = task, rng, mistakes or Mistakes()
        self.plans: dict[str, _Plan] = {}
        self.goals = {dish.dish_id: goal_text(dish) for dish in task.dishes}

    def act(self, situation: Situation) -> str:
        if situation.agent not in self.plans:
            plan = _make_plan(self.task, situation, self.mistakes, self.rng)
            self.plans[situation.agent] = plan
        plan = self.plans[situation.agent]
        return _response(plan, situation, self.goals, self.mistakes, self.rng)

    def rubric(self, situation: Situation) -> str:
        ends = [f"{dish} eaten" for dish in named_dishes(situation.goal)]
        work = [f"{item} made" for item in named_items(self.task, situation.goal)]
        return evaluator.rubric(ends, work, DOOR, self.rng)

    def score(self, situation: Situation) -> str:
        state = situation.world.state(situation.node.id)

        def holds(name: str) -> bool:
            if name.endswith(" eaten"):
                return name.removesuffix(" eaten") in state["meals_eaten"]
            if name.endswith(" made"):
                return name.removesuffix(" made") in state["prepared"]
            return bool(state["gate_open"])

        worked = any(step.kind == "action" for step in situation.node.steps)
        return evaluator.score(situation.rubric, situation.node, worked, holds, self.rng)


def _make_plan(task: Task, situation: Situation, mistakes: Mistakes, rng: random.Random) -> _Plan:
    def happens(chance: float) -> bool:
        return rng.random() < chance

    if situation.goal is None:
        dishes = [dish.dish_id for dish in task.dishes]
        return _Plan(
            dishes,
            [],
            alone=not situation.can_delegate or happens(mistakes.works_alone),
            pairs=not tight(task) and happens(mistakes.pairs),
            checks=not happens(mistakes.does_not_check),
            queue=list(dishes),
        )
    return _Plan(
        named_dishes(situation.goal),
        named_items(task, situation.goal),
        alone=True,
        eats=not happens(mistakes.forgets_to_eat),
        hands_on=situation.can_delegate and happens(mistakes.sub_delegates),
    )


def named_dishes(goal: str) -> list[str]:
    return re.findall(r"dish_\d+", goal)


def named_items(task: Task, goal: str) -> list[str]:
    names = sorted({item.name for dish in task.dishes for item in dish.recipe})
    return [name for name in names if f" {name}" in goal]


def tight(task: Task) -> bool:
    """Whether the whole team can hold but one thing at a time."""
    capacity = (task.resource_capacity or {}).get("inventory", int(task.limit_inventory))
    return capacity == 1


def _response(
    plan: _Plan,
    situation: Situation,
    goals: dict[str, str],
    mistakes: Mistakes,
    rng: random.Random,
) -> str:
    world, agent = situation.world, situation.agent
    state = world.state(agent)
    if rng.random() < mistakes.random_action:
        return action(rng.choice(world.valid_actions(agent)))
    if situation.goal is None:
        return _root_response(plan, situation, goals, state)
    if rng.random() < mistakes.stops_early:
        return _report(plan, state)
    if not plan.dishes:
        command = oracle.next_action(world, agent, ingredients=plan.items)
        return _report(plan, state) if command is None else action(command)
    command = oracle.next_action(world, agent, dishes=plan.dishes)
    if plan.hands_on and command is not None and command.startswith("take "):
        plan.hands_on = False
        return delegate([f"prepare {command.removeprefix('take ')}"])
    if command is None or (command.startswith("eat ") and not plan.eats):
        return _report(plan, state)
    return action(command)


def _root_response(plan: _Plan, situation: Situation, goals: dict[str, str], state: dict) -> str:
    if plan.alone:
        command = oracle.next_action(situation.world, situation.agent)
        return finish("all eaten") if command is None else action(command)
    if not state["gate_open"]:
        return action("open door")
    if not plan.queue and plan.checks:
        plan.queue = [dish for dish in plan.dishes if dish not in state["meals_eaten"]]
    if not plan.queue:
        return finish("all eaten")
    count = 2 if plan.pairs else 1
    batch, plan.queue = plan.queue[:count], plan.queue[count:]
    return delegate([goals[dish] for dish in batch])


def _report(plan: _Plan, state: dict) -> str:
    if not plan.dishes:
        ready = all(item in state["prepared"] for item in plan.items)
        return finish("ready" if ready else "not ready")
    eaten = all(dish in state["meals_eaten"] for dish in plan.dishes)
    return finish(f"{' '.join(plan.dishes)} {'eaten' if eaten else 'not eaten'}")
