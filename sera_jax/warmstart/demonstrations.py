"""Oracle play with mistakes, recorded as trees by the very loop that records the policy's.

A responder stands in for the policy server: it looks at the world in place of the tokens and
answers with what a competent but careless agent would write. The mistakes are what training is
left to remove: an action at random, a dish never eaten, a report of work not done, a root that
does not check its children or does everything itself. What it writes and scores as an evaluator
(evaluator.py) is as uneven.
"""

import asyncio
import dataclasses
import random
import re
from collections.abc import Callable

from sera_jax.rollout import rubrics, tree
from sera_jax.rollout import situation as situations
from sera_jax.rollout.prompts import Prompts
from sera_jax.serving.client import Generation
from sera_jax.trees import Tree
from sera_jax.warmstart import evaluator
from sera_jax.worlds import textworld_sync as tws


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


def shuffle_preparations(task: tws.Task, rng: random.Random) -> tws.Task:
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


def goal_text(dish: tws.Dish) -> str:
    return f"eat {dish.dish_id} : {' '.join(item.name for item in dish.recipe)}"


# A call outside of any trajectory: (prompt and answer, where the answer starts).
Call = tuple[tuple[int, ...], int]


def demonstrator(
    task: tws.Task, prompts: Prompts, mistakes: Mistakes, rng: random.Random, calls: list[Call]
):
    """A responder (rollout/node.py) that plays every agent of one tree of `task`.

    What it answers as an evaluator is no part of a trajectory and is added to `calls`.
    """
    plans: dict[str, _Plan] = {}
    goals = {dish.dish_id: goal_text(dish) for dish in task.dishes}

    async def respond(situation: situations.Situation) -> Generation:
        await asyncio.sleep(0)  # siblings take turns, as they do against a server
        if situation.kind == "act":
            if situation.agent not in plans:
                plans[situation.agent] = _make_plan(task, situation, mistakes, rng)
            text = _response(plans[situation.agent], situation, goals, mistakes, rng)
        elif situation.kind == "rubric":
            text = evaluator.rubric(
                named_dishes(situation.goal), named_items(task, situation.goal), rng
            )
        else:
            text = evaluator.score(situation.rubric, situation.node, situation.world, rng)
        ids = tuple(prompts.encode(text))
        if situation.kind != "act":
            ids += (prompts.tokenizer.eos_token_id,)
            calls.append((situation.input_ids + ids, len(situation.input_ids)))
        return Generation(ids, (0.0,) * len(ids), "stop", (("demonstration", len(ids)),))

    return respond


def _make_plan(
    task: tws.Task, situation: situations.Situation, mistakes: Mistakes, rng: random.Random
) -> _Plan:
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


def named_items(task: tws.Task, goal: str) -> list[str]:
    names = sorted({item.name for dish in task.dishes for item in dish.recipe})
    return [name for name in names if f" {name}" in goal]


def tight(task: tws.Task) -> bool:
    """Whether the whole team can hold but one thing at a time."""
    capacity = (task.resource_capacity or {}).get("inventory", int(task.limit_inventory))
    return capacity == 1


def _response(
    plan: _Plan,
    situation: situations.Situation,
    goals: dict[str, str],
    mistakes: Mistakes,
    rng: random.Random,
) -> str:
    world, agent = situation.world, situation.agent
    state = world.state(agent)
    if rng.random() < mistakes.random_action:
        return _action(rng.choice(world.valid_actions(agent)))
    if situation.goal is None:
        return _root_response(plan, situation, goals, state)
    if rng.random() < mistakes.stops_early:
        return _report(plan, state)
    if not plan.dishes:
        command = tws.oracle.next_action(world, agent, ingredients=plan.items)
        return _report(plan, state) if command is None else _action(command)
    command = tws.oracle.next_action(world, agent, dishes=plan.dishes)
    if plan.hands_on and command is not None and command.startswith("take "):
        plan.hands_on = False
        return _delegate([f"prepare {command.removeprefix('take ')}"])
    if command is None or (command.startswith("eat ") and not plan.eats):
        return _report(plan, state)
    return _action(command)


def _root_response(
    plan: _Plan, situation: situations.Situation, goals: dict[str, str], state: dict
) -> str:
    if plan.alone:
        command = tws.oracle.next_action(situation.world, situation.agent)
        return _finish("all eaten") if command is None else _action(command)
    if not state["gate_open"]:
        return _action("open door")
    if not plan.queue and plan.checks:
        plan.queue = [dish for dish in plan.dishes if dish not in state["meals_eaten"]]
    if not plan.queue:
        return _finish("all eaten")
    count = 2 if plan.pairs else 1
    batch, plan.queue = plan.queue[:count], plan.queue[count:]
    return _delegate([goals[dish] for dish in batch])


def _report(plan: _Plan, state: dict) -> str:
    if not plan.dishes:
        ready = all(item in state["prepared"] for item in plan.items)
        return _finish("ready" if ready else "not ready")
    eaten = all(dish in state["meals_eaten"] for dish in plan.dishes)
    return _finish(f"{' '.join(plan.dishes)} {'eaten' if eaten else 'not eaten'}")


def _action(command: str) -> str:
    return f"<action>{command}</action>"


def _finish(message: str) -> str:
    return f"<finish>{message}</finish>"


def _delegate(goals: list[str]) -> str:
    if len(goals) == 1:
        return f'<delegate>{{"goal": "{goals[0]}"}}</delegate>'
    inner = ", ".join(f'{{"goal": "{goal}"}}' for goal in goals)
    return f'<delegate>{{"delegations": [{inner}]}}</delegate>'


async def play(
    tasks: list[tws.Task],
    prompts: Prompts,
    config: situations.RolloutConfig,
    mistakes: Mistakes,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
    *,
    graded: bool = False,
) -> tuple[list[Tree], list[Call]]:
    """One demonstration tree a task, in order; with `graded` its evaluator's calls too.

    `progress` is told how many trees are done.
    """
    trees, calls = [], []
    for index, task in enumerate(tasks):
        respond = demonstrator(task, prompts, mistakes, random.Random(f"{seed}/{index}"), calls)
        trees.append(
            await tree.rollout(
                task,
                tws.World(task),
                respond,
                prompts,
                None,
                config,
                tree_id=f"demonstration-{index}",
                seed=seed,
                info={"tier": task.tier, "family": task.family},
                graders=rubrics.policy_graders(respond, prompts, config) if graded else None,
            )
        )
        progress(index + 1)
    return trees, calls
