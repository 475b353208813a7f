"""A greedy cook that knows the recipes: verifier of the task sets, teacher of demonstrations.

It looks only one command ahead, from whatever state the team has reached, so that several of
them can take turns in one world, each with a share of the work.
"""

from collections.abc import Iterable

from sera_jax.worlds.textworld_sync.plan import STORES
from sera_jax.worlds.textworld_sync.world import World

WAIT = "look around"


def next_action(
    world: World,
    agent: str,
    dishes: Iterable[str] | None = None,
    ingredients: Iterable[str] | None = None,
) -> str | None:
    """The next command towards eating `dishes` (all, when nothing is named) and having
    `ingredients` ready on the counter; None when nothing of that is left to do."""
    if world.done:
        return None
    meals, items = _scope(world, dishes, ingredients)
    if command := _serve(world, meals):
        return command
    todo = [i for i in items if i not in world.counter]
    if not todo:
        return None
    return (
        _work(world, [i for i in world.inventory if i in todo])
        or _fetch(world, agent, [i for i in todo if i not in world.taken])
        or WAIT
    )


def _scope(world: World, dishes, ingredients) -> tuple[list[int], list[int]]:
    """Numbers of the dishes to eat, and of the items to get ready."""
    plan = world.plan
    everything = dishes is None and ingredients is None
    wanted_dishes, wanted_items = set(dishes or ()), set(ingredients or ())
    meals = [d for d, dish in enumerate(plan.dishes) if everything or dish in wanted_dishes]
    items = {i for i, item in enumerate(plan.items) if item.name in wanted_items}
    return meals, sorted(items.union(*(plan.recipes[d] for d in meals)))


def _serve(world: World, meals: list[int]) -> str | None:
    for verb, offered in (("eat", world.can_eat()), ("prepare", world.can_prepare())):
        for d in offered:
            if d in meals:
                return f"{verb} {world.plan.dishes[d]}"
    return None


def _work(world: World, held: list[int]) -> str | None:
    """The next cut or cook with a free tool."""
    free = (work for i in held for work in world.works(i) if work.tool not in world.cooldowns)
    return next((work.command for work in free), None)


def _fetch(world: World, agent: str, away: list[int]) -> str | None:
    """Takes something here, or walks to where something is; the door is opened first."""
    if not away:
        return None
    plan, here = world.plan, world.location[agent]
    if not world.gate_open and any(plan.items[i].gated for i in away):
        return "open door"
    rooms = {plan.items[i].room for i in away}
    if here not in rooms:
        return f"go to {min(rooms, key=STORES.index)}"
    if world.inventory_full:
        # The one shared inventory is everybody's business, and its holder may be gone.
        return _work(world, world.inventory)
    return next(plan.take[i] for i in away if plan.items[i].room == here)
