"""What the crafters of a demonstration write: asking, handing on, crafting, with mistakes mixed in.

An agent asks how its item is made. If something lacks, it has the first of it made by a child, or,
where that is shallow or nobody can be sent, asks about it and makes it itself; then it asks again.
If nothing lacks, it crafts what the answer spelled out. So each step follows from the last answer,
and amounts are copied, which a small model can do. The mistakes: a command that serves nothing, a
guess instead of a question, too few ordered, work left undone, a report of work not done, a root
that does everything itself. What they write and score as evaluators is as uneven.
"""

import dataclasses
import random
from collections import Counter
from typing import Any

from sera_jax.rollout.situation import Situation
from sera_jax.warmstart import evaluator
from sera_jax.warmstart.script import action, delegate, finish
from sera_jax.worlds.textcraft_synth.curriculum import fresh
from sera_jax.worlds.textcraft_synth.goals import read_goal
from sera_jax.worlds.textcraft_synth.recipes import recipes
from sera_jax.worlds.textcraft_synth.tasks import Task
from sera_jax.worlds.textcraft_synth.world import Known, World

PATIENCE = 3  # children that an agent sends while the same things lack
OWN_DEPTH = 1  # the deepest ingredients that an agent makes itself although it has children
NUMBERS = 60  # the largest that is a token
WORDS = ("craft", "info", "made", "lacks", "short", "left", "done", "not made", "no ")
COUNTED = ((" ", ""), (" ", "x"), (" using ", ""), (", ", ""))  # before and after a number
NO_HELP = "sent nobody"  # a criterion that is beside the point


@dataclasses.dataclass(frozen=True)
class Mistakes:
    """Chances of each mistake; zero everywhere is the script at its best."""

    random_action: float = 0.03  # a step
    guesses: float = 0.05  # an agent: crafts before it asks
    stops_early: float = 0.02  # a step
    reports_falsely: float = 0.1  # who stops early
    orders_too_few: float = 0.1  # a delegation of several pieces
    orders_wrong: float = 0.04  # a delegation: of an item that is not needed, or cannot be made
    works_alone: float = 0.2  # a root
    # Not mistakes, but ways of working that a tree may have.
    all_at_once: float = 0.15  # an agent sends all its children in one step
    hands_on_all: float = 0.05  # an agent has shallow ingredients made, too


@dataclasses.dataclass
class _Plan:
    """How one scripted agent works, and where it is."""

    alone: bool
    all_at_once: bool
    own_depth: int
    guesses: bool
    stack: list[str] = dataclasses.field(default_factory=list)  # asked about, each for the last
    informed: bool = False  # the last answer told about the top of the stack
    sent: Counter = dataclasses.field(default_factory=Counter)  # how often, by what lacked then


def tasks(config: Any, rng: random.Random) -> list[Task]:
    """Fresh tasks, each with names of its own, so that recipes have to be read.

    `config`: tiers, tasks (their number).
    """
    return fresh("warmstart", tuple(config.tiers), 0, config.tasks, renamed=True)


def vocabulary(tasks: list[Task]) -> list[str]:
    """Items, and small numbers with what stands before them.

    A small model copies a craft by looking for what followed the token before: after an item comes
    one token that tells it from others, not a comma.
    """
    items = [f" {item}" for item in sorted(recipes().depth)]
    numbers = (f"{before}{n}{unit}" for n in range(1, NUMBERS + 1) for before, unit in COUNTED)
    return [*WORDS, *items, *numbers]


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
        if plan.guesses:
            plan.guesses = False
            return action(self._guess(world, *next(iter(left.items()))))
        if self._happens(self.mistakes.random_action):
            plan.informed = False
            return action(self._random_command(world, plan))
        if self._happens(self.mistakes.stops_early):
            return finish(_report(world, agent, self._happens(self.mistakes.reports_falsely)))
        if not plan.stack:
            plan.stack = [next(iter(left))]
        if not plan.informed:
            plan.informed = True
            return action(f"info {plan.stack[-1]}")
        (known,) = world.told(agent, plan.stack[-1:])
        if known.short or not known.makes or plan.sent[known.lacks] == PATIENCE:
            return finish(_report(world, agent, made=False))  # nobody can make it, or nobody does
        return self._make_lacking(plan, world, known) if known.lacks else _make(plan, known)

    def _make_plan(self, situation: Situation) -> _Plan:
        mistakes = self.mistakes
        return _Plan(
            alone=situation.goal is None and self._happens(mistakes.works_alone),
            all_at_once=self._happens(mistakes.all_at_once),
            own_depth=0 if self._happens(mistakes.hands_on_all) else OWN_DEPTH,
            guesses=self._happens(mistakes.guesses),
        )

    def _make_lacking(self, plan: _Plan, world: World, known: Known) -> str:
        """The next step towards what lacks for an item, of which the deepest stands first."""
        item, _ = known.lacks[0]
        depth = world.recipes.depth
        if plan.alone or depth[item] <= plan.own_depth:
            plan.stack.append(item)
            return action(f"info {item}")
        plan.informed = False
        plan.sent[known.lacks] += 1
        deep = [lack for lack in known.lacks if depth[lack[0]] > plan.own_depth]
        orders = deep if plan.all_at_once else deep[:1]
        return delegate([self._goal(world, *lack) for lack in orders])

    def _goal(self, world: World, item: str, count: int) -> str:
        if count > 1 and self._happens(self.mistakes.orders_too_few):
            count = 1
        if self._happens(self.mistakes.orders_wrong):
            item = self.rng.choice([*world.recipes.depth])
        return f"craft {count}x {item}"

    def _random_command(self, world: World, plan: _Plan) -> str:
        item = self.rng.choice([*world.inventory, *plan.stack])
        return self.rng.choice(["inventory", f"info {item}", self._guess(world, item, 1)])

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

        # A gate for any work at all would pay children for reports alone: they would soon lie.
        gate = any(gained.get(item, 0) > 0 for item in read_goal(node.goal))
        return evaluator.score(situation.rubric, node, gate, holds, self.rng)


def _make(plan: _Plan, known: Known) -> str:
    """Crafts the top of the stack, and asks again about what it was made for."""
    plan.stack.pop()
    again = f"\ninfo {plan.stack[-1]}" if plan.stack else ""
    plan.informed = bool(again)
    return action(_craft(known) + again)


def _craft(known: Known) -> str:
    """The craft that info spelled out."""
    n = known.crafts
    using = ", ".join(f"{n * count} {name}" for name, count, _ in known.ingredients)
    return f"craft {n * known.makes} {known.item} using {using}"


def _report(world: World, agent: str, made: bool) -> str:
    wanted = " ".join(f"{count}x {item}" for item, count in world.goals[agent].items())
    return f"{'made' if made else 'not made'} {wanted}"
