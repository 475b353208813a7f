"""Records of a TextWorld-Sync task, their canonical JSON form, and a reader of published files."""

import dataclasses
import hashlib
import json
import pathlib
from typing import Any, Literal

CUTS = {"chopped": "chop", "sliced": "slice", "diced": "dice", "minced": "mince"}
COOKS = {
    "fried": "stove",
    "boiled": "stove",
    "roasted": "oven",
    "baked": "oven",
    "grilled": "grill",
}
# Preparations that an ingredient has when it is picked up; nobody has to do anything for them.
AS_FOUND = frozenset({"raw", "uncut"})


@dataclasses.dataclass(frozen=True)
class Ingredient:
    """`sources` are candidate places such as "kitchen.fridge"; only the first one counts."""

    name: str
    preparation: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def plain(self) -> bool:
        return AS_FOUND.issuperset(self.preparation)


@dataclasses.dataclass(frozen=True)
class Dish:
    dish_id: str
    recipe: tuple[Ingredient, ...]


@dataclasses.dataclass(frozen=True)
class Dependency:
    """`type` is "door" (`target` is behind gate `source`) or "decompose" (only a remark)."""

    source: str
    target: str
    type: str


@dataclasses.dataclass(frozen=True)
class Task:
    """One cooking job. `view` says how much of the recipes the agents are told at the outset."""

    task_id: str
    family: str
    difficulty: str
    seed: int
    view: Literal["structured", "coarse"]
    dishes: tuple[Dish, ...]
    num_locations: int
    num_distractors: int
    include_doors: bool
    limit_inventory: bool
    resource_capacity: dict[str, int] | None
    dependencies: tuple[Dependency, ...]
    tool_cooldown_steps: int
    action_budget: int

    @property
    def tier(self) -> str:
        return self.difficulty

    def with_budget(self, action_budget: int) -> "Task":
        return dataclasses.replace(self, action_budget=action_budget)

    def canonical(self) -> dict[str, Any]:
        """The JSON form whose hash identifies the task."""
        return {
            "task_id": self.task_id,
            "task_family": self.family,
            "difficulty": self.difficulty,
            "seed": self.seed,
            "task_view": self.view,
            "dishes": [_dish_to_json(dish) for dish in self.dishes],
            "num_locations": self.num_locations,
            "num_distractors": self.num_distractors,
            "include_doors": self.include_doors,
            "limit_inventory": self.limit_inventory,
            "resource_capacity": self.resource_capacity,
            "dependencies": [
                {"from": d.source, "to": d.target, "type": d.type} for d in self.dependencies
            ],
            "tool_cooldown_steps": self.tool_cooldown_steps,
            "action_budget": self.action_budget,
        }

    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical form."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_canonical(cls, obj: dict[str, Any]) -> "Task":
        """Inverse of `canonical`; a ValueError says what is wrong with `obj`."""
        return cls(
            **_shared_fields(obj),
            num_locations=_get(obj, "num_locations", int),
            num_distractors=_get(obj, "num_distractors", int),
            include_doors=bool(_get(obj, "include_doors", int)),
            limit_inventory=bool(_get(obj, "limit_inventory", int)),
            resource_capacity=_capacity(obj),
            dependencies=_dependencies(obj),
            tool_cooldown_steps=_get(obj, "tool_cooldown_steps", int),
            action_budget=_get(obj, "action_budget", int),
        )

    @classmethod
    def from_published(cls, obj: dict[str, Any]) -> "Task":
        """A record of the benchmark's JSON-lines files."""
        game, parallelism = _get(obj, "game_params", dict), _get(obj, "parallelism", dict)
        mechanisms = _get(parallelism, "mechanisms", dict, default={}) or {}
        return cls(
            **_shared_fields(obj),
            num_locations=_get(game, "numLocations", int),
            num_distractors=_get(game, "numDistractorItems", int),
            include_doors=bool(_get(game, "includeDoors", int)),
            limit_inventory=bool(_get(game, "limitInventorySize", int)),
            resource_capacity=_capacity(parallelism),
            dependencies=_dependencies(parallelism),
            tool_cooldown_steps=_get(mechanisms, "tool_cooldown_steps", int, default=0) or 0,
            action_budget=_get(parallelism, "shared_environment_max_steps", int),
        )


