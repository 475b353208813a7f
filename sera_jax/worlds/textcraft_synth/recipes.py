"""Recipe worlds: the published one, and the same under other names.

In the published world every item has at most one recipe, and all recipes together have no circle:
`depth` is 0 for base items and above that of every ingredient for the rest.
"""

import functools
import random
from collections import defaultdict
from typing import Any, NamedTuple

from sera_jax.worlds.textcraft_synth import package

PUBLISHED = 0  # the seed of names that leaves them as they are
_NO_TASK = {"goal": "", "target_items": {}, "initial_inventory": {}}


class Recipe(NamedTuple):
    """`ingredients` of one craft, which makes `count` of the item."""

    count: int
    ingredients: dict[str, int]


class Recipes:
    """A recipe world with its rules. `of` has no entry for base items, `depth` has all items."""

    def __init__(self, data: dict[str, Any]):
        game = package.module("harbor.game")
        book = game.RecipeBook(data)
        self.depth: dict[str, int] = book.depths
        self.of = {
            item: Recipe(recipe.result_count, recipe.ingredients)
            for item, (recipe,) in book.recipes.items()
        }
        self.base = sorted(book.base_items)
        self._game = functools.partial(game.Game, book, _NO_TASK)

    def __contains__(self, item: str) -> bool:
        return item in self.depth

    def craft(self, inventory: dict[str, int], using: dict[str, int], item: str, count: int) -> str:
        """What the published game says to a craft; changes `inventory` if it is carried out."""
        game = self._game()
        game.inventory = inventory
        return game.craft(using, (item, count))


@functools.lru_cache(maxsize=64)
def recipes(names: int = PUBLISHED) -> Recipes:
    """The world whose names were dealt anew by seed `names`."""
    data = package.published_recipes()
    return Recipes(data if names == PUBLISHED else _renamed(data, names))


def _renamed(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same recipes with names exchanged among items of one domain and depth.

    A small model learns recipes by heart; where a name means another item in the next task, it has
    to ask and to read. A name still says its depth.
    """
    groups = defaultdict(list)
    for item, depth in data["depths"].items():
        groups[depth, item.removeprefix("raw_")[0]].append(item)
    rng, new = random.Random(seed), {}
    for group in groups.values():
        new |= zip(group, rng.sample(group, len(group)), strict=True)
    recipes = {
        new[item]: [
            {**r, "ingredients": [(new[name], n) for name, n in r["ingredients"]]} for r in of
        ]
        for item, of in data["recipes"].items()
    }
    depths = {new[item]: depth for item, depth in data["depths"].items()}
    return {**data, "recipes": recipes, "depths": depths}
