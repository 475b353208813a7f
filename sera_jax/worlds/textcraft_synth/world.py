"""The shared world of one task: one inventory, and who made what from what.

The rules are the published package's own (recipes.py), and recorded play checks them
(`tests/worlds`). What an agent is told is worded here.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from sera_jax.worlds.base import StepResult
from sera_jax.worlds.textcraft_synth import commands, goals
from sera_jax.worlds.textcraft_synth.commands import quoted
from sera_jax.worlds.textcraft_synth.demand import plan
from sera_jax.worlds.textcraft_synth.recipes import recipes
from sera_jax.worlds.textcraft_synth.tasks import Task

MAX_REASON = 300  # characters
# How the published game's reasons begin.
PROBLEMS = {
    "Target count": "count",
    "Missing required": "recipe",
    "Extra ingredients": "recipe",
    "Wrong amount": "amount",
    "Insufficient": "short",
}


class Made(NamedTuple):
    """One craft that was carried out."""

    agent: str
    item: str
    count: int
    used: dict[str, int]


class Known(NamedTuple):
    """What `info` tells of an item. `makes` is what one craft makes, 0 for base items; ingredients
    are (name, how many a craft uses, how many there are).

    `crafts` are those that the goal of who asks still takes, one where it takes none. What of the
    ingredients is not there for so many, as (name, count): `lacks` can be made, the deepest first,
    `short` are base items.
    """

    item: str
    have: int
    depth: int
    makes: int
    ingredients: tuple[tuple[str, int, int], ...]
    crafts: int
    lacks: tuple[tuple[str, int], ...]
    short: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one line led to: `text` says it in words, the rest are the facts by `kind`.

    `problem` of a refused line: "command", "item", "base" (cannot be crafted), "count" (no multiple
    of what a craft makes), "recipe" (other ingredients), "amount" or "short" (not enough there).
    """

    kind: Literal["craft", "info", "inventory", "refused"]
    text: str
    made: Made | None = None
    known: tuple[Known, ...] = ()
    unknown: tuple[str, ...] = ()
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class CraftResult(StepResult):
    """`answers` to the lines in their order; `left_over` lines beyond the limit were not run."""

    answers: tuple[Answer, ...] = ()
    left_over: int = 0


