"""Seeded generator of the benchmark's fixed task sets: same seed, same task, on any machine.

Every draw from `random.Random` below is part of the definition. Changing a call or the order of
two calls changes the tasks; `tests/worlds/test_generator.py` compares their hashes.
"""

import dataclasses
import random
from collections.abc import Iterator

from sera_jax.worlds.textworld_sync import foods
from sera_jax.worlds.textworld_sync.tasks import AS_FOUND, Dependency, Dish, Ingredient, Task

FAMILIES = (
    "multi_dish_fork_join",
    "critical_path",
    "load_balanced",
    "resource_constrained",
    "dependency_gate",
    "conflict",
    "hierarchical",
)
PARAMETER_ATTEMPTS, PARAMETER_STRIDE = 128, 1_000_003
RECIPE_ATTEMPTS = 256

Range = tuple[int, int]


class _Invalid(Exception):
    """The drawn parameters admit no task; the next attempt draws others."""


@dataclasses.dataclass(frozen=True)
class Band:
    """What a difficulty draws from, in the order of drawing; pairs are inclusive ranges."""

    dishes: Range
    ingredients: Range
    locations: Range
    distractors: Range
    doors: bool
    limit_inventory: bool
    capacity: Range
    min_prepared: Range
    max_prepared: Range
    complexity: tuple[str, ...]
    cooldown: tuple[int, ...]
    budget: Range


