"""Tasks of a fixed set, in an order that a run can find again."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_epochs(tasks: Sequence[T], seed: int, start: int, count: int) -> list[T]:
    """`count` places from `start` on in an endless sequence of epochs, each shuffled anew."""
    orders: dict[int, list[T]] = {}
    found = []
    for epoch, place in (divmod(place, len(tasks)) for place in range(start, start + count)):
        if epoch not in orders:
            orders[epoch] = list(tasks)
            random.Random(f"{seed}/{epoch}").shuffle(orders[epoch])
        found.append(orders[epoch][place])
    return found
