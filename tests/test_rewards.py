import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sera_jax import rewards
from sera_jax.trees import Attempt, Node, Rubric, Score, Step, Tree

RUBRIC = {
    "criteria": [
        {"name": "recipe", "description": "follows it", "weight": 3.0},
        {"name": "report", "description": "says what was done", "weight": 1.0},
    ]
}


SCORE = {"gate": 1, "criteria": [1.0, 0.5], "stated": 0.9}


def node(name, status="finished", message="done", rubric=RUBRIC, score=SCORE, **fields):
    """A finished child with a rubric of weights 3 and 1, so its score is 0.75 * 1 + 0.25 * 0.5."""
    return Node(
        id=name,
        parent=name.rpartition(".")[0] or None,
        depth=name.count("."),
        goal="cut the onion",
        status=status,
        message=message,
        rubric=rubric and Rubric.from_json(rubric),
        score=score and Score.from_json(score),
        **fields,
    )


def delegate(*children):
    return Step("delegate", "", tuple(children))


def tree(*nodes, reward=1.0):
    return Tree("task", reward, nodes)


def one_child(**fields):
    return tree(node("0", steps=(delegate("0.0"),)), node("0.0", **fields))


def test_attempts_are_scored_by_the_one_rubric():
    attempts = [
        Attempt(0, "finished", "done", True, Score(1, (1.0, 0.5))),
        Attempt(1, "finished", "done", False, Score(1, (0.0, 1.0), 0.5)),
        Attempt(2, "out_of_steps", None, False),
        Attempt(3, "finished", "done", True, None),
        Attempt(4, "finished", " ", True, None),
    ]
    forked = node("0.0", attempts=tuple(attempts))
    assert rewards.attempt_scores(forked) == [0.875, 0.25, 0.0, None, 0.0]
    assert rewards.attempt_scores(forked, "stated") == [None, 0.5, 0.0, None, 0.0]


def test_rubric_score_is_a_gated_weighted_sum():
    assert rewards.rubric_score(1, [0.5, 0.3, 0.2], [1.0, 0.5, 0.0]) == pytest.approx(0.65)
    assert rewards.rubric_score(0, [0.5, 0.3, 0.2], [1.0, 0.5, 0.0]) == 0.0


def test_rubric_score_normalises_weights():
    assert rewards.rubric_score(1, [3, 1], [1.0, 0.5]) == pytest.approx(0.875)
    assert rewards.rubric_score(1, [1e308, 1e308], [1.0, 0.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "weights", [[0, 0], [], [1, -1], [0.5, math.nan], [0.5, math.inf], [[0.5, 0.5]]]
)
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        rewards.rubric_score(1, weights, [1.0, 1.0])


@pytest.mark.parametrize(
    ("gate", "criteria"), [(2, [1, 1]), (0.5, [1, 1]), (1, [1]), (1, [1.2, 0]), (1, [math.nan, 0])]
)
def test_bad_scores_are_refused(gate, criteria):
    with pytest.raises(ValueError):
        rewards.rubric_score(gate, [0.5, 0.5], criteria)


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1)), min_size=1, max_size=8))
def test_rubric_score_stays_in_the_unit_interval(pairs):
    weights, criteria = zip(*pairs, strict=True)
    assert 0.0 <= rewards.rubric_score(1, weights, criteria) <= 1.0


def test_execution_rewards_take_the_world_at_the_root_and_the_rubric_below():
    got = rewards.execution_rewards(one_child())
    assert got == pytest.approx({"0": 1.0, "0.0": 0.875})


def test_stated_totals_replace_the_weighted_sum_behind_the_same_gate():
    stated = rewards.execution_rewards(one_child(), score_source="stated")
    assert stated["0.0"] == pytest.approx(0.9)
    gated = one_child(score={"gate": 0, "criteria": [1.0, 0.5], "stated": 0.9})
    assert rewards.execution_rewards(gated, score_source="stated")["0.0"] == 0.0
    unstated = one_child(score={"gate": 1, "criteria": [1.0, 0.5]})
    assert "0.0" not in rewards.execution_rewards(unstated, score_source="stated")
    with pytest.raises(ValueError, match="score_source"):
        rewards.execution_rewards(one_child(), score_source="total")


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "out_of_steps"},
        {"status": "out_of_context"},
        {"status": "error"},
        {"message": None},
        {"message": " \n"},
        {"status": "out_of_steps", "score": None},
        {"status": "error", "rubric": None, "score": None},
    ],
)
def test_children_that_failed_by_rule_score_zero(fields):
    assert rewards.execution_rewards(one_child(**fields))["0.0"] == 0.0


def test_children_cut_short_by_the_worlds_end_are_scored():
    got = rewards.execution_rewards(one_child(status="done", message=None))
    assert got["0.0"] == pytest.approx(0.875)


def weights(*values):
    return {"criteria": [{"name": "c", "description": "", "weight": v} for v in values]}


