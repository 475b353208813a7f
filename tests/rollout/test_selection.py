"""Selection at inference: the best of N candidates by one rubric, or by a judge."""

import json

import pytest
from rollout_fakes import CountingWorld, play

from sera_jax.rollout import selection
from sera_jax.trees import Tree

UP = "<action>up</action>"


def delegate(*goals):
    return f"<delegate>{json.dumps({'delegations': [{'goal': goal} for goal in goals]})}</delegate>"


def graded(**scores):
    return {
        f"score {name.replace('_', '.')}": [f'{{"gate": 1, "criteria": [{s}, {s}]}}']
        for name, s in scores.items()
    }


def select(answers, *, candidates=2, **kwargs):
    kwargs = {"graded": True, "world": CountingWorld(50), "temperature": 0.0} | kwargs
    return play(answers, candidates=candidates, **kwargs)


@pytest.mark.parametrize(
    "scores, expected",
    [
        ([0.2, 0.9], (1, "best score")),
        ([0.9, 0.2], (0, "best score")),
        ([0.5, 0.5], (0, "tie")),
        ([0.1, 0.5, 0.5], (1, "tie")),
        ([None, 0.9], (0, "a score is unusable")),
        ([0.3], (0, "best score")),
    ],
)
def test_the_best_score_or_the_first(scores, expected):
    assert selection.best(scores) == expected


def test_the_best_candidate_is_committed_with_all_below_it():
    answers = {"0": [delegate("a"), UP, delegate("b")], "0.0": [UP] * 2}
    answers |= {"0.0@1": [UP, delegate("deeper"), "<finish>better</finish>"]}
    answers |= {"0.0@1.0@1": [UP] * 4}
    answers |= {"score 0.0": ['{"gate": 1, "criteria": [0, 0]}']}
    answers |= {"score 0.0@1.0": ['{"gate": 0, "criteria": [1, 1]}']}
    seen = []
    tree = select(answers, seen=seen)
    assert [n.id for n in tree.nodes] == ["0", "0.0@1", "0.0@1.0@1", "0.1"]
    chosen = tree.by_id()["0.0@1"]
    assert (chosen.committed, chosen.choice, chosen.message) == (1, "best score", "better")
    assert chosen.attempts[1].nodes == () and chosen.attempts[0].nodes[0].id == "0.0"
    assert tree.root.steps[0].children == ("0.0@1",) and "better" in tree.root.steps[0].observation
    assert tree.root.steps[1].observation == "now 6"  # 1 + 4 of the chosen ones, then its own
    assert tree.info["world_actions"] == 6
    assert (tree.info["selections"], tree.info["candidates"]) == (3, 6)
    assert tree.info["rubrics_written"] == 3 and tree.info["scores"] == 6
    assert tree.by_id()["0.1"].choice == "tie"
    assert {s.temperature for s in seen if s.kind == "act" and s.agent == "0"} == {0.0}
    assert {s.temperature for s in seen if s.kind == "act" and s.agent != "0"} == {1.0}
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_goals_of_one_step_are_resolved_in_order():
    seen = []
    answers = {"0": [delegate("a", "b")], "0.0": [UP], "0.0@1": [UP] * 3}
    select(answers | graded(**{"0_0": 0.1}), seen=seen)
    worlds = {s.agent: s.world for s in seen if s.kind == "act"}
    assert worlds["0.0"].log == [("0.0", "up")]
    assert worlds["0.1"].log == worlds["0.1@1"].log == [("0.0@1", "up")] * 3


def test_what_cannot_be_compared_is_the_first_and_says_why():
    answers = {"0": [delegate("a"), delegate("b"), delegate("c")], "rubric b": ["?"]}
    seen = []
    tree = select(answers | {"score 0.0": ["?"]}, seen=seen)
    first, second, third = tree.nodes[1:]
    assert (first.id, first.choice) == ("0.0", "a score is unusable")
    assert (second.id, second.choice, second.attempts) == ("0.1", "no usable rubric", ())
    assert (third.id, third.choice) == ("0.2", "tie")
    assert tree.info["candidates"] == 5


def test_a_candidate_that_failed_by_rule_loses_without_a_call():
    tree = select({"0": [delegate("a")], "0.0": ["?"] * 9}, max_steps=4)
    assert tree.nodes[1].id == "0.0@1" and tree.info["scores_by_rule"] == 1


def test_past_the_budget_the_work_is_left_to_the_agent():
    seen = []
    answers = {"0": [delegate("a", "b", "c"), delegate("d")], "0.0": [delegate("deeper")]}
    tree = select(answers, seen=seen, candidate_budget=5)
    assert tree.info["candidates"] == 4 and len(list(tree.forked())) == 2
    assert [len(s.children) for s in tree.root.steps] == [1, 0, 0]
    assert tree.root.steps[0].observation.endswith("cap:")
    assert tree.root.steps[1].observation == "cap:"
    assert tree.info["children"] == 2 and tree.info["candidates_refused"] == 2
    assert [s.can_delegate for s in seen if s.agent == "0" and s.kind == "act"] == [
        True, False, False,
    ]  # fmt: skip


def test_with_a_judge_alone_the_first_success_wins():
    asked = []

    def judge(world, goal, agent):
        asked.append(agent)
        return world.count >= 1

    answers = {"0": [delegate("a"), delegate("b")], "0.0@1": [UP]}
    tree = select(answers, candidates=3, graded=False, judge=judge)
    first, second = tree.nodes[1:]
    assert (first.id, first.choice, first.verified) == ("0.0@1", "first success", True)
    assert [a.verified for a in first.attempts] == [False, True, None]
    assert (second.id, second.choice) == ("0.1", "first success")
    assert asked == ["0.0", "0.0@1", "0.1"] and tree.info["judge_calls"] == 3
    assert tree.info["rubrics_written"] == 0
    tree = select({"0": [delegate("a")]}, graded=False, judge=lambda *call: None)
    assert (tree.nodes[1].id, tree.nodes[1].choice) == ("0.0", "no success")


def test_one_candidate_is_plain_evaluation():
    answers = {"0": [delegate("a", "b")], "0.0": [UP], "0.1": [UP]}
    plain = play(answers, world=CountingWorld(50))
    assert select(answers, candidates=1, graded=False, temperature=1.0) == plain
    assert plain.info["selections"] == plain.info["rubrics_written"] == 0
