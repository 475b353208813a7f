"""Sequences of tokens -> rows of fixed shape, several sequences a row."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

import flax.struct
import jax
import numpy as np

from sera_jax import advantages as credit
from sera_jax import trees
from sera_jax.rollout.protocol import parse
from sera_jax.rollout.spans import token_span

Array = np.ndarray | jax.Array

# Sequences a row holds at most: attention kernels set aside room for so many.
MAX_SEGMENTS = 64


@dataclasses.dataclass(frozen=True)
class Sequence:
    """One trajectory. Entry t of every array speaks of token t itself."""

    tokens: np.ndarray  # int32 [n]
    mask: np.ndarray  # bool [n], true on trained tokens
    behavior_logprobs: np.ndarray  # float32 [n], as the server returned them
    advantages: np.ndarray  # float32 [n]
    depth: int = 0

    def __post_init__(self):
        lengths = {field: len(getattr(self, field)) for field in ARRAYS}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"arrays of one sequence differ in length: {lengths}")

    @property
    def trained(self) -> int:
        """Trained tokens; the first has no token before it to be predicted from."""
        return int(np.sum(self.mask[1:]))

    @property
    def idle(self) -> bool:
        """Whether every advantage is 0: then it adds to T and to nothing else."""
        return not np.any(self.advantages[self.mask])


ARRAYS = ("tokens", "mask", "behavior_logprobs", "advantages")


@flax.struct.dataclass
class Batch:
    """One micro-batch, every field [B, T]. All but `tokens`, `segment_ids` and `positions`
    speak of `targets[b, t]`, the token that follows `tokens[b, t]` in its segment."""

    tokens: Array
    targets: Array
    segment_ids: Array  # 0: padding
    positions: Array
    mask: Array
    behavior_logprobs: Array
    advantages: Array
    weights: Array  # depth weight w_d of the sequence (METHOD 4)


def supervised(tokens: Seq[int], mask: Seq[bool], depth: int = 0) -> Sequence:
    """A sequence for losses.cross_entropy, which reads neither log-probs nor advantages."""
    zeros = np.zeros(len(tokens), np.float32)
    return Sequence(np.asarray(tokens, np.int32), np.asarray(mask, bool), zeros, zeros, depth)


def from_trees(
    records: Iterable[trees.Tree], advantages: Iterable[Mapping[str, float]]
) -> list[Sequence]:
    """Execution objective: every token the policy generated in a node that has an advantage."""
    return [
        _from_node(node, values[node.id])
        for tree, values in zip(records, advantages, strict=True)
        for node in tree.nodes
        if node.id in values and node.tokens
    ]


def _from_node(node: trees.Node, advantage: float) -> Sequence:
    length = len(node.tokens)
    mask, logprobs = np.zeros(length, bool), np.zeros(length, np.float32)
    for index, step in enumerate(node.steps):
        if step.end > length or len(step.logprobs) != step.end - step.start:
            raise ValueError(
                f"node {node.id}, step {index}: {len(step.logprobs)} "
                f"log-probs for tokens {step.start}:{step.end} of {length}"
            )
        mask[step.start : step.end] = True
        logprobs[step.start : step.end] = step.logprobs
    tokens = np.asarray(node.tokens, np.int32)
    return Sequence(tokens, mask, logprobs, np.full(length, advantage, np.float32), node.depth)


def idle_tokens(sequences: Iterable[Sequence]) -> int:
    """Trained tokens of all idle sequences, for `train_step.update`."""
    return sum(sequence.trained for sequence in sequences if sequence.idle)


def from_delegations(
    records: Iterable[trees.Tree],
    advantages: Iterable[Mapping[str, float]],
    decode: Callable[[Seq[int]], str],
) -> list[Sequence]:
    """Decomposition objective: the tokens of each delegation block that has an advantage.

    A sequence is a delegating node's whole trajectory, of which only its blocks are trained, each
    with the advantage of its own event. `decode` is that of the tokenizer that sampled.
    """
    sequences = []
    for tree, values in zip(records, advantages, strict=True):
        events: dict[str, list[tuple[trees.Step, float]]] = {}
        for event, node, step in tree.events():
            if event in values:
                events.setdefault(node.id, []).append((step, values[event]))
        nodes = tree.by_id()
        sequences += [_from_events(nodes[key], found, decode) for key, found in events.items()]
    return sequences


def _from_events(node: trees.Node, events, decode) -> Sequence:
    length = len(node.tokens)
    mask, logprobs = np.zeros(length, bool), np.zeros(length, np.float32)
    advantages = np.zeros(length, np.float32)
    for step, advantage in events:
        ids = node.tokens[step.start : step.end]
        first, last = token_span(decode, ids, *parse(step.text).span)
        block = slice(step.start + first, step.start + last)
        mask[block], advantages[block] = True, advantage
        logprobs[step.start : step.end] = step.logprobs
    return Sequence(np.asarray(node.tokens, np.int32), mask, logprobs, advantages, node.depth)


def from_call(call: trees.Call, advantage: float, depth: int) -> Sequence:
    """Rubric objective: the whole completion. `depth` is that of the child it is for."""
    length, start = len(call.tokens), call.start
    mask, logprobs = np.zeros(length, bool), np.zeros(length, np.float32)
    mask[start:], logprobs[start:] = True, call.logprobs
    tokens = np.asarray(call.tokens, np.int32)
    return Sequence(tokens, mask, logprobs, np.full(length, advantage, np.float32), depth)


def pack(
    sequences: Iterable[Sequence], *, row_length: Seq[int], rows: int, keep_idle: bool = True
) -> list[Batch]:
    """Packs one optimizer batch into micro-batches of shape [rows, T], T one of `row_length`.

    Longest first, each into the first row with room, in batches already opened; else a batch of
    the shortest sufficient length is opened. Sequences without a trained token are dropped, and
    depth weights are those of all that remain (METHOD 4), so that they do not depend on packing.
    Without `keep_idle`, sequences whose advantages are all 0 get no row: no gradient comes of them.
    """
    kept = [sequence for sequence in sequences if sequence.trained]
    weights = credit.depth_weights([sequence.depth for sequence in kept]) if kept else []
    lengths = sorted(row_length)
    opened: list[_Rows] = []
    # sorted() is stable: equal lengths keep their order, and packing is reproducible.
    for sequence, weight in sorted(
        zip(kept, weights, strict=True), key=lambda pair: -len(pair[0].tokens)
    ):
        if sequence.idle and not keep_idle:
            continue
        needed = len(sequence.tokens) - 1
        if not any(batch.add(sequence, weight) for batch in opened):
            fitting = [length for length in lengths if length >= needed]
            if not fitting:
                raise ValueError(
                    f"a sequence of {len(sequence.tokens)} tokens fits no row of {lengths}; "
                    "raise row_length, or lower the context length of the rollouts"
                )
            opened.append(_Rows(rows, fitting[0]))
            opened[-1].add(sequence, weight)
    return [batch.finish() for batch in opened]


def one_a_row(nodes: Seq[trees.Node], length: int, rows: int) -> Batch:
    """Whole trajectories, a row each in their order, for scoring; rows left over are empty."""
    filled = _Rows(rows, length)
    for row, node in enumerate(nodes):
        filled.put(row, _from_node(node, 0.0), 1.0)
    return filled.finish()


class _Rows:
    """A micro-batch being filled."""

    def __init__(self, rows: int, length: int):
        self.length, self.used, self.segments = length, [0] * rows, [0] * rows
        kinds = {name: np.int32 for name in ("tokens", "targets", "segment_ids", "positions")}
        kinds |= {"mask": np.bool_}
        kinds |= {name: np.float32 for name in ("behavior_logprobs", "advantages", "weights")}
        self.arrays = {name: np.zeros((rows, length), kind) for name, kind in kinds.items()}

    def add(self, sequence: Sequence, weight: float) -> bool:
        """Puts the sequence into the first row with room; False where none has."""
        size = len(sequence.tokens) - 1
        rows = zip(self.used, self.segments, strict=True)
        free = (u + size <= self.length and n < MAX_SEGMENTS for u, n in rows)
        row = next((r for r, fits in enumerate(free) if fits), None)
        if row is None:
            return False
        self.put(row, sequence, weight)
        return True

    def put(self, row: int, sequence: Sequence, weight: float) -> None:
        size = len(sequence.tokens) - 1
        self.segments[row] += 1
        values = {
            "tokens": sequence.tokens[:-1],
            "targets": sequence.tokens[1:],
            "segment_ids": self.segments[row],
            "positions": np.arange(size),
            "mask": sequence.mask[1:],
            "behavior_logprobs": sequence.behavior_logprobs[1:],
            "advantages": sequence.advantages[1:],
            "weights": weight,
        }
        for name, value in values.items():
            self.arrays[name][row, self.used[row] : self.used[row] + size] = value
        self.used[row] += size

    def finish(self) -> Batch:
        return Batch(**self.arrays)
