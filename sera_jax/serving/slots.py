"""Which slot holds which tokens: prefix matching and eviction. NumPy only."""

import numpy as np


class Slots:
    """`ids[slot, :lengths[slot]]` are the tokens whose keys and values the cache holds.

    A finished conversation stays in its slot until another request needs the slot, so that its
    next turn prefills the new tokens alone.
    """

    def __init__(self, count: int, context: int):
        self.ids = np.zeros((count, context), np.int32)
        self.lengths = np.zeros(count, np.int32)
        self.busy = np.zeros(count, bool)
        self._used = np.zeros(count, np.int64)
        self._clock = 0
        self._columns = np.arange(context, dtype=np.int32)

    def common_prefixes(self, sequence: np.ndarray) -> np.ndarray:
        """Number of leading tokens that each slot shares with `sequence`."""
        size = len(sequence)
        differs = self.ids[:, :size] != sequence
        differs |= self._columns[:size] >= self.lengths[:, None]
        first = differs.argmax(axis=1)
        return np.where(differs[np.arange(len(first)), first], first, size)

    def choose(self, sequence: np.ndarray, limit: int) -> tuple[int, int, int] | None:
        """(slot to take, slot to reuse, reusable tokens <= limit); None when all are busy.

        A slot whose whole content is a prefix of the sequence is this conversation's own and is
        taken over. Otherwise the least recently used slot is given up, and the prefix may be
        copied from another slot, a running one too: its first tokens never change.
        """
        idle = np.flatnonzero(~self.busy)
        if not idle.size:
            return None
        common = self.common_prefixes(sequence)
        source = int(common.argmax())
        whole = idle[(common[idle] == self.lengths[idle]) & (self.lengths[idle] > 0)]
        own = int(whole[common[whole].argmax()]) if whole.size else -1
        if own >= 0 and 2 * common[own] > common[source]:
            target = source = own
        else:
            target = int(idle[self._used[idle].argmin()])
        if common[target] == common[source]:
            source = target
        return target, source, min(int(common[source]), limit)

    def take(self, slot: int, sequence: np.ndarray, reused: int) -> None:
        self.ids[slot, : len(sequence)] = sequence
        self.lengths[slot] = reused
        self.busy[slot] = True
        self.touch(slot)

    def release(self, slot: int) -> None:
        self.busy[slot] = False
        self.touch(slot)

    def touch(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock

    def forget(self) -> None:
        """Drops what idle slots hold."""
        self.lengths[~self.busy] = 0
        self._used[~self.busy] = 0
