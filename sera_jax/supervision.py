"""Verified outcomes y of delegated goals, and what they cost (METHOD 7's supervision figures).

A judge is called as `judge(world, goal, agent)` when a child ends (rollout/tree.py): True, False,
or None where it cannot tell. `mentions` is the program that answers for the cooking world; `Judge`
puts the counting around it or around any other callable of that signature, and `noisy` makes any
judge err now and then. An external model as judge is in external.py and counts for itself.
"""

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from sera_jax.worlds.base import World

Verdict = bool | None

# A goal is policy output of any length: each of these patterns takes linear time.
_EATING = re.compile(r"\b(?:eat|eats|eaten|eating|serve|serves|served|serving|consumed?)\b")
_NOT_EATING = re.compile(rf"(?:\b(?:not|never|without|no)|n't)\s+(?:\w+\s+)?{_EATING.pattern}")
_INGREDIENTS = re.compile(r"\bingredients?\b")
_FOR = re.compile(r"\b(?:for|of)\s+(?:the\s+)?(?:dish(?:es)?\s+)?$")
_ITS_INGREDIENTS = re.compile(r"(?:'s)?\s+ingredients?\b")
_AND = re.compile(r"(?:,|and|or|&|\s)+")


def mentions(world: World, goal: str, agent: str = "root") -> Verdict:
    """Whether what `goal` names is done in `world`; None when it names nothing of the task.

    Names are whole words, in any case, the longest first: "black pepper" is not also "pepper", and
    "dish_1" ("dish 1", "dish-1") is not "dish_10". Everything named has to be done:

    - an ingredient, when it lies on the counter with just the preparations of its recipe;
    - a dish, when it is prepared, and eaten too if the goal speaks of eating or serving;
    - a dish that is only said to be what ingredients are for ("the ingredients for dish_1",
      "chop carrot for dish_1 and dish_2", "dish_2's ingredients") asks for ingredients and not
      for a meal: those the goal names, or else all of that dish's. A goal that speaks of eating
      cannot mean ingredients alone, so there every named dish is meant as a meal.
    """
    text = goal.lower().replace("’", "'")
    task = world.task
    recipes = {dish.dish_id: [item.name for item in dish.recipe] for dish in task.dishes}
    items = _found(text, {name for recipe in recipes.values() for name in recipe})
    dishes = _found(text, recipes)
    if not items and not dishes:
        return None

    eat = bool(_EATING.search(_NOT_EATING.sub(" ", text)))
    named = {name for name, _ in items}
    sought = {dish for dish, _ in dishes}
    meals = sought if eat else sought - _only_supplied(text, dishes, bool(items))
    for dish in sought - meals:
        if not named.intersection(recipes[dish]):
            named.update(recipes[dish])

    state = world.state(agent)
    ready = named.issubset(state["prepared"]) and meals.issubset(state["meals_prepared"])
    return ready and (not eat or meals.issubset(state["meals_eaten"]))


def _found(text: str, names: Iterable[str]) -> list[tuple[str, re.Match]]:
    """Where `text` names which of `names`, left to right, without overlaps."""
    by_key = {_key(name): name for name in names}
    longest_first = sorted(by_key, key=len, reverse=True)
    # A blank, underscore or hyphen inside a name may be written as any of the three.
    patterns = (r"[\s_-]+".join(map(re.escape, key.split())) for key in longest_first)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)")
    return [(by_key[_key(match.group())], match) for match in pattern.finditer(text)]


def _key(name: str) -> str:
    return " ".join(re.split(r"[\s_-]+", name.lower()))


def _only_supplied(
    text: str, dishes: list[tuple[str, re.Match]], names_ingredients: bool
) -> set[str]:
    """Dishes that the goal names at every mention as what ingredients are for."""
    if not names_ingredients and not _INGREDIENTS.search(text):
        return set()
    supplied, meals, previous, inherited = set(), set(), 0, False
    for dish, match in dishes:
        before = text[previous : match.start()]
        if previous and _AND.fullmatch(before):
            is_supplied = inherited  # "for dish_1, dish_2 and dish_3": one list, one role
        else:
            is_supplied = bool(_FOR.search(before) or _ITS_INGREDIENTS.match(text, match.end()))
        (supplied if is_supplied else meals).add(dish)
        previous, inherited = match.end(), is_supplied
    return supplied - meals


@dataclasses.dataclass
class Usage:
    """What one purpose cost. `calls` were carried out, `cached` ones were known already.

    Of the calls, `failures` never got an answer and `invalid` ones none that can be used; neither
    gave a label. `retries` are requests beyond the first of their call.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0
    retries: int = 0
    invalid: int = 0
    failures: int = 0


class Counters:
    """Calls for supervision by purpose ("child", "attempt", "rubric"); part of a checkpoint."""

    def __init__(self, usage: dict[str, dict[str, int]] | None = None):
        self._usage = {purpose: Usage(**numbers) for purpose, numbers in (usage or {}).items()}

    def add(self, purpose: str, *, calls: int = 1, **numbers: int) -> None:
        """Adds one call (or `calls`) and other numbers of `Usage`; a program reads no tokens."""
        usage = self._usage.setdefault(purpose, Usage())
        for name, number in {"calls": calls, **numbers}.items():
            setattr(usage, name, getattr(usage, name) + number)

    def to_json(self) -> dict[str, dict[str, int]]:
        """What the constructor takes."""
        return {purpose: dataclasses.asdict(usage) for purpose, usage in self._usage.items()}

    def total(self) -> Usage:
        usages = self._usage.values()
        fields = [field.name for field in dataclasses.fields(Usage)]
        return Usage(*(sum(getattr(usage, name) for usage in usages) for name in fields))


@dataclasses.dataclass(frozen=True)
class Judge:
    """A verifier whose every call is counted under one purpose."""

    verify: Callable[[World, str, str], Verdict | Awaitable[Verdict]]
    counters: Counters
    purpose: str = "child"

    def __call__(self, world: World, goal: str, agent: str) -> Any:
        self.counters.add(self.purpose)
        return self.verify(world, goal, agent)


def noisy(judge: Callable[..., Any], rate: float, seed: int, tree_id: str = "") -> Callable:
    """`judge` with labels flipped with probability `rate` (METHOD 9's label noise).

    Whether a label is flipped depends on the seed, the tree, the agent (every attempt is one of its
    own) and the goal alone, so that a resumed run flips the same ones. None stays None.
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"label noise of {rate}: give a probability between 0 and 1")
    if not rate:
        return judge

    def judged(world: World, goal: str, agent: str) -> Any:
        flip = _uniform((seed, tree_id, agent, goal)) < rate
        verdict = judge(world, goal, agent)
        if inspect.isawaitable(verdict):
            return _flipped_later(verdict, flip)
        return _flipped(verdict, flip)

    return judged


def _flipped(verdict: Verdict, flip: bool) -> Verdict:
    return verdict if verdict is None else verdict != flip


async def _flipped_later(verdict: Awaitable[Verdict], flip: bool) -> Verdict:
    return _flipped(await verdict, flip)


def _uniform(identity: tuple) -> float:
    """A number in [0, 1) that looks random and is the identity's own."""
    digest = hashlib.sha256(repr(identity).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