@pytest.mark.parametrize(
    "fields",
    [
        {"rubric": None},
        {"score": None},
        {"rubric": weights(1.0), "score": {"gate": 1, "criteria": [1.0]}},  # two criteria at least
        {"rubric": weights(0.0, 0.0)},
        {"rubric": weights(1.0, -0.5)},
        {"rubric": weights(1.0, math.nan)},
        {"score": {"gate": 1, "criteria": [1.0]}},
        {"score": {"gate": 1, "criteria": [1.0, None]}},
        {"score": {"gate": 3, "criteria": [1.0, 0.5]}},
        {"score": {"gate": None, "criteria": [1.0, 0.5]}},
    ],
)
def test_unusable_rubrics_and_scores_leave_no_key(fields):
    assert rewards.execution_rewards(one_child(**fields)) == {"0": 1.0}


def test_the_root_has_its_reward_whatever_its_status():
    failed = tree(node("0", status="out_of_steps", rubric=None, score=None), reward=0.0)
    assert rewards.execution_rewards(failed) == {"0": 0.0}


def three_verdicts():
    root = node("0", steps=(delegate("0.0", "0.1"), delegate("0.2")), verified=False)
    children = (node(f"0.{i}", verified=v) for i, v in enumerate((True, False, None)))
    return tree(root, *children)


def test_verified_rewards_are_outcomes_and_the_worlds_at_the_root():
    assert rewards.verified_rewards(three_verdicts()) == {"0": 1.0, "0.0": 1.0, "0.1": 0.0}


def test_child_bonus_adds_the_mean_outcome_of_direct_children():
    got = rewards.verified_rewards(three_verdicts(), child_bonus=0.4)
    assert got == pytest.approx({"0": 1.2, "0.0": 1.0, "0.1": 0.0})


def branching(reward=1.0):
    """Leaves: 0.0.0, 0.0.1 and 0.1 below the first event of the root, 0.2 below the second."""
    return tree(
        node("0", steps=(delegate("0.0", "0.1"), delegate(), delegate("0.2"))),
        node("0.0", steps=(Step("action", "look"), delegate("0.0.0", "0.0.1"))),
        node("0.1"), node("0.2"), node("0.0.0"), node("0.0.1"),
        reward=reward,
    )  # fmt: skip


def test_leaf_coverage_by_hand():
    got = rewards.leaf_coverage(branching())
    assert got == pytest.approx({"0#0": 0.75, "0#1": 0.0, "0#2": 0.25, "0.0#1": 0.5})


def test_leaf_coverage_of_failed_and_of_lone_trees():
    assert set(rewards.leaf_coverage(branching(reward=0.0)).values()) == {0.0}
    assert rewards.leaf_coverage(tree(node("0"))) == {}
    assert rewards.leaf_coverage(tree(node("0", steps=(delegate(),)))) == {"0#0": 0.0}


def test_ranking_reward_by_hand():
    # Pairs: 0.9-0.3 and 0.9-0.8 (short of the margin by 0.1), 0.5-0.3 and 0.5-0.8 (by 0.5).
    got = rewards.ranking_reward([0.9, 0.5, 0.3, 0.8], [True, True, False, False])
    assert got == pytest.approx(-(0.1 + 0.5) / 4)


def test_ranking_reward_is_bounded():
    assert rewards.ranking_reward([1.0, 0.0], [1, 0]) == 0.0
    assert rewards.ranking_reward([0.0, 1.0], [1, 0]) == pytest.approx(-1.2)
    assert rewards.ranking_reward([0.5, 0.5], [1, 0], margin=0.3) == pytest.approx(-0.3)


BOTH = (rewards.ranking_reward, rewards.ranking_discrimination_reward)


@pytest.mark.parametrize("reward", BOTH)
def test_no_mixed_pair_is_no_signal(reward):
    assert reward([0.9, 0.1], [True, True]) is None
    assert reward([0.9, 0.1], [False, False]) is None
    assert reward([], []) is None


@pytest.mark.parametrize("reward", BOTH)
def test_attempts_without_score_or_verdict_are_dropped(reward):
    scores, outcomes = [0.9, None, 0.2, math.nan, 0.4], [True, False, None, True, False]
    assert reward(scores, outcomes) == pytest.approx(reward([0.9, 0.4], [True, False]))
    assert reward([0.9, None], [True, False]) is None


def test_ranking_discrimination_reward_by_hand():
    # Gaps 0.6, 0.1, 0.2, -0.3 over 0.2, clipped: 1, 0.5, 1, 0. Population variance 0.056875.
    got = rewards.ranking_discrimination_reward([0.9, 0.5, 0.3, 0.8], [1, 1, 0, 0])
    assert got == pytest.approx(0.5 * 2.5 / 4 + 0.5 * 2 * math.sqrt(0.056875))


def test_ranking_discrimination_reward_is_bounded():
    assert rewards.ranking_discrimination_reward([1.0, 0.0], [1, 0]) == pytest.approx(1.0)
    assert rewards.ranking_discrimination_reward([0.5, 0.5], [1, 0]) == 0.0