class World:
    """Mutable state of a task; all is public, nobody may change what `starts` and `log` hold."""

    __slots__ = ("task", "recipes", "inventory", "starts", "goals", "log")

    done = False  # the root ends it by finishing

    def __init__(self, task: Task):
        self.task = task
        self.recipes = recipes(task.names)
        self.inventory = dict(task.inventory)
        self.starts: dict[str, dict[str, int]] = {}  # agent -> the inventory it started with
        self.goals: dict[str, dict[str, int]] = {}  # agent -> what it is to make more of
        self.log: list[Made] = []

    @property
    def success(self) -> bool:
        start = dict(self.task.inventory)
        return self.gained(start, dict(self.task.targets))

    def gained(self, start: dict[str, int], targets: dict[str, int]) -> bool:
        """Whether the inventory has grown by every target since it was `start`."""
        now = self.inventory
        return all(now.get(i, 0) - start.get(i, 0) >= count for i, count in targets.items())

    def join(self, agent: str, *, beside: str | None = None, goal: str | None = None) -> None:
        """Adds `agent`, which starts from what there is; there are no places to be in."""
        self.starts[agent] = self.inventory.copy()
        self.goals[agent] = dict(self.task.targets) if goal is None else goals.read_goal(goal)

    def left(self, agent: str) -> dict[str, int]:
        """What `agent` still has to make for its goal; {} also for who never joined."""
        start, now = self.starts.get(agent, {}), self.inventory
        wanted = self.goals.get(agent, {}).items()
        left = {i: count - now.get(i, 0) + start.get(i, 0) for i, count in wanted}
        return {item: count for item, count in left.items() if count > 0}

    def refuse_goal(self, goal: str) -> str:
        return "" if goals.read_goal(goal) else goals.GRAMMAR

    def copy(self) -> "World":
        other = World.__new__(World)
        other.task = self.task
        other.recipes = self.recipes
        other.inventory = self.inventory.copy()
        other.starts = self.starts.copy()
        other.goals = self.goals.copy()
        other.log = self.log.copy()
        return other

    # --- Doing it ------------------------------------------------------------------------------

    def step(self, agent: str, command: str) -> CraftResult:
        """Carries out the lines of `command` one after another; a refused one changes nothing."""
        lines, left_over = commands.split(command)
        answers = tuple(self._carry_out(agent, commands.read(line)) for line in lines)
        texts = [answer.text for answer in answers] or [f"Error: no command; {commands.USAGE}"]
        if left_over:
            texts.append(f"Error: only {commands.MAX_LINES} lines a step; {left_over} not run")
        return CraftResult(
            accepted=any(answer.kind != "refused" for answer in answers),
            reward=0.0,
            done=False,
            observation="\n".join(texts),
            answers=answers,
            left_over=left_over,
        )

    def _carry_out(self, agent: str, command: commands.Command) -> Answer:
        match command:
            case commands.Craft():
                return self._craft(agent, command)
            case commands.Info(items):
                known = self.told(agent, [item for item in items if item in self.recipes])
                unknown = tuple(item for item in items if item not in self.recipes)
                text = "\n".join(map(self._describe, items))
                return Answer("info", text, known=known, unknown=unknown)
            case commands.Inventory():
                return Answer("inventory", self.observe(agent))
            case commands.Refused(problem, reason):
                return Answer("refused", f"Error: {reason}", problem=problem)

    def _craft(self, agent: str, craft: commands.Craft) -> Answer:
        unknown = [i for i in (craft.item, *craft.using) if i not in self.recipes]
        if unknown:
            text = f"Error: there is no item {quoted(unknown[0])}"
            return Answer("refused", text, problem="item")
        if craft.item not in self.recipes.of:
            text = f"Error: {craft.item} is a base item and cannot be crafted"
            return Answer("refused", text, problem="base")
        said = self.recipes.craft(self.inventory, craft.using, craft.item, craft.count)
        if said.startswith("Error"):
            # There is one recipe an item: what the only line about it says is the reason.
            reason = said.split("\n")[-1].removeprefix("Recipe 1: ")
            problem = next(word for start, word in PROBLEMS.items() if reason.startswith(start))
            text = f"Error: {craft.item}: {reason[:MAX_REASON]}"
            return Answer("refused", text, problem=problem)
        made = Made(agent, craft.item, craft.count, craft.using)
        self.log.append(made)
        return Answer("craft", f"Crafted {craft.count} {craft.item}.", made)

    # --- What an agent is told -----------------------------------------------------------------

    def lookup(self, agent: str, command: str) -> None:
        """Nothing costs anything here: every command is a step."""
        return None

    def observe(self, agent: str) -> str:
        held = ", ".join(f"{count} {item}" for item, count in self.inventory.items())
        return f"Inventory: {held or 'nothing'}."

    def told(self, agent: str, items: Iterable[str]) -> tuple[Known, ...]:
        """What `agent` is told when it asks about `items`, all of which there are."""
        planned = dict(plan(self.recipes, self.inventory, self.left(agent)) or ())
        return tuple(self.known(item, planned.get(item, 1)) for item in items)

    def known(self, item: str, crafts: int = 1) -> Known:
        recipe, have = self.recipes.of.get(item), self.inventory.get
        depth = self.recipes.depth
        ingredients = tuple(recipe.ingredients.items()) if recipe else ()
        lacks = [(i, n * crafts - have(i, 0)) for i, n in ingredients if n * crafts > have(i, 0)]
        return Known(
            item,
            have(item, 0),
            depth[item],
            recipe.count if recipe else 0,
            tuple((name, count, have(name, 0)) for name, count in ingredients),
            crafts,
            tuple(sorted((i for i in lacks if depth[i[0]]), key=lambda lack: -depth[lack[0]])),
            tuple(lack for lack in lacks if not depth[lack[0]]),
        )

    def _describe(self, item: str) -> str:
        if item not in self.recipes:
            return f"Error: there is no item {quoted(item)}"
        known = self.known(item)
        if not known.makes:
            return f"{item}: have {known.have}; a base item."
        needs = ", ".join(f"{count} {name}" for name, count, _ in known.ingredients)
        depth, makes = known.depth, known.makes
        return f"{item}: have {known.have}; depth {depth}; makes {makes} from {needs}."

    def state(self, agent: str) -> dict[str, Any]:
        """The facts as data. `gained` is what there is more (or less) of since `agent` started,
        `left` what it still has to make."""
        start, now = self.starts.get(agent, {}), self.inventory
        items = dict.fromkeys((*start, *now))
        gained = {i: now.get(i, 0) - start.get(i, 0) for i in items}
        return {
            "inventory": dict(now),
            "gained": {item: count for item, count in gained.items() if count},
            "targets": dict(self.task.targets),
            "left": self.left(agent),
            "success": self.success,
            "done": self.done,
        }
