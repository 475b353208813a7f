"""Which slot holds which tokens: prefix reuse, and where conversations wait. NumPy only."""

from dataclasses import dataclass

import numpy as np

# A prefix is copied or kept when that spares at least this many tokens of prefill.
WORTH_COPYING = 16


@dataclass(frozen=True)
class Move:
    """A slot given to a request, and the copies that make it ready; -1: no such copy.

    All copies of one call read what was there before the call.
    """

    slot: int
    reused: int  # leading tokens of the request that need no prefill
    load_from: int = -1  # row whose prefix goes to the slot
    save_to: int = -1  # parked row that gets what the slot held
    saved: int = 0  # tokens of it


class Slots:
    """Rows of tokens whose keys and values are cached: `ids[row, :lengths[row]]`.

    The first `count` rows are the slots, where requests run and decode together. The others are
    parked: a conversation between two turns keeps its slot until another request needs it, then
    waits in a parked row. So decoding need not pay for every conversation that is remembered.
    Both are given up by least recent use.
    """

    def __init__(self, count: int, context: int, parked: int):
        rows = count + parked
        self.count = count
        self.ids = np.zeros((rows, context), np.int32)
        self.lengths = np.zeros(rows, np.int32)
        self.busy = np.zeros(rows, bool)
        self._used = np.zeros(rows, np.int64)
        self._clock = 0
        self._targets: set[int] = set()  # parked rows that wait for their copy
        self._columns = np.arange(context, dtype=np.int32)

    def common_prefixes(self, sequence: np.ndarray) -> np.ndarray:
        """Number of leading tokens that each row shares with `sequence`."""
        size = len(sequence)
        differs = self.ids[:, :size] != sequence
        differs |= self._columns[:size] >= self.lengths[:, None]
        first = differs.argmax(axis=1)
        return np.where(differs[np.arange(len(first)), first], first, size)

    def admit(self, sequence: np.ndarray, limit: int) -> Move | None:
        """Gives a slot to a request, reusing up to `limit` tokens; None when all are busy.

        A slot that holds a prefix of the sequence and nothing else is this conversation's own.
        Otherwise the prefix may be copied from any row, running ones too: a row's first tokens
        do not change while it is in use. Lengths that depend on copies count after `settle`.
        """
        idle = np.flatnonzero(~self.busy[: self.count])
        if not idle.size:
            return None
        common = self.common_prefixes(sequence)
        source = int(common.argmax())
        whole = idle[(common[idle] == self.lengths[idle]) & (self.lengths[idle] > 0)]
        own = int(whole[common[whole].argmax()]) if whole.size else -1
        if own >= 0 and common[source] - common[own] < WORTH_COPYING:
            move = Move(own, min(int(common[own]), limit))
        else:
            slot = int(idle[self._used[idle].argmin()])
            move = self._move(slot, source, common, limit)
        self._take(move, sequence)
        return move

    def _move(self, slot: int, source: int, common: np.ndarray, limit: int) -> Move:
        here, best = min(int(common[slot]), limit), min(int(common[source]), limit)
        load = best - here >= WORTH_COPYING
        held = int(self.lengths[slot])
        keep = held - max(here, int(common[slot])) >= WORTH_COPYING
        row = -1
        if load and source >= self.count and common[source] == self.lengths[source]:
            row = source  # its conversation leaves it: swap
        elif keep:
            row = self._oldest_parked()
        if row >= 0 and not keep:
            self.lengths[row], self._used[row], row = 0, 0, -1
        return Move(
            slot, best if load else here, source if load else -1, row, held if row >= 0 else 0
        )

    def _oldest_parked(self) -> int:
        """-1: each of them is a target of this call already."""
        used = self._used[self.count :].copy()
        used[[row - self.count for row in self._targets]] = np.iinfo(used.dtype).max
        row = self.count + int(used.argmin())
        return -1 if row in self._targets else row

    def _take(self, move: Move, sequence: np.ndarray) -> None:
        if move.save_to >= 0:
            self.ids[move.save_to] = self.ids[move.slot]
            self._used[move.save_to] = self._used[move.slot]
            self.lengths[move.save_to] = 0
            self._targets.add(move.save_to)
        self.ids[move.slot, : len(sequence)] = sequence
        self.lengths[move.slot] = 0 if move.load_from >= 0 else move.reused
        self.busy[move.slot] = True
        self.touch(move.slot)

    def settle(self, moves: list[Move]) -> None:
        """The copies are done."""
        self._targets.clear()
        for move in moves:
            self.lengths[move.slot] = move.reused
            if move.save_to >= 0:
                self.lengths[move.save_to] = move.saved

    def release(self, slot: int) -> None:
        self.busy[slot] = False
        self.touch(slot)

    def touch(self, row: int) -> None:
        self._clock += 1
        self._used[row] = self._clock

    def forget(self) -> None:
        """Drops what no request runs on."""
        self.lengths[~self.busy] = 0
        self._used[~self.busy] = 0
