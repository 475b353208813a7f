"""What never changes about a task's world, worked out once and shared by all its copies."""

import dataclasses
from typing import NamedTuple

from sera_jax.worlds.textworld_sync.tasks import AS_FOUND, COOKS, CUTS, Ingredient, Task

ROOMS = (
    "kitchen", "pantry", "garden", "supermarket", "hallway", "dining room",
    "garage", "study", "basement", "attic", "courtyard",
)  # fmt: skip
START = ROOMS[0]
STORES = ROOMS[:4]
COMPASS = {"north": "pantry", "south": "dining room", "east": "garden", "west": "supermarket"}
GATE = "gate_1"
KNIFE = "knife"
TOOL_PLACES = {"stove": "in stove", "oven": "in oven", "grill": "on grill"}

ALWAYS = ("look around", "inventory", "read cookbook")
LOOKUPS = ("inventory", "view inventory", "check inventory")


class Work(NamedTuple):
    """One way to process an ingredient: `gives` are the preparations that it adds."""

    command: str
    tool: str
    gives: frozenset[str]


class Effect(NamedTuple):
    """What a valid command does: `kind` names the rule, `target` an item, dish or room, and
    `dish` the dish that it brings further."""

    kind: str
    target: int | str = ""
    dish: int | None = None
    work: Work | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """The one piece of an ingredient that exists. `found` is how it lies where it is."""

    name: str
    room: str
    gated: bool
    plain: bool
    expected: frozenset[str]
    found: frozenset[str]
    cuts: tuple[Work, ...]
    cooks: tuple[Work, ...]


class Plan:
    """Rooms, items and the effect of every command that can ever be valid."""

    def __init__(self, task: Task):
        self.task = task
        self.rooms = ROOMS[: max(4, min(len(ROOMS), task.num_locations))]
        self.dishes = tuple(dish.dish_id for dish in task.dishes)
        self.gated = {d.target for d in task.dependencies if d.source == GATE}
        self.items = tuple(
            _item(ingredient, gated=dish.dish_id in self.gated)
            for dish in task.dishes
            for ingredient in dish.recipe
        )
        self.names = tuple(item.name for item in self.items)
        self.recipes = _recipes(task)
        self.capacity = (task.resource_capacity or {}).get("inventory", int(task.limit_inventory))
        self.items_in = {
            room: tuple(i for i, item in enumerate(self.items) if item.room == room)
            for room in self.rooms
        }
        self.moves = {room: dict(_moves(room, self.rooms)) for room in self.rooms}
        self.opening = {room: [*ALWAYS, *moves] for room, moves in self.moves.items()}
        self.take = tuple(f"take {name}" for name in self.names)
        self.effects = dict(self._effects())

    def _effects(self):
        yield from ((command, Effect(command)) for command in ALWAYS)
        yield from ((command, Effect("inventory")) for command in LOOKUPS)
        yield "open door", Effect("open")
        yield "take knife", Effect("nothing")
        for moves in self.moves.values():
            yield from ((command, Effect("go", room)) for command, room in moves.items())
        for d, dish in enumerate(self.dishes):
            yield f"prepare {dish}", Effect("prepare", d, d)
            yield f"eat {dish}", Effect("eat", d, d)
            for i in self.recipes[d]:
                yield self.take[i], Effect("take", i, d)
                yield from ((w.command, Effect("cut", i, d, w)) for w in self.items[i].cuts)
                yield from ((w.command, Effect("cook", i, d, w)) for w in self.items[i].cooks)


def _item(ingredient: Ingredient, gated: bool) -> Item:
    room = ingredient.sources[0].split(".")[0] if ingredient.sources else START
    expected = frozenset(ingredient.preparation)
    name, cuts, cooks = ingredient.name, [], []
    for preparation, verb in CUTS.items():
        if preparation in expected:
            cuts.append(Work(f"{verb} {name}", KNIFE, frozenset({preparation})))
    for tool, place in TOOL_PLACES.items():
        gives = frozenset(p for p in expected if COOKS.get(p) == tool)
        if gives:
            cooks.append(Work(f"cook {name} {place}", tool, gives))
    return Item(
        name=name,
        room=room if room in STORES else START,
        gated=gated,
        plain=expected <= AS_FOUND,
        expected=expected,
        found=expected & AS_FOUND,
        cuts=tuple(cuts),
        cooks=tuple(cooks),
    )


def _recipes(task: Task) -> tuple[range, ...]:
    """Item numbers of each dish."""
    recipes, start = [], 0
    for dish in task.dishes:
        recipes.append(range(start, start + len(dish.recipe)))
        start += len(dish.recipe)
    return tuple(recipes)


def _moves(here: str, rooms: tuple[str, ...]):
    """Commands that lead elsewhere. There are no walls: every room is one step from every other."""
    yield from ((f"go to {room}", room) for room in rooms if room != here)
    for direction, room in COMPASS.items():
        if room in rooms and room != here:
            yield f"move {direction}", room


def fold(command: str) -> str:
    """Lower case, with single blanks; only looking around and inventory are so forgiving."""
    return " ".join(command.lower().split())
