"""How to craft anything: the demand of the whole recipe tree first, then from the bottom up.

Crafting only what is lacking and going down where something lacks does not work: what is made for
one ingredient is used up on the way to the next. Summing first solves every published task, from
any state that still has the base items. So does delegation, if every goal is to make so many more
on top of what is there, and deeper items are delegated before the shallower ones, which they could
otherwise use up.
"""

from collections import Counter
from collections.abc import Mapping

from sera_jax.worlds.textcraft_synth.commands import MAX_LINES
from sera_jax.worlds.textcraft_synth.demand import Crafts, plan
from sera_jax.worlds.textcraft_synth.goals import goal_text
from sera_jax.worlds.textcraft_synth.recipes import Recipes
from sera_jax.worlds.textcraft_synth.world import World


def command(recipes: Recipes, item: str, crafts: int) -> str:
    recipe = recipes.of[item]
    using = ", ".join(f"{crafts * count} {name}" for name, count in recipe.ingredients.items())
    return f"craft {crafts * recipe.count} {item} using {using}"


def next_commands(
    recipes: Recipes, inventory: Mapping[str, int], needs: Mapping[str, int]
) -> list[str] | None:
    """All craft commands from `inventory` to `needs` more; [] when nothing is needed, None where
    it cannot be done any more."""
    planned = plan(recipes, inventory, needs)
    return None if planned is None else [command(recipes, *step) for step in planned]


def subgoals(recipes: Recipes, inventory: Mapping[str, int], own: Crafts) -> dict[str, int]:
    """What others should make first, on top of what is there, so that the crafts `own` can be
    carried out: the deepest items that lack. Asked again when these are made; {} in the end."""
    used, made = Counter(), Counter()
    for item, crafts in own:
        made[item] += crafts * recipes.of[item].count
        for name, count in recipes.of[item].ingredients.items():
            used[name] += crafts * count
    lacks = {
        item: count - inventory.get(item, 0) - made[item]
        for item, count in used.items()
        if item in recipes.of and count > inventory.get(item, 0) + made[item]
    }
    deepest = max((recipes.depth[item] for item in lacks), default=0)
    return {item: count for item, count in lacks.items() if recipes.depth[item] == deepest}


def play_flat(world: World, agent: str, lines: int = MAX_LINES) -> int:
    """Solves the task alone -> steps taken, the finishing one included."""
    todo = next_commands(world.recipes, world.inventory, dict(world.task.targets)) or []
    return _craft(world, agent, todo, lines) + 1


def play_tree(
    world: World,
    agent: str,
    targets: Mapping[str, int],
    *,
    lines: int = MAX_LINES,
    steps: int = 20,
    levels: int = 3,
) -> bool:
    """Solves `targets` as `agent`, who has joined, and children -> whether within the limits.

    A node has `steps` of `lines` commands each and `levels` levels below it. It crafts alone what
    it can; else it keeps as much of the top of its plan as it has steps for, and has each
    ingredient that is then lacking made by a child.
    """
    planned = plan(world.recipes, world.inventory, targets)
    if planned is None:
        return False
    own = _own_share(world.recipes, planned, lines, steps) if levels else planned
    taken, children = 1, 0  # the finishing step
    while goals := subgoals(world.recipes, world.inventory, own):
        taken += 1
        for item, count in goals.items():
            child = f"{agent}.{children}"
            children += 1
            world.join(child, goal=goal_text({item: count}))
            if not levels or not play_tree(
                world, child, {item: count}, lines=lines, steps=steps, levels=levels - 1
            ):
                return False
    taken += _craft(world, agent, [command(world.recipes, *step) for step in own], lines)
    return taken <= steps


def _own_share(recipes: Recipes, planned: Crafts, lines: int, steps: int) -> Crafts:
    """As many of the deepest crafts as fit beside a step for each depth that is delegated."""
    cuts = [0, *sorted({recipes.depth[item] for item, _ in planned})][:-1]
    for cut in cuts:
        own = [(item, crafts) for item, crafts in planned if recipes.depth[item] > cut]
        used = {name for item, _ in own for name in recipes.of[item].ingredients}
        delegated = {recipes.depth[name] for name in used if 0 < recipes.depth[name] <= cut}
        if len(delegated) - (-len(own) // lines) + 1 <= steps:
            return own
    return [step for step in planned if recipes.depth[step[0]] > cuts[-1]]


def _craft(world: World, agent: str, todo: list[str], lines: int) -> int:
    """Sends the commands -> steps taken."""
    batches = [todo[i : i + lines] for i in range(0, len(todo), lines)]
    for batch in batches:
        world.step(agent, "\n".join(batch))
    return len(batches)
