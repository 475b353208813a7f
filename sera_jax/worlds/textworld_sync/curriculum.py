"""Which tasks a run trains on and which it is measured on.

Fresh tasks are new seeds of the train fold: as many as wanted, of any tier, none of them in a
published split. Each use has its own range of seeds, so that no task serves two purposes.
"""

import dataclasses
import functools

from sera_jax.worlds.epochs import in_epochs
from sera_jax.worlds.textworld_sync.generator import BANDS, FAMILIES, generate, generate_task
from sera_jax.worlds.textworld_sync.tasks import Task

# First seed of each use; published seeds end below 1.2 million.
SEEDS = {"warmstart": 10_000_000, "dev": 20_000_000, "evaluation": 30_000_000, "train": 100_000_000}
SEEDS_A_RUN = 1_000_000


def fresh(use: str, tiers: tuple[str, ...], start: int, count: int) -> list[Task]:
    """Tasks number `start` to `start + count` of a use, tiers and families in turn."""
    unknown = sorted(set(tiers) - set(BANDS))
    if unknown or not tiers:
        wrong = f"no tier {unknown[0]!r}" if unknown else "no tiers given"
        raise ValueError(f"{wrong}; choose from {', '.join(BANDS)}")
    tasks = []
    for number in range(start, start + count):
        tier = tiers[number % len(tiers)]
        family = FAMILIES[number // len(tiers) % len(FAMILIES)]
        task_id = f"fresh_{use}_{family}_{tier}_{number:07d}"
        tasks.append(generate_task("train", tier, family, SEEDS[use] + number, task_id))
    return tasks


def training_tasks(config, seed: int, step: int, count: int) -> list[Task]:
    """The `count` tasks of optimizer step `step`; the same for the same seed and step.

    `config`: source ("fresh" or a published split), tiers, action_budget (0: the task's own).
    """
    if config.source == "fresh":
        tasks = fresh("train", tuple(config.tiers), seed * SEEDS_A_RUN + step * count, count)
    else:
        pool = _pool(config.source, tuple(config.tiers))
        tasks = in_epochs(pool, seed, step * count, count)
    if config.action_budget:
        tasks = [dataclasses.replace(task, action_budget=config.action_budget) for task in tasks]
    return tasks


def evaluation_tasks(config) -> dict[str, list[Task]]:
    """Set name -> tasks, `config.tasks` of each of `config.tiers`, each with its own budget."""
    return {name: _evaluation_set(name, config) for name in config.sets}


def _evaluation_set(name: str, config) -> list[Task]:
    if name == "fresh":
        return fresh("evaluation", tuple(config.tiers), 0, config.tasks * len(config.tiers))
    tasks = []
    for tier in config.tiers:
        of_tier = [task for task in generate(name) if task.difficulty == tier]
        by_family = [[t for t in of_tier if t.family == family] for family in FAMILIES]
        longest = max(map(len, by_family))
        in_turn = [group[i] for i in range(longest) for group in by_family if i < len(group)]
        tasks += in_turn[: config.tasks]
    return tasks


@functools.lru_cache(maxsize=4)
def _pool(split: str, tiers: tuple[str, ...]) -> tuple[Task, ...]:
    tasks = tuple(task for task in generate(split) if task.difficulty in tiers)
    if not tasks:
        raise ValueError(f"split {split!r} has no task of the tiers {', '.join(tiers)}")
    return tasks
