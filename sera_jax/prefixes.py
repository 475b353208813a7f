"""Which sequences of a batch share the beginning of a row, and how much that saves.

Rubrics of one tree begin with the same conversation. A group of such sequences is laid out as one
prefix and the sequences' own ends, so that everything but attention computes the prefix once:

    row         P P P P a a a b b         tokens, each once
    attention   P P P P a a a P P P P b b     what `Shared.places` makes of the row, for attention

Attention then runs on ordinary segments, with any kernel, and `Shared.homes` says from which of its
places each token of the row takes its result.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import flax.struct
import numpy as np

# Attention places of a row in units of its length, where prefixes are shared.
ROOM = 2
# Below so many trained tokens a computed one, the plain layout is as good: it needs no gathers.
PAYS = 1.5


@flax.struct.dataclass
class Shared:
    """Attention's own layout of rows [B, T]: A = ROOM * T places a row."""

    places: Any  # int32 [B, A], the token of the row at each place
    homes: Any  # int32 [B, T], the place of each token
    segment_ids: Any  # int32 [B, A], 0: nothing


@dataclasses.dataclass(frozen=True)
class Group:
    """Sequences with `prefix` equal, untrained first inputs, and their depth weights."""

    sequences: Sequence[Any]
    weights: Sequence[float]
    prefix: int = 0

    @property
    def attended(self) -> int:
        """Places in attention: the last token of a sequence is no input."""
        return sum(len(sequence.tokens) - 1 for sequence in self.sequences)

    @property
    def size(self) -> int:
        """Places in a row."""
        return self.attended - self.prefix * (len(self.sequences) - 1)


def grouped(lone: Sequence[Group], longest: int) -> list[Group]:
    """Joins neighbours in the order of their tokens while the groups fit rows of `longest`."""
    out: list[Group] = []
    for group in sorted(lone, key=lambda group: group.sequences[0].tokens.tolist()):
        joined = _joined(out[-1], group) if out else group
        # Joining may shorten a prefix that the others share: only where places are saved.
        fits = joined.size <= longest and joined.attended <= ROOM * longest
        if out and fits and joined.size < out[-1].size + group.size:
            out[-1] = joined
        else:
            out.append(group)
    return out


def saving(groups: Iterable[Group]) -> float:
    """Tokens trained on for each that is computed."""
    groups = list(groups)
    return sum(group.attended for group in groups) / sum(group.size for group in groups)


def _joined(group: Group, other: Group) -> Group:
    (sequence,) = other.sequences
    first = group.sequences[0]
    prefix = _common(first.tokens[:-1], sequence.tokens[:-1])
    prefix = min(prefix, _untrained(first), _untrained(sequence))
    if len(group.sequences) > 1:
        prefix = min(prefix, group.prefix)
    return Group([*group.sequences, sequence], [*group.weights, *other.weights], prefix)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common beginning."""
    size = min(len(a), len(b))
    unequal = np.flatnonzero(a[:size] != b[:size])
    return int(unequal[0]) if len(unequal) else size


def _untrained(sequence: Any) -> int:
    """First inputs whose target carries no loss."""
    return int(np.argmax(sequence.mask[1:]))


def ends(group: Group) -> Iterator[tuple[Any, float, slice]]:
    """Each sequence with its weight and its inputs that the row holds for it: all, or its end."""
    for number, (sequence, weight) in enumerate(zip(group.sequences, group.weights, strict=True)):
        yield sequence, weight, slice(group.prefix if number else 0, len(sequence.tokens) - 1)
