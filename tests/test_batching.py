import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sera_jax import batching, trees


def sequence(length, depth=0, start=0, trained=True):
    """Tokens start, start + 1, ...; every other array is a function of the token."""
    tokens = np.arange(start, start + length, dtype=np.int32)
    mask = (tokens % 3 > 0) & trained
    return batching.Sequence(
        tokens, mask, -tokens.astype(np.float32), tokens.astype(np.float32) * 2, depth
    )


def test_entries_speak_of_the_target():
    (batch,) = batching.pack([sequence(4, start=10)], row_length=[5], rows=2)
    np.testing.assert_array_equal(batch.tokens[0], [10, 11, 12, 0, 0])
    np.testing.assert_array_equal(batch.targets[0], [11, 12, 13, 0, 0])
    np.testing.assert_array_equal(batch.segment_ids[0], [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(batch.positions[0], [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(batch.mask[0], [True, False, True, False, False])
    np.testing.assert_array_equal(batch.behavior_logprobs[0], [-11, -12, -13, 0, 0])
    np.testing.assert_array_equal(batch.advantages[0], [22, 24, 26, 0, 0])
    assert not batch.segment_ids[1].any() and not batch.mask[1].any()


def test_longest_first_into_the_first_row_with_room():
    lengths = [3, 6, 4, 5]  # 2, 5, 3 and 4 places
    sequences = [sequence(n, start=100 * n) for n in lengths]
    batches = batching.pack(sequences, row_length=[7], rows=1)
    firsts = [list(b.tokens[0][b.positions[0] == 0]) for b in batches]
    assert [row[:2] for row in firsts] == [[600, 300], [500, 400]]


def test_a_batch_has_the_shortest_length_that_fits_and_room_is_shared():
    sequences = [sequence(n) for n in (17, 4, 8, 7)]
    batches = batching.pack(sequences, row_length=[8, 16], rows=2)
    # The long one opens rows of 16; the rest fits beside it.
    assert [b.tokens.shape for b in batches] == [(2, 16)]
    batches = batching.pack(sequences[1:], row_length=[8, 16], rows=1)
    assert [b.tokens.shape for b in batches] == [(1, 8), (1, 8), (1, 8)]


def test_depth_weights_are_of_the_whole_optimizer_batch():
    # 3 sequences at depth 0, 1 at depth 1, one without a trained token that must not count.
    sequences = [sequence(5, depth) for depth in (0, 0, 0, 1)] + [sequence(5, 1, trained=False)]
    batches = batching.pack(sequences, row_length=[4], rows=1)
    assert len(batches) == 4
    weights = [b.weights[0, 0] for b in batches]
    np.testing.assert_allclose(weights, [4 / (2 * 3)] * 3 + [4 / 2], rtol=1e-6)


def test_a_first_token_alone_trains_nothing():
    only_first = batching.Sequence(*(np.array([1, 0, 0]),) * 4)
    assert batching.pack([only_first], row_length=[4], rows=1) == []


def test_too_long_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="9 tokens fits no row of \\[4, 7\\]"):
        batching.pack([sequence(9)], row_length=[7, 4], rows=1)


def test_unequal_arrays_are_refused():
    with pytest.raises(ValueError, match="'advantages': 2"):
        batching.Sequence(np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(2))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 17), st.integers(0, 3)), min_size=1, max_size=30))
def test_every_token_appears_once_whatever_the_lengths(shapes):
    sequences = [sequence(n, depth, start=1000 * i) for i, (n, depth) in enumerate(shapes)]
    kept = [s for s in sequences if s.trained]
    batches = batching.pack(sequences, row_length=[8, 16], rows=3)
    packed = [
        tuple(b.targets[row][b.segment_ids[row] == segment])
        for b in batches
        for row in range(3)
        for segment in range(1, b.segment_ids[row].max() + 1)
    ]
    assert sorted(packed) == sorted(tuple(s.tokens[1:]) for s in kept)
    assert sum(b.mask.sum() for b in batches) == sum(s.trained for s in kept)
    for batch in batches:
        real = batch.segment_ids > 0
        np.testing.assert_array_equal(batch.tokens[real] + 1, batch.targets[real])


def node(name, depth, spans, length=12, logprobs=None):
    steps = [
        trees.Step("action", "", start=a, end=b, logprobs=logprobs or tuple(-0.1 * i for i in r))
        for a, b in spans
        for r in [range(a, b)]
    ]
    parent = name[:-2] or None
    return trees.Node(
        name, parent, depth, "", "finished", steps=tuple(steps), tokens=tuple(range(length))
    )