def load_published(path: str | pathlib.Path) -> list[Task]:
    """Tasks of a published JSON-lines file; blank lines are passed over."""
    tasks = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                tasks.append(Task.from_published(json.loads(line)))
            except ValueError as error:  # JSONDecodeError is one
                raise ValueError(f"{path}, line {number}: not a task: {error}") from None
    return tasks


def _dish_to_json(dish: Dish) -> dict[str, Any]:
    recipe = [
        {
            "name": ingredient.name,
            "preparation": list(ingredient.preparation),
            "candidate_source_locations": list(ingredient.sources),
        }
        for ingredient in dish.recipe
    ]
    return {"dish_id": dish.dish_id, "recipe": recipe}


def _shared_fields(obj: Any) -> dict[str, Any]:
    """Fields that the canonical and the published form spell alike."""
    view = _get(obj, "task_view", str)
    if view not in ("structured", "coarse"):
        raise ValueError(f"task_view should be structured or coarse, not {view!r}")
    return {
        "task_id": _get(obj, "task_id", str),
        "family": _get(obj, "task_family", str),
        "difficulty": _get(obj, "difficulty", str),
        "seed": _get(obj, "seed", int),
        "view": view,
        "dishes": _dishes(obj),
    }


def _dishes(obj: dict[str, Any]) -> tuple[Dish, ...]:
    dishes = tuple(
        Dish(_get(dish, "dish_id", str), tuple(map(_ingredient, _get(dish, "recipe", list))))
        for dish in _get(obj, "dishes", list)
    )
    # Commands name dishes and ingredients, so that each name must mean one thing.
    _check_unique("dish", [dish.dish_id for dish in dishes])
    _check_unique("ingredient", [i.name for dish in dishes for i in dish.recipe])
    return dishes


def _check_unique(what: str, names: list[str]) -> None:
    if not names:
        raise ValueError(f"there is no {what}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} {twice[0]!r} occurs more than once")


def _ingredient(obj: Any) -> Ingredient:
    name = _get(obj, "name", str)
    preparation, sources = _strings(obj, "preparation"), _strings(obj, "candidate_source_locations")
    unknown = sorted(set(preparation) - AS_FOUND - CUTS.keys() - COOKS.keys())
    if unknown:
        raise ValueError(f"ingredient {name!r} has the unknown preparation {unknown[0]!r}")
    return Ingredient(name, preparation, sources)


def _strings(obj: dict[str, Any], key: str) -> tuple[str, ...]:
    values = _get(obj, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} should be a list of strings")
    return tuple(values)


def _capacity(obj: dict[str, Any]) -> dict[str, int] | None:
    capacity = _get(obj, "resource_capacity", dict, default=None)
    if capacity and not all(isinstance(value, int) for value in capacity.values()):
        raise ValueError("resource_capacity should map names to whole numbers")
    return dict(capacity) if capacity else None


def _dependencies(obj: dict[str, Any]) -> tuple[Dependency, ...]:
    return tuple(
        Dependency(_get(d, "from", str), _get(d, "to", str), _get(d, "type", str))
        for d in _get(obj, "dependencies", list, default=None) or ()
    )


_REQUIRED = object()
_JSON_NAMES = {str: "a string", int: "a whole number", list: "a list", dict: "an object"}


def _get(obj: Any, key: str, kind: type, default: Any = _REQUIRED) -> Any:
    """`obj[key]`, checked; where a default is given the key may be absent or null."""
    if not isinstance(obj, dict):
        raise ValueError(f"an object with {key!r} was expected, not {type(obj).__name__}")
    value = obj.get(key)
    if value is None and default is not _REQUIRED:
        return default
    if key not in obj:
        raise ValueError(f"{key!r} is missing")
    if not isinstance(value, kind):
        raise ValueError(f"{key!r} should be {_JSON_NAMES[kind]}, not {value!r:.40}")
    return value
