"""A replica's arrays on its device, and the compiled calls over them."""

from dataclasses import dataclass

import jax
import numpy as np

from sera_jax.model import qwen3
from sera_jax.serving import decoding
from sera_jax.serving.requests import MAX_STOPS


@dataclass(frozen=True)
class Shapes:
    """The fixed shapes of a replica's device calls; all are compiled before the first request."""

    slots: int = 32  # decode together
    parked: int = 64  # further rows for conversations between two turns
    context: int = 768
    block: int = 128  # positions of a cache block
    rows: int = 8  # of a prefill call
    chunk: int = 16  # tokens of a prefill row
    steps: int = 4  # of a decode call
    few_rows: int = 2  # of a prefill call when little waits
    few_slots: int = 8  # of a decode call when most slots rest

    @property
    def blocks(self) -> int:
        return -(-self.context // self.block)

    @property
    def buckets(self) -> list[int]:
        """Numbers of blocks that calls are compiled for: 2, 3, 4, 6, 8, 12, ... and all."""
        sizes, size = [], 2
        while size < self.blocks:
            sizes += [size, size * 3 // 2]
            size *= 2
        return [size for size in sizes if size < self.blocks] + [self.blocks]

    @property
    def copy_sizes(self) -> list[int]:
        """Numbers of rows that copies are compiled for; a prefill call needs R at most."""
        return [self.few_rows, self.rows]

    def prefill_arrays(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Empty tokens [R, T + 1] and table [R, 4] of a prefill call."""
        return np.zeros((rows, self.chunk + 1), np.int32), np.zeros((rows, 4), np.int32)

    def bucket(self, length: int) -> int:
        """The fewest blocks that hold `length` positions."""
        return next(size for size in self.buckets if size * self.block >= length)


class Device:
    """Host arrays in, host lists out; the cache is donated to every call that changes it."""

    def __init__(self, weights, config: qwen3.Config, shapes: Shapes, device, dtype):
        self.config, self.shapes, self.device, self.dtype = config, shapes, device, dtype
        self.name = f"engine-{device.id}"
        self.weights = self.place(weights)
        self._cache, self._parked = (
            jax.device_put(
                decoding.empty_cache(config, rows, shapes.blocks, shapes.block, dtype), device
            )
            for rows in (shapes.slots, shapes.parked)
        )

    def place(self, params: qwen3.Params) -> decoding.Weights:
        """Parameters on this device, layers unstacked; by NumPy, so that nothing compiles."""
        host = jax.tree.map(np.asarray, params)
        return jax.device_put(decoding.unstack(host, self.config, self.dtype), self.device)

    def warm_up(self) -> None:
        """Compiles every shape; afterwards nothing compiles."""
        s = self.shapes
        for blocks in s.buckets:
            for rows in (s.few_rows, s.rows):
                self._warm_up_prefill(rows, blocks, False)
            few = [s.few_slots] if s.few_slots < s.slots else []
            for count in [s.slots, *few]:
                slots = None if count == s.slots else np.zeros(count, np.int32)
                state = np.zeros((count, 4 + MAX_STOPS), np.int32)
                self.decode(state, np.ones(count, np.float32), slots, blocks)
            for size in s.copy_sizes:
                self.copy([(0, 0)] * size, [(0, s.slots)] * size, blocks)
                self.copy([(s.slots, 0)] * size, [], blocks)
        self._warm_up_prefill(s.rows, s.blocks, True)

    def _warm_up_prefill(self, rows: int, blocks: int, score: bool) -> None:
        tokens, table = self.shapes.prefill_arrays(rows)
        self.prefill(tokens, table, np.ones(rows, np.float32), blocks, score)

    def prefill(self, tokens, rows, temperature, blocks: int, score: bool):
        """-> sampled tokens [R], their log-probs [R], scores [R, T] or None; as lists."""
        with jax.default_device(self.device):
            self._cache, sampled, logprobs, scores = decoding.prefill(
                self.weights,
                self._cache,
                tokens,
                rows,
                temperature,
                config=self.config,
                blocks=blocks,
                score=score,
            )
        return _lists(sampled), _lists(logprobs), _lists(scores) if score else None

    def decode(self, state, temperature, slots, blocks: int):
        """-> tokens and log-probs as lists [B][S]; -1 where a row did not run."""
        with jax.default_device(self.device):
            self._cache, tokens, logprobs = decoding.decode(
                self.weights,
                self._cache,
                state,
                temperature,
                slots,
                config=self.config,
                blocks=blocks,
                steps=self.shapes.steps,
            )
        return _lists(tokens), _lists(logprobs)

    def copy(self, loads, saves, blocks: int) -> None:
        """Up to R pairs (row, slot) to load and (slot, parked row) to save.

        Rows count through: slots first, then the parked ones. All is read before it is written.
        """
        s = self.shapes
        inner = [(source, slot) for source, slot in loads if source < s.slots]
        outer = [(source - s.slots, slot) for source, slot in loads if source >= s.slots]
        saves = [(slot, row - s.slots) for slot, row in saves]
        with jax.default_device(self.device):
            slots = [
                self._read(self._cache, inner, blocks),
                self._read(self._parked, outer, blocks),
            ]
            parked = self._read(self._cache, saves, blocks)
            for new, targets in filter(None, slots):
                self._cache = decoding.write_rows(self._cache, new, targets)
            if parked:
                self._parked = decoding.write_rows(self._parked, *parked)

    def _read(self, cache, pairs, blocks: int):
        """What to write and where, padded to one of few lengths with pairs that go nowhere."""
        if not pairs:
            return None
        size = next(size for size in self.shapes.copy_sizes if size >= len(pairs))
        nowhere = (0, self.shapes.slots + self.shapes.parked)
        sources, targets = np.array([*pairs, *[nowhere] * (size - len(pairs))], np.int32).T
        return decoding.read_rows(cache, sources, blocks=blocks), targets


def _lists(array) -> list:
    return np.asarray(array).tolist()
