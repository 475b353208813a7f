"""Prefix matching and eviction, by small literals."""

import numpy as np
import pytest

from sera_jax.serving.device import Shapes
from sera_jax.serving.slots import Slots


def filled(*contents, busy=()):
    slots = Slots(len(contents), 16)
    for slot, ids in enumerate(contents):
        slots.take(slot, np.array(ids, np.int32), len(ids))
        if slot not in busy:
            slots.release(slot)
    return slots


def choose(slots, ids, limit=99):
    return slots.choose(np.array(ids, np.int32), limit)


def test_common_prefixes_stop_at_the_first_difference_and_at_the_length():
    slots = filled([1, 2, 3], [1, 9, 3, 4], [])
    assert slots.common_prefixes(np.array([1, 2, 3, 4])).tolist() == [3, 1, 0]
    slots.lengths[0] = 2
    assert slots.common_prefixes(np.array([1, 2, 3, 4])).tolist() == [2, 1, 0]


def test_a_conversation_goes_on_in_its_slot():
    slots = filled([5, 6], [1, 2, 3], [])
    assert choose(slots, [1, 2, 3, 4]) == (1, 1, 3)
    assert choose(slots, [1, 2, 3], limit=2) == (1, 1, 2)


def test_a_branch_takes_the_oldest_slot_and_copies():
    slots = filled([1, 2, 3, 4], [7], [8])
    slots.touch(1)
    assert choose(slots, [1, 2, 3, 9]) == (0, 0, 3)  # the oldest is its own source
    slots.touch(0)
    assert choose(slots, [1, 2, 3, 9]) == (2, 0, 3)


def test_a_busy_slot_may_be_copied_and_is_never_taken():
    slots = filled([1, 2, 3], [7], busy=(0,))
    assert choose(slots, [1, 2, 3, 4]) == (1, 0, 3)
    slots.busy[:] = True
    assert choose(slots, [1]) is None


def test_forget_keeps_what_runs():
    slots = filled([1, 2], [3, 4], busy=(1,))
    slots.forget()
    assert slots.lengths.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("context", "buckets"), [(100, [1]), (256, [2]), (768, [2, 3, 4, 6]), (1000, [2, 3, 4, 6, 8])]
)
def test_buckets_end_with_the_whole_context(context, buckets):
    shapes = Shapes(context=context)
    assert shapes.buckets == buckets
    assert shapes.bucket(context) == buckets[-1] and shapes.bucket(1) == buckets[0]
