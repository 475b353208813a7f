"""The grammar of goals: every goal names what to craft, so that a program can tell its outcome.

    Craft the following items: 8x m4_i1, 2x m3_i7

Anything may stand around the targets; a target that occurs twice adds up.
"""

import re
from collections import Counter
from collections.abc import Mapping

GRAMMAR = 'a goal names what to craft, as in "Craft the following items: 8x m4_i1, 2x m3_i7"'
# Nine digits: no task comes near, and no number gets long enough to be slow.
_TARGET = re.compile(r"(?<![\w.-])([0-9]{1,9})x\s{1,8}([a-z0-9_]{1,40})(?!\w)")


def goal_text(targets: Mapping[str, int]) -> str:
    """The goal to craft so many of each item on top of what there is."""
    listed = ", ".join(f"{count}x {item}" for item, count in targets.items())
    return f"Craft the following items: {listed}"


def read_goal(goal: str) -> dict[str, int]:
    """Item -> how many to craft; empty where the goal names no target. Linear in the text."""
    targets = Counter()
    for count, item in _TARGET.findall(goal):
        targets[item] += int(count)
    return {item: count for item, count in targets.items() if count > 0}
