"""The figures of a step that reports need, on trees small enough to count by hand."""

import dataclasses

import pytest
import report_records

from sera_jax.report.measures import measures


def test_success_is_counted_by_tier():
    trees = [report_records.plain_tree(0, n, reward) for n, reward in enumerate((1.0, 0.0, 0.0))]
    assert measures(trees, [])["by_tier"] == {
        "medium": {"trees": 2, "successes": 1},
        "easy": {"trees": 1, "successes": 0},
    }


def test_drift_compares_scores_and_outcomes_of_the_same_children():
    # 0.0 has both: s = 0.5 * 1 + 0.3 * 0.8 + 0.2 * 0.5; 0.1 has no rubric.
    drift = measures([report_records.plain_tree(0, 0, 1.0)], [])["drift"]
    assert drift == {"1": {"nodes": 1, "score": pytest.approx(0.84), "verified": 1.0}}


def test_attempts_of_a_fork_count_in_place_of_the_committed_child():
    drift = measures([report_records.forked_tree(0)], [])["drift"]["1"]
    # The last attempt ran out of context: 0 by rule, and it failed.
    assert drift["nodes"] == 8 and drift["verified"] == 0.5
    assert drift["score"] == pytest.approx((0.9 + 0.2 + 0.75 + 0.3 + 0.8 + 0.1 + 0.35) / 8)


def test_children_without_a_verdict_are_left_out():
    tree = report_records.plain_tree(0, 0, 1.0)
    nodes = [dataclasses.replace(node, verified=None) for node in tree.nodes]
    assert "drift" not in measures([dataclasses.replace(tree, nodes=tuple(nodes))], [])


def test_ranking_is_over_forked_groups():
    ranking = measures([report_records.forked_tree(0)], [])["ranking"]
    assert ranking["groups"] == 1 and ranking["pairwise_accuracy"] == 1.0
    # Of 4 x 4 pairs, 0.35 beats 0.3 and 0.2 by less than 0.2.
    assert ranking["margin_satisfaction"] == pytest.approx(14 / 16)


def test_spread_of_advantages():
    spread = measures([], [{"0": -1.0, "0.0": 0.0}, {"0": 1.0, "0.0": 0.0}])["advantages"]
    assert spread["mean"] == 0.0 and spread["zero"] == 0.5
    assert -1 < spread["p05"] < 0 < spread["p95"] < 1


def test_nothing_gives_nothing():
    assert measures([], []) == {}
