"""What the crafters of a demonstration write: asking, handing on, crafting, with mistakes mixed in.

An agent asks how its item is made, has children make what lacks of the deeper ingredients, asks for
and crafts the shallow ones itself, and then crafts its item; one that cannot delegate asks its way
down to base items and crafts from there up. The mistakes: a command that serves nothing, a guess
instead of a question, too few ordered, a report of work not done, no look at what children left
behind, a root that does everything itself. What they write and score as evaluators is as uneven.
"""

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

from sera_jax.rollout.situation import Situation
from sera_jax.warmstart import evaluator
from sera_jax.warmstart.script import action, delegate, finish
from sera_jax.worlds.textcraft_synth.curriculum import fresh
from sera_jax.worlds.textcraft_synth.goals import read_goal
from sera_jax.worlds.textcraft_synth.recipes import recipes
from sera_jax.worlds.textcraft_synth.tasks import Task
from sera_jax.worlds.textcraft_synth.world import Known, World

OWN_DEPTH = 1  # the deepest ingredients that an agent makes itself although it has children
ASKED_AT_ONCE = 4  # items of a line
NUMBERS = 99  # that are one token each
NO_HELP = "sent nobody"  # a criterion that is beside the point


@dataclasses.dataclass(frozen=True)
class Mistakes:
    """Chances of each mistake; zero everywhere is the script at its best."""

    random_action: float = 0.03  # a step
    guesses: float = 0.05  # an item: crafted before anybody was asked
    stops_early: float = 0.01  # a step of a child
    reports_falsely: float = 0.5  # a child that stops early
    orders_too_few: float = 0.1  # a delegation of several pieces
    works_alone: float = 0.15  # a root
    does_not_check: float = 0.5  # an agent with children
    # Not mistakes, but ways of working that a tree may have.
    all_at_once: float = 0.15  # an agent sends all its children in one step
    hands_on_all: float = 0.05  # an agent has shallow ingredients made, too


@dataclasses.dataclass
class _Plan:
    """What one scripted agent has set out to do, and what it has been told."""

    alone: bool = False
    checks: bool = True
    all_at_once: bool = False
    own_depth: int = OWN_DEPTH
    told: dict[str, Known] = dataclasses.field(default_factory=dict)
    todo: dict[str, int] = dataclasses.field(default_factory=dict)  # lacks of the present item
    checked: bool = False


def tasks(config: Any, rng: random.Random) -> list[Task]:
    """Fresh tasks, each with names of its own, so that recipes have to be read.

    `config`: tiers, tasks (their number).
    """
    return fresh("warmstart", tuple(config.tiers), 0, config.tasks, renamed=True)


def vocabulary(tasks: list[Task]) -> list[str]:
    """Items and small numbers, each after a blank: a small model copies what is one token."""
    items = [f" {item}" for item in sorted(recipes().depth)]
    return items + [f" {n}{unit}" for n in range(1, NUMBERS + 1) for unit in ("", "x")]