def test_from_trees_takes_generated_tokens_of_nodes_with_an_advantage():
    tree = trees.Tree("t", 1.0, (node("0", 0, [(4, 6), (9, 12)]), node("0.0", 1, [(2, 5)])))
    other = trees.Tree("u", 0.0, (node("0", 0, [(4, 6)]), node("0.0", 1, [(2, 5)])))
    out = batching.from_trees([tree, other], [{"0": 0.5, "0.0": -0.25}, {"0.0": 2.0}])
    assert [(s.depth, s.advantages[0]) for s in out] == [(0, 0.5), (1, -0.25), (1, 2.0)]
    assert list(np.flatnonzero(out[0].mask)) == [4, 5, 9, 10, 11]
    np.testing.assert_allclose(out[0].behavior_logprobs[9:], [-0.9, -1.0, -1.1], rtol=1e-6)
    assert not out[0].behavior_logprobs[6:9].any()


def test_logprobs_that_do_not_cover_their_tokens_are_refused():
    tree = trees.Tree("t", 1.0, (node("0", 0, [(4, 6)], logprobs=(-1.0,)),))
    with pytest.raises(ValueError, match="node 0, step 0: 1 log-probs for tokens 4:6"):
        batching.from_trees([tree], [{"0": 1.0}])


def test_idle_sequences_get_no_row_but_count():
    busy, idle = sequence(5, depth=0), sequence(9, depth=1)
    idle = dataclasses.replace(idle, advantages=np.zeros(9, np.float32))
    (batch,) = batching.pack([busy, idle], row_length=[16], rows=1, keep_idle=False)
    assert batch.mask.sum() == busy.trained
    # One sequence at each of two depths: both would weigh 1, and the one left still does.
    assert set(batch.weights[batch.mask]) == {1.0}
    assert batching.idle_tokens([busy, idle]) == idle.trained


def twins(*ends, prefix=5):
    """Sequences that begin with 0, 1, ... and go on from 100, 200, ...; ends are trained."""
    made = []
    for number, length in enumerate(ends, 1):
        tokens = np.r_[0:prefix, 100 * number : 100 * number + length].astype(np.int32)
        mask = np.arange(len(tokens)) >= prefix
        zeros = np.zeros(len(tokens), np.float32)
        made.append(batching.Sequence(tokens, mask, zeros, zeros + number))
    return made


def test_a_shared_prefix_lies_in_the_row_once():
    made = twins(2, 3, prefix=7)
    (batch,) = batching.pack(made, row_length=[12], rows=1, share_prefixes=True)
    # The last token before what is trained predicts two different ones: each has it for itself.
    assert batch.tokens[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 100, 6, 200, 201, 0]
    assert batch.targets[0].tolist() == [1, 2, 3, 4, 5, 6, 100, 101, 200, 201, 202, 0]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 0]
    assert batch.advantages[0, 6:11].tolist() == [1, 1, 2, 2, 2]
    assert np.flatnonzero(batch.mask[0]).tolist() == [6, 7, 8, 9, 10]
    shared = batch.shared
    assert shared.places[0, :17].tolist() == [*range(8), *range(6), 8, 9, 10]
    assert shared.segment_ids[0].tolist() == [1] * 8 + [2] * 9 + [0] * 7
    assert shared.homes[0, :11].tolist() == [*range(8), 14, 15, 16]


def test_nothing_is_shared_where_it_does_not_pay():
    for made in (twins(20, 30), [sequence(5, start=10 * n) for n in range(4)]):
        plain = batching.pack(made, row_length=[64], rows=1)
        asked = batching.pack(made, row_length=[64], rows=1, share_prefixes=True)
        assert asked[0].shared is None
        np.testing.assert_array_equal(asked[0].tokens, plain[0].tokens)


def test_groups_are_split_where_attention_has_no_room():
    made = twins(*[3] * 9, prefix=30)  # 32 places each in attention, 80 a row of 40
    batches = batching.pack(made, row_length=[40], rows=1, share_prefixes=True)
    assert all(batch.shared.segment_ids.max() <= 2 for batch in batches)
    assert sum(batch.mask.sum() for batch in batches) == 27


def test_rows_hold_no_more_segments_than_kernels_have_room_for():
    made = [sequence(3, start=10 * n) for n in range(batching.MAX_SEGMENTS + 1)]
    (batch,) = batching.pack(made, row_length=[1000], rows=2)
    assert batch.segment_ids.max(axis=1).tolist() == [batching.MAX_SEGMENTS, 1]
