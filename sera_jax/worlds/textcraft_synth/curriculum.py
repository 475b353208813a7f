"""Which tasks a run trains on and which it is measured on.

Published tasks are drawn in epochs, each shuffled anew. Fresh tasks are made as the published ones
were: a target of the tier's depth, its base items with up to half as many again to spare, and a few
that serve nothing. None equals a published one, and none asks for a target of the published test
split. The targets of `dev` and of `evaluation` are their own, so that what is measured on fresh
tasks was never a target in training.
"""

import functools
import hashlib
import random
from collections import Counter

from sera_jax.worlds.epochs import in_epochs
from sera_jax.worlds.textcraft_synth import oracle
from sera_jax.worlds.textcraft_synth.recipes import PUBLISHED as PUBLISHED_NAMES
from sera_jax.worlds.textcraft_synth.recipes import Recipes, recipes
from sera_jax.worlds.textcraft_synth.tasks import DEPTHS, TIERS, Task, published

# First seed of each use, and how many of a tier's targets of every ten are its own; warm start and
# training share theirs.
SEEDS = {"warmstart": 10_000_000, "dev": 20_000_000, "evaluation": 30_000_000, "train": 100_000_000}
SEEDS_A_RUN = 1_000_000
TENTHS = {"dev": range(0, 1), "evaluation": range(1, 3), "warmstart": range(3, 10)}
MOST = {"easy": 3, "medium": 3, "hard": 2, "extreme": 2}  # pieces of a target
RENAMED_WORLDS = 32  # enough that no name means anything; each takes some memory
SPLITS = {"train": "train", "test": "val"}


def fresh(
    use: str, tiers: tuple[str, ...], start: int, count: int, *, renamed: bool = False
) -> list[Task]:
    """Tasks number `start` to `start + count` of a use, tiers in turn.

    `renamed`: in one of many worlds of other names (recipes.py), where no target is held out.
    """
    _check(tiers)
    return [
        _fresh(use, tiers[number % len(tiers)], number, renamed)
        for number in range(start, start + count)
    ]


def training_tasks(config, seed: int, step: int, count: int) -> list[Task]:
    """The `count` tasks of optimizer step `step`; the same for the same seed and step.

    `config`: source ("fresh" or "train", the published split) and tiers.
    """
    tiers = tuple(config.tiers)
    if config.source == "fresh":
        return fresh("train", tiers, seed * SEEDS_A_RUN + step * count, count)
    return in_epochs(_pool(config.source, tiers), seed, step * count, count)


def evaluation_tasks(config) -> dict[str, list[Task]]:
    """Set name -> tasks, at most `config.tasks` of each of `config.tiers`.

    Sets: "fresh", "test" (the published val split) and "train". `config.at_most`, where there is
    one, gives single tiers fewer: tasks of the deep ones take long.
    """
    limits = getattr(config, "at_most", {})
    most = {tier: min(config.tasks, limits.get(tier, config.tasks)) for tier in config.tiers}
    return {name: _evaluation_set(name, most) for name in config.sets}


def _evaluation_set(name: str, most: dict[str, int]) -> list[Task]:
    """The first tasks of a set, by tier so many."""
    _check(tuple(most))
    if name == "fresh":
        return [
            _fresh("evaluation", tier, number * len(most) + place, False)
            for number in range(max(most.values()))
            for place, tier in enumerate(most)
            if number < most[tier]
        ]
    return [task for tier, count in most.items() for task in _pool(name, (tier,))[:count]]


def _check(tiers: tuple[str, ...]) -> None:
    unknown = sorted(set(tiers) - set(TIERS))
    if unknown or not tiers:
        wrong = f"no tier {unknown[0]!r}" if unknown else "no tiers given"
        raise ValueError(f"{wrong}; choose from {', '.join(TIERS)}")


@functools.lru_cache(maxsize=16)
def _pool(split: str, tiers: tuple[str, ...]) -> tuple[Task, ...]:
    _check(tiers)
    if split not in SPLITS:
        raise ValueError(f"no tasks {split!r}; choose from fresh, {', '.join(SPLITS)}")
    return tuple(task for task in published(SPLITS[split]) if task.tier in tiers)


# --- Fresh tasks -------------------------------------------------------------------------------


def _fresh(use: str, tier: str, number: int, renamed: bool) -> Task:
    seed = SEEDS[use] + number
    rng = random.Random(seed)
    names = 1 + seed % RENAMED_WORLDS if renamed else PUBLISHED_NAMES
    book = recipes(names)
    while True:
        item = rng.choice(_all_targets(book, tier) if renamed else _targets(use, tier))
        targets = {item: rng.randint(1, MOST[tier])}
        inventory = _inventory(book, targets, rng)
        given = (tuple(targets.items()), tuple(inventory.items()))
        # Where recipes make several pieces, whole crafts of everything can need a little more than
        # the pieces do.
        if given not in _published_worlds() and oracle.plan(book, inventory, targets) is not None:
            return Task(f"fresh_{use}_{tier}_{number:07d}", tier, *given, names=names)


def _inventory(book: Recipes, targets: dict[str, int], rng: random.Random) -> dict[str, int]:
    needed = Counter()
    for item, count in targets.items():
        for base, pieces in _base_items(book, item).items():
            needed[base] += count * pieces
    inventory = {
        base: pieces + rng.randint(0, max(1, pieces // 2)) for base, pieces in needed.items()
    }
    for _ in range(rng.randint(1, 3)):
        extra = rng.choice(book.base)
        if extra not in inventory:
            inventory[extra] = rng.randint(1, 5)
    return inventory


def _base_items(book: Recipes, item: str) -> Counter[str]:
    """Base items of one piece if every craft made one: more than enough, as published."""
    pieces, base = Counter({item: 1}), Counter()
    while pieces:
        deepest = max(pieces, key=lambda name: (book.depth[name], name))
        count = pieces.pop(deepest)
        if deepest not in book.of:
            base[deepest] += count
            continue
        for name, n in book.of[deepest].ingredients.items():
            pieces[name] += count * n
    return base


def _all_targets(book: Recipes, tier: str) -> list[str]:
    low, high = DEPTHS[tier]
    return sorted(item for item, depth in book.depth.items() if low <= depth <= high)


@functools.cache
def _targets(use: str, tier: str) -> list[str]:
    tenths = TENTHS.get(use, TENTHS["warmstart"])
    tested = {item for task in published("val") for item, _ in task.targets}
    return [
        item
        for item in _all_targets(recipes(), tier)
        if item not in tested and _tenth(item) in tenths
    ]


def _tenth(item: str) -> int:
    return hashlib.sha256(item.encode()).digest()[0] % 10


@functools.cache
def _published_worlds() -> frozenset:
    return frozenset(
        (t.targets, t.inventory) for split in ("train", "val") for t in published(split)
    )
