"""Sequences of tokens -> rows of fixed shape, several sequences a row."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

import flax.struct
import jax
import numpy as np

from sera_jax import advantages as credit
from sera_jax import prefixes, trees
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
    """One micro-batch, every array [B, T]. All but `tokens`, `segment_ids` and `positions`
    speak of `targets[b, t]`, the token that follows `tokens[b, t]` in its segment."""

    tokens: Array
    targets: Array
    segment_ids: Array  # 0: padding
    positions: Array
    mask: Array
    behavior_logprobs: Array
    advantages: Array
    weights: Array  # depth weight w_d of the sequence (METHOD 4)
    shared: prefixes.Shared | None = None  # attention's layout where prefixes are shared


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
    sequences: Iterable[Sequence],
    *,
    row_length: Seq[int],
    rows: int,
    keep_idle: bool = True,
    share_prefixes: bool = False,
) -> list[Batch]:
    """Packs one optimizer batch into micro-batches of shape [rows, T], T one of `row_length`.

    Longest first, each into the first row with room, in batches already opened; else a batch of
    the shortest sufficient length is opened. Sequences without a trained token are dropped, and
    depth weights are those of all that remain (METHOD 4), so that they do not depend on packing.
    Without `keep_idle`, sequences whose advantages are all 0 get no row: no gradient comes of them.
    With `share_prefixes`, beginnings that sequences share are computed once where that pays.
    """
    kept = [sequence for sequence in sequences if sequence.trained]
    weights = credit.depth_weights([sequence.depth for sequence in kept]) if kept else []
    groups = [
        prefixes.Group([sequence], [weight])
        for sequence, weight in zip(kept, weights, strict=True)
        if keep_idle or not sequence.idle
    ]
    lengths, room = sorted(row_length), 1
    if share_prefixes and groups:
        joined = prefixes.grouped(groups, lengths[-1])
        if prefixes.saving(joined) >= prefixes.PAYS:
            groups, room = joined, prefixes.ROOM
    opened: list[_Rows] = []
    # sorted() is stable: equal lengths keep their order, and packing is reproducible.
    for group in sorted(groups, key=lambda group: -group.size):
        if not any(batch.add(group) for batch in opened):
            fitting = [n for n in lengths if group.size <= n and group.attended <= room * n]
            if not fitting:
                raise ValueError(
                    f"a sequence of {group.size + 1} tokens fits no row of {lengths}; "
                    "raise row_length, or lower the context length of the rollouts"
                )
            opened.append(_Rows(rows, fitting[0], room))
            opened[-1].add(group)
    return [batch.finish() for batch in opened]


def one_a_row(nodes: Seq[trees.Node], length: int, rows: int) -> Batch:
    """Whole trajectories, a row each in their order, for scoring; rows left over are empty."""
    filled = _Rows(rows, length)
    for row, node in enumerate(nodes):
        filled.put(row, prefixes.Group([_from_node(node, 0.0)], [1.0]))
    return filled.finish()


class _Rows:
    """A micro-batch being filled; `room` as prefixes.ROOM, or 1 where nothing is shared."""

    def __init__(self, rows: int, length: int, room: int = 1):
        self.length, self.room = length, room
        self.used, self.attended, self.segments = [0] * rows, [0] * rows, [0] * rows
        kinds = {name: np.int32 for name in ("tokens", "targets", "segment_ids", "positions")}
        kinds |= {"mask": np.bool_}
        kinds |= {name: np.float32 for name in ("behavior_logprobs", "advantages", "weights")}
        self.arrays = {name: np.zeros((rows, length), kind) for name, kind in kinds.items()}
        self.homes = np.zeros((rows, length), np.int32)
        self.places, self.attended_ids = np.zeros((2, rows, room * length), np.int32)

    def add(self, group: prefixes.Group) -> bool:
        """Puts the group into the first row with room; False where none has."""
        for row, used in enumerate(self.used):
            if (
                used + group.size <= self.length
                and self.attended[row] + group.attended <= self.room * self.length
                and self.segments[row] + len(group.sequences) <= MAX_SEGMENTS
            ):
                self.put(row, group)
                return True
        return False

    def put(self, row: int, group: prefixes.Group) -> None:
        first = self.used[row]
        for sequence, weight, inputs in prefixes.ends(group):
            self.segments[row] += 1
            targets = slice(inputs.start + 1, inputs.stop + 1)
            values = {
                "tokens": sequence.tokens[inputs],
                "targets": sequence.tokens[targets],
                "segment_ids": self.segments[row],
                "positions": np.arange(inputs.start, inputs.stop),
                "mask": sequence.mask[targets],
                "behavior_logprobs": sequence.behavior_logprobs[targets],
                "advantages": sequence.advantages[targets],
                "weights": weight,
            }
            own = slice(self.used[row], self.used[row] + inputs.stop - inputs.start)
            for name, value in values.items():
                self.arrays[name][row, own] = value
            self.used[row] = own.stop
            # In attention the sequence is whole again: the prefix, then its own inputs.
            start, stop = self.attended[row], self.attended[row] + inputs.stop
            self.places[row, start:stop] = np.r_[first : first + inputs.start, own]
            self.homes[row, own] = np.arange(start + inputs.start, stop)
            self.attended_ids[row, start:stop] = self.segments[row]
            self.attended[row] = stop

    def finish(self) -> Batch:
        shared = prefixes.Shared(self.places, self.homes, self.attended_ids)
        return Batch(**self.arrays, shared=shared if self.room > 1 else None)
