"""Whether a delegated goal in words is done: what it names, checked in the kitchen."""

import re
from collections.abc import Iterable

from sera_jax.worlds.base import World

# A goal is policy output of any length: each of these patterns takes linear time.
_EATING = re.compile(r"\b(?:eat|eats|eaten|eating|serve|serves|served|serving|consumed?)\b")
_NOT_EATING = re.compile(rf"(?:\b(?:not|never|without|no)|n't)\s+(?:\w+\s+)?{_EATING.pattern}")
_INGREDIENTS = re.compile(r"\bingredients?\b")
_FOR = re.compile(r"\b(?:for|of)\s+(?:the\s+)?(?:dish(?:es)?\s+)?$")
_ITS_INGREDIENTS = re.compile(r"(?:'s)?\s+ingredients?\b")
_AND = re.compile(r"(?:,|and|or|&|\s)+")


def mentions(world: World, goal: str, agent: str = "root") -> bool | None:
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


VERIFIERS = {"mentions": mentions}