BANDS = {
    "easy": Band(
        (2, 2), (3, 3), (5, 6), (3, 5), False, False, (2, 2), (1, 1), (1, 2),
        ("low", "medium"), (0,), (115, 125),
    ),
    "medium": Band(
        (2, 4), (3, 4), (7, 10), (6, 12), True, True, (1, 2), (2, 3), (3, 3),
        ("medium", "high"), (0, 1), (95, 100),
    ),
    "hard": Band(
        (4, 5), (4, 4), (10, 11), (12, 18), True, True, (1, 1), (3, 3), (3, 3),
        ("high",), (1,), (75, 90),
    ),
    "extreme": Band(
        (5, 5), (4, 4), (10, 11), (16, 20), True, True, (1, 1), (3, 3), (3, 3),
        ("high",), (1,), (65, 80),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Split:
    """`counts`: tasks of each difficulty, shared out over the families; seeds are affine in
    the positions of difficulty and family and the number within them."""

    fold: str
    counts: dict[str, int]
    seed: int
    difficulty_stride: int
    family_stride: int


SPLITS = {
    "train": Split("train", {"medium": 900, "extreme": 450, "hard": 150}, 850_000, 100_000, 200),
    "dev": Split("valid", dict.fromkeys(BANDS, 50), 860_000, 100_000, 200),
    "test": Split("test", dict.fromkeys(BANDS, 50 * len(FAMILIES)), 820_000, 1_000, 100),
}


def generate(split: str) -> list[Task]:
    """All tasks of "train" (1,500), "dev" (200) or "test" (1,400), in the published order."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    plan, tasks = SPLITS[split], []
    for i, (difficulty, total) in enumerate(plan.counts.items()):
        for f, family in enumerate(FAMILIES):
            first_seed = plan.seed + plan.difficulty_stride * i + plan.family_stride * f
            count = total // len(FAMILIES) + (f < total % len(FAMILIES))
            for offset in range(count):
                task_id = f"cookingworld_multidish_{split}_{family}_{difficulty}_{offset:04d}"
                seed = first_seed + offset
                tasks.append(generate_task(plan.fold, difficulty, family, seed, task_id))
    return tasks


def generate_task(fold: str, difficulty: str, family: str, seed: int, task_id: str) -> Task:
    """One task of the food fold "train", "valid" or "test"."""
    for attempt in range(PARAMETER_ATTEMPTS):
        try:
            return _attempt(fold, difficulty, family, seed, attempt, task_id)
        except _Invalid:
            continue
    raise ValueError(
        f"seed {seed} gives no {difficulty} {family} task in {PARAMETER_ATTEMPTS} attempts; "
        "try another seed"
    )


def _attempt(
    fold: str, difficulty: str, family: str, seed: int, attempt: int, task_id: str
) -> Task:
    band, rng = BANDS[difficulty], random.Random(seed + PARAMETER_STRIDE * attempt)
    num_dishes = rng.randint(*band.dishes)
    num_ingredients = rng.randint(*band.ingredients)
    num_locations = rng.randint(*band.locations)
    num_distractors = rng.randint(*band.distractors)
    doors = rng.choice((band.doors,))
    limit_inventory = rng.choice((band.limit_inventory,))
    capacity = rng.randint(*band.capacity)
    prepared = rng.randint(*band.min_prepared), rng.randint(*band.max_prepared)
    complexity = rng.choice(band.complexity)
    cooldown = rng.choice(band.cooldown)
    budget = rng.randint(*band.budget)
    if prepared[1] < prepared[0]:
        raise _Invalid

    complexities = _complexities(family, complexity, num_dishes)
    dishes = tuple(_dishes(fold, seed, num_ingredients, prepared, complexities))
    return Task(
        task_id=task_id,
        family=family,
        difficulty=difficulty,
        seed=seed,
        view="coarse" if difficulty == "extreme" else "structured",
        dishes=dishes,
        num_locations=num_locations,
        num_distractors=num_distractors,
        include_doors=doors or family == "dependency_gate",
        limit_inventory=limit_inventory,
        resource_capacity=_resource_capacity(family, capacity),
        dependencies=tuple(_dependencies(family, dishes)),
        tool_cooldown_steps=cooldown,
        action_budget=budget,
    )


def _complexities(family: str, drawn: str, count: int) -> list[str]:
    if family == "critical_path":
        return (["low"] * (count - 2) + ["medium", "high"])[-count:]
    if family == "load_balanced":
        return ["low"] * (count - 1) + ["high"]
    return [drawn] * count


def _resource_capacity(family: str, capacity: int) -> dict[str, int] | None:
    if family == "resource_constrained":
        return {"inventory": capacity}
    return {"knife": 1, "stove": 1} if family == "conflict" else None


def _dependencies(family: str, dishes: tuple[Dish, ...]) -> Iterator[Dependency]:
    if family == "dependency_gate":
        for dish in dishes[1:]:
            yield Dependency("gate_1", dish.dish_id, "door")
    if family == "hierarchical":
        for dish in dishes:
            yield Dependency("root", dish.dish_id, "decompose")
            for ingredient in dish.recipe:
                target = f"{dish.dish_id}::{ingredient.name}"
                yield Dependency(dish.dish_id, target, "decompose")


# --- Recipes -----------------------------------------------------------------------------------

Options = tuple[tuple[str, ...], ...]


def _dishes(
    fold: str, seed: int, size: int, prepared: Range, complexities: list[str]
) -> Iterator[Dish]:
    """Dishes that share no food. Their generator restarts with the seed at every attempt."""
    rng, data = random.Random(seed), foods.load()
    unused = dict(sorted(data.preparations[fold].items()))
    for number, complexity in enumerate(complexities, 1):
        recipe = _recipe(rng, unused, size, prepared, complexity)
        for name in recipe:
            del unused[name]
        ingredients = (Ingredient(name, p, data.sources[name]) for name, p in recipe.items())
        yield Dish(f"dish_{number}", tuple(ingredients))


def _recipe(
    rng: random.Random, options: dict[str, Options], size: int, prepared: Range, complexity: str
) -> dict[str, tuple[str, ...]]:
    """Food -> chosen preparation for `size` foods, `prepared` = (min, max) of them with work."""
    fewest, most = prepared
    workable = [food for food in options if _with_work(options[food])]
    plain = [food for food in options if _plain(options[food])]
    if len(options) < size or len(workable) < fewest:
        raise _Invalid
    if most < size and len(plain) < size - fewest:
        raise _Invalid
    for _ in range(RECIPE_ATTEMPTS):
        required = rng.sample(workable, fewest)
        names = _pick_names(rng, options, required, size, bounded=most < size)
        if names is None:
            continue
        chosen = _choose(rng, options, names, required, complexity, bounded=most < size)
        if chosen and fewest <= sum(not _is_plain(p) for p in chosen.values()) <= most:
            return chosen
    raise _Invalid


def _pick_names(
    rng: random.Random, options: dict[str, Options], required: list[str], size: int, bounded: bool
) -> list[str] | None:
    """The required foods and others, where `bounded` such as need no work if possible."""
    rest = [food for food in options if food not in required]
    missing = size - len(required)
    if not bounded:
        return required + rng.sample(rest, missing)
    capable = [food for food in rest if _plain(options[food])]
    if len(capable) < missing:
        return None
    only_plain = [food for food in capable if not _with_work(options[food])]
    preferred = rng.sample(only_plain, min(len(only_plain), missing))
    fallback = [food for food in capable if food not in preferred]
    return required + preferred + rng.sample(fallback, missing - len(preferred))


def _choose(
    rng: random.Random,
    options: dict[str, Options],
    names: list[str],
    required: list[str],
    complexity: str,
    bounded: bool,
) -> dict[str, tuple[str, ...]] | None:
    """A preparation for every name, names in shuffled order; None when one has no option."""
    rng.shuffle(names)
    chosen = {}
    for name in names:
        allowed = options[name]
        if name in required:
            allowed = _with_work(allowed)
        elif bounded:
            allowed = _plain(allowed)
        if not allowed:
            return None
        if complexity == "medium":
            chosen[name] = rng.choice(allowed)
        else:
            ranked = sorted(allowed, key=lambda option: (_work(option), option))
            chosen[name] = ranked[0 if complexity == "low" else -1]
    return chosen


def _is_plain(preparation: tuple[str, ...]) -> bool:
    return AS_FOUND.issubset(preparation)


def _plain(options: Options) -> Options:
    return tuple(option for option in options if _is_plain(option))


def _with_work(options: Options) -> Options:
    return tuple(option for option in options if not _is_plain(option))


def _work(preparation: tuple[str, ...]) -> int:
    return 1 + ("uncut" not in preparation) + ("raw" not in preparation)
