"""Prefix matching, copies and eviction, by small literals."""

import numpy as np
import pytest

from sera_jax.serving.device import Shapes
from sera_jax.serving.slots import Move, Slots

# Conversations long enough to be worth a copy.
ONE, TWO, THREE = ([first, *range(30)] for first in (1, 2, 3))


def filled(*contents, parked=(), busy=()):
    """Slots that hold `contents`, the first one used longest ago, and parked rows."""
    slots = Slots(len(contents), 64, max(len(parked), 1))
    for row, ids in enumerate([*contents, *parked]):
        slots.ids[row, : len(ids)] = ids
        slots.lengths[row] = len(ids)
        slots.touch(row)
    slots.busy[list(busy)] = True
    return slots


def admit(slots, ids, limit=99):
    return slots.admit(np.array(ids, np.int32), limit)


def test_common_prefixes_stop_at_the_first_difference_and_at_the_length():
    slots = filled([1, 2, 3], [1, 9, 3, 4], [])
    assert slots.common_prefixes(np.array([1, 2, 3, 4])).tolist() == [3, 1, 0, 0]
    slots.lengths[0] = 2
    assert slots.common_prefixes(np.array([1, 2, 3, 4])).tolist() == [2, 1, 0, 0]


def test_a_conversation_goes_on_in_its_slot():
    assert admit(filled(TWO, ONE, []), [*ONE, 7]) == Move(1, 31)
    assert admit(filled(TWO, ONE, []), ONE, limit=30) == Move(1, 30)


def test_a_new_conversation_takes_the_oldest_slot_whose_content_is_parked():
    slots = filled(ONE, TWO)
    move = admit(slots, THREE)
    assert move == Move(0, 0, save_to=2, saved=31)
    # Until the copies are done nobody may rely on them.
    assert slots.common_prefixes(np.array(ONE)).tolist() == [0, 0, 0]
    slots.settle([move])
    assert slots.common_prefixes(np.array(ONE)).tolist() == [0, 0, 31]


def test_a_parked_conversation_swaps_its_place_with_the_oldest_slot():
    slots = filled(TWO, ONE, parked=[THREE, [9]])
    move = admit(slots, [*THREE, 5])
    assert move == Move(0, 31, load_from=2, save_to=2, saved=31)
    slots.settle([move])
    assert slots.common_prefixes(np.array(TWO)).tolist() == [0, 0, 31, 0]


def test_a_branch_copies_the_prefix_and_leaves_the_source():
    slots = filled([], ONE, busy=(1,))
    move = admit(slots, [*ONE[:25], 99])
    assert move == Move(0, 25, load_from=1)
    assert slots.lengths.tolist() == [0, 31, 0]  # not a source before it is filled
    slots.settle([move])
    assert slots.lengths.tolist() == [25, 31, 0]


def test_short_prefixes_are_not_worth_a_copy_and_short_contents_not_a_row():
    assert admit(filled([7, 8], ONE, busy=(1,)), [*ONE[:10], 99]) == Move(0, 0)


def test_all_busy_admits_nobody_and_forget_keeps_what_runs():
    slots = filled(ONE, TWO, parked=[THREE], busy=(0, 1))
    assert admit(slots, ONE) is None
    slots.forget()
    assert slots.lengths.tolist() == [31, 31, 0]


@pytest.mark.parametrize(
    ("context", "buckets"), [(100, [1]), (256, [2]), (768, [2, 3, 4, 6]), (1000, [2, 3, 4, 6, 8])]
)
def test_buckets_end_with_the_whole_context(context, buckets):
    shapes = Shapes(context=context)
    assert shapes.buckets == buckets
    assert shapes.bucket(context) == buckets[-1] and shapes.bucket(1) == buckets[0]
