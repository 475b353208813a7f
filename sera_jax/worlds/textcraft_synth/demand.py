"""What a number of items takes: the demand of the whole recipe tree, summed before any craft."""

import heapq
from collections.abc import Mapping

from sera_jax.worlds.textcraft_synth.recipes import Recipes

Crafts = list[tuple[str, int]]  # items and how often to craft each, in an order that works


def plan(recipes: Recipes, inventory: Mapping[str, int], needs: Mapping[str, int]) -> Crafts | None:
    """Crafts that make `needs` on top of `inventory`; None where it cannot be done.

    Base items may not suffice, and what a goal names need not be an item at all.
    """
    lacks, planned = dict(needs), []
    # The deepest first: when its turn comes, all that uses an item has been counted.
    pending = [(-recipes.depth.get(item, 0), item) for item in needs]
    heapq.heapify(pending)
    while pending:
        _, item = heapq.heappop(pending)
        spare = 0 if item in needs else inventory.get(item, 0)  # targets come on top
        lack = lacks[item] - spare
        if lack <= 0:
            continue
        recipe = recipes.of.get(item)
        if recipe is None:
            return None
        crafts = -(-lack // recipe.count)
        planned.append((item, crafts))
        for name, count in recipe.ingredients.items():
            if name not in lacks:
                heapq.heappush(pending, (-recipes.depth[name], name))
            lacks[name] = lacks.get(name, 0) + crafts * count
    return planned[::-1]
