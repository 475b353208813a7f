"""Which objective an optimizer step trains (METHOD 5)."""

from collections.abc import Sequence

Cycle = Sequence[tuple[str, int]]

SERA_CYCLE: Cycle = (("execution", 16), ("decomposition", 2), ("rubric", 2))


def objective_at(step: int, cycle: Cycle = SERA_CYCLE) -> str:
    """The objective of optimizer step `step`, counted from 0: runs of the cycle, in its order.

    A function of the step alone, so a resumed run is in the phase that it left, and a step
    without signal still advances the schedule.
    """
    if step < 0:
        raise ValueError(f"steps count from 0, got {step}")
    position = step % _length(cycle)
    for objective, count in cycle:
        if position < count:
            return objective
        position -= count
    raise AssertionError("unreachable: the position is below the sum of the counts")


def objectives(cycle: Cycle) -> tuple[str, ...]:
    """The objectives that a cycle ever trains, in its order.

    More than one means that every step must sample with the current weights (METHOD 5).
    """
    _length(cycle)
    return tuple(dict.fromkeys(objective for objective, count in cycle if count))


def _length(cycle: Cycle) -> int:
    if any(count < 0 for _, count in cycle) or not sum(count for _, count in cycle):
        raise ValueError(f"a schedule needs counts >= 0 and at least one above 0, got {cycle}")
    return sum(count for _, count in cycle)