class Script:
    """Plays every agent of one tree of `task` (warmstart/script.py)."""

    def __init__(self, task: Task, rng: random.Random, mistakes: Mistakes | None = None):
        self.rng, self.mistakes = rng, mistakes or Mistakes()
        self.plans: dict[str, _Plan] = {}

    # --- Acting --------------------------------------------------------------------------------

    def act(self, situation: Situation) -> str:
        if situation.agent not in self.plans:
            self.plans[situation.agent] = self._make_plan(situation)
        plan, world, agent = self.plans[situation.agent], situation.world, situation.agent
        plan.alone = plan.alone or not situation.can_delegate
        left = world.left(agent)
        if not left:
            return finish(_report(world, agent, made=True))
        if self._happens(self.mistakes.random_action):
            return action(self._random_command(world, plan))
        if agent != "0" and self._happens(self.mistakes.stops_early):
            return finish(_report(world, agent, self._happens(self.mistakes.reports_falsely)))
        item = next(iter(left))
        if item not in plan.told:
            if self._happens(self.mistakes.guesses):
                return action(self._guess(world, item, left[item]))
            return self._ask(plan, world, agent, [item])
        return self._children(plan, world) or self._own_work(plan, world, agent, item)

    def _make_plan(self, situation: Situation) -> _Plan:
        mistakes = self.mistakes
        return _Plan(
            alone=situation.goal is None and self._happens(mistakes.works_alone),
            checks=not self._happens(mistakes.does_not_check),
            all_at_once=self._happens(mistakes.all_at_once),
            own_depth=0 if self._happens(mistakes.hands_on_all) else OWN_DEPTH,
        )

    def _ask(self, plan: _Plan, world: World, agent: str, items: list[str]) -> str:
        known = world.told(agent, items)
        plan.told |= {one.item: one for one in known}
        if items[0] in world.goals[agent]:
            plan.todo = dict(known[0].lacks)
        return action(f"info {', '.join(items)}")

    def _children(self, plan: _Plan, world: World) -> str | None:
        """Hands on what is too deep to be made alone; the deepest first, each once."""
        depth = world.recipes.depth
        deep = [i for i in plan.todo if depth[i] > plan.own_depth and i in world.recipes.of]
        if plan.alone or not deep:
            return None
        goals = []
        for item in deep if plan.all_at_once else deep[:1]:
            count = plan.todo.pop(item)
            if count > 1 and self._happens(self.mistakes.orders_too_few):
                count = 1
            goals.append(f"craft {count}x {item}")
        plan.checked = not plan.checks
        return delegate(goals)

    def _own_work(self, plan: _Plan, world: World, agent: str, item: str) -> str:
        """Asks about what lacks, level by level; then crafts from the shallowest up to `item`."""
        below = _closure(plan, plan.todo)
        new = [i for i in below if i not in plan.told and i in world.recipes.of]
        if new:
            return self._ask(plan, world, agent, new[:ASKED_AT_ONCE])
        if below:
            made = min(below, key=lambda i: world.recipes.depth[i])
            plan.todo.pop(made, None)
            known = plan.told.pop(made, None)
            if known is None:  # a base item has run out: nobody can make it
                return finish(_report(world, agent, made=False))
            for other in plan.told.values():  # is seen as made from now on
                if made in dict(other.lacks):
                    rest = tuple(lack for lack in other.lacks if lack[0] != made)
                    plan.told[other.item] = other._replace(lacks=rest)
            return action(_craft(known))
        if not plan.checked and plan.told[item].lacks:
            plan.checked = True
            return self._ask(plan, world, agent, [item])
        plan.checked = False
        return action(_craft(plan.told.pop(item)))

    def _random_command(self, world: World, plan: _Plan) -> str:
        items = [*world.inventory, *plan.told]
        kind, item = self.rng.randrange(3), self.rng.choice(items)
        if kind == 0 and plan.told:
            return _craft(plan.told[self.rng.choice([*plan.told])])
        return "inventory" if kind == 1 else f"info {item}"

    def _guess(self, world: World, item: str, count: int) -> str:
        base = self.rng.choice([*world.inventory])
        return f"craft {count} {item} using {count} {base}"

    def _happens(self, chance: float) -> bool:
        return self.rng.random() < chance

    # --- Evaluating ----------------------------------------------------------------------------

    def rubric(self, situation: Situation) -> str:
        targets = read_goal(situation.goal)
        ends = [f"gained {count}x {item}" for item, count in targets.items()]
        work = [f"{verb} {item}" for item in targets for verb in ("asked", "some")]
        return evaluator.rubric(ends, work, NO_HELP, self.rng)

    def score(self, situation: Situation) -> str:
        node = situation.node
        gained = situation.world.state(node.id)["gained"]
        texts = [step.text for step in node.steps]

        def holds(name: str) -> bool:
            verb, _, rest = name.partition(" ")
            if verb == "gained":
                return all(gained.get(i, 0) >= n for i, n in read_goal(f" {rest}").items())
            if verb == "asked":
                return any("info" in text and rest in text for text in texts)
            if verb == "some":
                return gained.get(rest, 0) > 0
            return not any(step.kind == "delegate" for step in node.steps)

        return evaluator.score(situation.rubric, node, holds, self.rng)


def _closure(plan: _Plan, lacks: Iterable[str]) -> list[str]:
    """All that `lacks` and what they lack in turn, as far as it has been told."""
    found: dict[str, None] = {}
    pending = list(lacks)
    while pending:
        item = pending.pop(0)
        if item not in found:
            found[item] = None
            if item in plan.told:
                pending += [name for name, _ in plan.told[item].lacks]
    return list(found)


def _craft(known: Known) -> str:
    """The craft that info spelled out."""
    n = known.crafts
    using = ", ".join(f"{n * count} {name}" for name, count, _ in known.ingredients)
    return f"craft {n * known.makes} {known.item} using {using}"


def _report(world: World, agent: str, made: bool) -> str:
    wanted = " ".join(f"{count}x {item}" for item, count in world.goals[agent].items())
    return f"{'made' if made else 'not made'} {wanted}"
