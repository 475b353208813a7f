"""Records of a TextCraft-Synth task, and the published ones."""

import dataclasses
import functools
from typing import Any

from sera_jax.worlds.textcraft_synth import goals, package, recipes

# Depth of a target by tier, and the number of published tasks.
DEPTHS = {"easy": (2, 3), "medium": (4, 6), "hard": (7, 9), "extreme": (10, 12)}
TIERS = tuple(DEPTHS)
PUBLISHED = {
    "train": {"easy": 588, "medium": 852, "hard": 544, "extreme": 538},
    "val": {"easy": 147, "medium": 213, "hard": 136, "extreme": 136},
}


@dataclasses.dataclass(frozen=True)
class Task:
    """What to craft on top of what is in `inventory`: pairs of item and count.

    `names` is the recipe world's seed (recipes.py); published tasks have that of the published one.
    """

    task_id: str
    tier: str
    targets: tuple[tuple[str, int], ...]
    inventory: tuple[tuple[str, int], ...]
    names: int = recipes.PUBLISHED

    @property
    def family(self) -> str:
        depth = recipes.recipes(self.names).depth
        return f"depth {max(depth[item] for item, _ in self.targets)}"

    @property
    def goal(self) -> str:
        return goals.goal_text(dict(self.targets))


@functools.cache
def published(split: str) -> tuple[Task, ...]:
    """All tasks of "train" or "val" (which is the test set of METHOD 7)."""
    if split not in PUBLISHED:
        raise ValueError(f"no published split {split!r}; choose from {', '.join(PUBLISHED)}")
    tasks = tuple(map(_task, package.published_lines(split)))
    counts = {tier: sum(task.tier == tier for task in tasks) for tier in TIERS}
    if counts != PUBLISHED[split]:
        raise ValueError(f"split {split!r} should have {PUBLISHED[split]} tasks, not {counts}")
    return tasks


def _task(line: dict[str, Any]) -> Task:
    facts = line["misc"]  # its gold_trajectory is left behind: nobody who plays may see it
    return Task(
        task_id=line["id"],
        tier=facts["difficulty"],
        targets=tuple(facts["target_items"].items()),
        inventory=tuple(facts["initial_inventory"].items()),
    )
