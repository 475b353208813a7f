import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sera_jax import advantages
from sera_jax.trees import Node, Tree


def tree(reward):
    """A lone root: baselines read nothing else of a tree."""
    return Tree("task", reward, (Node("0", None, 0, "goal", "finished"),))


def test_leave_one_out_by_hand():
    np.testing.assert_allclose(advantages.leave_one_out([1, 0]), [1, -1])
    np.testing.assert_allclose(advantages.leave_one_out([1, 0, 0.5]), [0.75, -0.75, 0.0])


def test_leave_one_out_of_one_or_no_value():
    np.testing.assert_array_equal(advantages.leave_one_out([0.7]), [0.0])
    assert advantages.leave_one_out([]).shape == (0,)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_leave_one_out_sums_to_zero(values):
    assert advantages.leave_one_out(values).sum() == pytest.approx(0, abs=1e-9)


def test_two_trees_have_root_advantages_of_plus_and_minus_one():
    got = advantages.execution_advantages([tree(1.0), tree(0.0)], [{"0": 1.0}, {"0": 0.0}])
    assert got == [{"0": 1.0}, {"0": -1.0}]


def test_every_node_of_a_tree_shares_the_baseline_of_the_other_roots():
    trees = [tree(1.0), tree(0.0), tree(1.0)]
    rewards = [{"0": 1.0, "0.0": 0.25}, {"0": 0.0, "0.0": 0.75}, {"0": 1.0}]
    first, second, third = advantages.execution_advantages(trees, rewards)
    assert first == pytest.approx({"0": 0.5, "0.0": -0.25})
    assert second == pytest.approx({"0": -1.0, "0.0": -0.25})
    assert third == pytest.approx({"0": 0.5})


def test_a_good_child_of_a_failed_tree_is_reinforced():
    got = advantages.execution_advantages([tree(0.0)] * 2, [{"0": 0.0, "0.0": 0.9}, {"0": 0.0}])
    assert got[0]["0.0"] == pytest.approx(0.9)


def test_decomposition_baseline_is_the_mean_of_the_other_trees_means():
    # Mean coverages: 0.5, 0 (it delegated nothing), 0.2.
    coverage = [{"0#0": 0.75, "0#2": 0.25}, {}, {"0#1": 0.2}]
    first, second, third = advantages.decomposition_advantages([tree(1.0)] * 3, coverage)
    assert first == pytest.approx({"0#0": 0.65, "0#2": 0.15})
    assert second == {}
    assert third == pytest.approx({"0#1": -0.05})


@pytest.mark.parametrize(
    "credit",
    [
        advantages.execution_advantages,
        advantages.decomposition_advantages,
        advantages.group_normalised_advantages,
    ],
)
def test_one_tree_gives_no_gradient(credit):
    assert credit([tree(1.0)], [{"0": 1.0}]) == [{}]
    assert credit([], []) == []


def test_group_normalised_by_hand():
    # R = (1, 0, 0, 1): mean 0.5, population std 0.5.
    trees = [tree(r) for r in (1.0, 0.0, 0.0, 1.0)]
    got = advantages.group_normalised_advantages(trees, [{"0": t.reward} for t in trees])
    assert [a["0"] for a in got] == pytest.approx([1, -1, -1, 1], abs=1e-5)


def test_group_normalised_of_equal_rewards_is_zero():
    got = advantages.group_normalised_advantages([tree(1.0)] * 3, [{"0": 1.0}] * 3)
    assert got == [{"0": 0.0}] * 3


def test_rubric_advantages_skip_unusable_events():
    got = advantages.rubric_advantages([-0.2, None, -0.6])
    assert got == [pytest.approx(0.4), None, pytest.approx(-0.4)]
    assert advantages.rubric_advantages([-0.2, None]) == [None, None]
    assert advantages.rubric_advantages([]) == []


def test_rubric_advantages_within_tasks():
    got = advantages.rubric_advantages([-0.2, -0.6, -1.0], groups=["a", "a", "b"])
    assert got == [pytest.approx(0.4), pytest.approx(-0.4), None]


def test_depth_weights_by_hand():
    # Four roots, one child, one grandchild: 6 / (3 * 4) and 6 / (3 * 1).
    weights = advantages.depth_weights([0, 0, 0, 0, 1, 2])
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.5, 0.5, 2.0, 2.0])
    np.testing.assert_array_equal(advantages.depth_weights([0, 0]), [1, 1])
    assert advantages.depth_weights([]).shape == (0,)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_depth_weights_have_mean_one_and_equal_depth_totals(depths):
    weights = advantages.depth_weights(depths)
    assert weights.mean() == pytest.approx(1)
    totals = [weights[np.asarray(depths) == depth].sum() for depth in set(depths)]
    np.testing.assert_allclose(totals, totals[0])
