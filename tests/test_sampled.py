import pytest
from test_trees import branching, forked  # noqa: F401

from sera_jax import sampled
from sera_jax.sampled import Sampled


@pytest.fixture
def half(branching, forked):  # noqa: F811
    usage = {"child": {"calls": 2, "disputed": 1}}
    return Sampled([[branching, forked], []], usage, {"requests": 7, "seconds_waited": 0.5}, 3.0)


def test_trees_of_a_checkpoint_are_those_that_were_saved(half):
    again = Sampled.from_text(half.to_text())
    assert again == half and again.trees == half.groups[0]


def test_shares_of_processes_are_joined_in_the_order_of_the_tasks(half, branching):  # noqa: F811
    other = Sampled([[branching]], {"attempt": {"calls": 4}}, {"requests": 1}, 5.0)
    both = sampled.joined([half, other])
    assert both.groups == [half.groups[0], other.groups[0], half.groups[1]]
    assert both.supervision == {"child": {"calls": 2, "disputed": 1}, "attempt": {"calls": 4}}
    assert both.client == {"requests": 8, "seconds_waited": 0.5}
    assert both.seconds == 5.0
