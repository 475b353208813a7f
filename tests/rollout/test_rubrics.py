"""Rubrics come before the work, scores after it; whatever cannot be read is no score."""

import json

import pytest
from rollout_fakes import STOP, CharacterPrompts, CountingWorld, generation, play

from sera_jax import rewards
from sera_jax.rollout import rubrics
from sera_jax.rollout.tree import RolloutError
from sera_jax.trees import Criterion, Rubric, Tree

UP = "<action>up</action>"


def delegate(*goals):
    return f"<delegate>{json.dumps({'delegations': [{'goal': goal} for goal in goals]})}</delegate>"


TWO = {"0": [UP, delegate("a", "b"), UP], "0.0": [UP, UP], "0.1": [UP, "<finish>b done</finish>"]}


def test_the_rubric_is_written_from_the_parents_context_before_the_child_starts():
    seen = []
    tree = play(TWO, graded=True, seen=seen, world=CountingWorld(9))
    root = tree.root
    delegating = root.steps[1]
    for node in tree.nodes[1:]:
        call = node.rubric_call
        assert delegating.order < call.order < node.steps[0].order
        # The parent's context up to its delegation, then the request; a prefix of no trajectory.
        prompt = CharacterPrompts().decode(call.tokens[: call.start])
        before = CharacterPrompts().decode(root.tokens[: delegating.end])
        assert prompt == f"{before}<rubric:{node.goal}>"
        assert call.tokens[: delegating.end] == root.tokens[: delegating.end]
        assert call.text == node.rubric.text == CharacterPrompts().decode(call.tokens[call.start :])
        assert len(call.logprobs) == len(call.tokens) - call.start
        assert call.versions == (("w0", len(call.logprobs)),)
        assert [c.weight for c in node.rubric.criteria] == [0.75, 0.25]
    assert root.rubric is None and root.rubric_call is None and root.score is None
    ungraded = play(TWO, world=CountingWorld(9))
    assert ungraded.root.tokens == root.tokens  # the calls leave no trace in a trajectory
    assert [s.temperature for s in seen if s.kind == "rubric"] == [1.0, 1.0]
    assert len({s.seed for s in seen}) == len(seen)
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_the_score_sees_rubric_child_and_the_world_before_and_after():
    seen = []
    tree = play(TWO, graded=True, seen=seen, world=CountingWorld(9))
    asked = {s.agent: s for s in seen if s.kind == "score"}
    assert set(asked) == {"0.0", "0.1"}
    situation = asked["0.0"]
    node = tree.by_id()["0.0"]
    assert (situation.temperature, situation.goal, situation.rubric) == (0.0, "a", node.rubric)
    assert situation.node.steps == node.steps
    assert (situation.before.count, situation.world.count) == (1, 4)  # b went up meanwhile
    assert CharacterPrompts().decode(situation.input_ids) == "a|1->4|2"
    assert rewards.execution_rewards(tree) == {"0": 0.0, "0.0": 0.875, "0.1": 0.875}
    info = tree.info
    assert (info["rubrics_written"], info["scores"], info["judge_calls"]) == (2, 2, 0)
    assert (info["rubrics_invalid"], info["scores_invalid"], info["forks"]) == (0, 0, 0)


def test_without_graders_nobody_is_asked():
    seen = []
    tree = play(TWO, seen=seen, world=CountingWorld(9))
    assert {s.kind for s in seen} == {"act"}
    assert tree.info["rubrics_written"] == tree.info["scores"] == 0


def test_what_cannot_be_read_is_counted_and_never_zero():
    answers = {
        **TWO,
        "rubric a": ["I would rather not"],
        "score 0.1": ['{"gate": 2, "criteria": [1, 1]}'],
    }
    seen = []
    tree = play(answers, graded=True, seen=seen, world=CountingWorld(9))
    first, second = tree.nodes[1:]
    assert first.rubric is None and first.score is None
    assert first.rubric_call.text == "I would rather not" and "no JSON" in first.rubric_problem
    assert second.rubric is not None and second.score is None and "gate" in second.score_problem
    assert [s.agent for s in seen if s.kind == "score"] == ["0.1"]
    counts = ("rubrics_written", "rubrics_invalid", "scores", "scores_invalid")
    assert [tree.info[name] for name in counts] == [1, 1, 0, 1]
    assert rewards.execution_rewards(tree) == {"0": 0.0}


def test_children_that_failed_by_rule_are_not_scored_and_get_zero():
    seen = []
    answers = {"0": [delegate("slow"), delegate("lost")], "0.0": ["?"] * 9, "0.1": ["?"] * 9}
    tree = play(answers, graded=True, seen=seen, max_steps=4)
    assert [n.status for n in tree.nodes[1:]] == ["out_of_steps"] * 2
    assert not [s for s in seen if s.kind == "score"]
    assert (tree.info["scores_by_rule"], tree.info["scores"]) == (2, 0)
    assert rewards.execution_rewards(tree) == {"0": 0.0, "0.0": 0.0, "0.1": 0.0}


def test_a_context_without_room_for_a_rubric():
    opening = len("[None|0|20]")
    full = opening + len(delegate("a")) + 1
    tree = play({"0": [delegate("a")]}, graded=True, context_length=full + len("<rubric:a>"))
    assert "no room" in tree.by_id()["0.0"].rubric_problem
    assert tree.by_id()["0.0"].rubric_call is None and tree.info["rubrics_invalid"] == 1
    for room, given in ((200, 90), (80, 80)):  # the configured length, cut to the room there is
        seen = []
        limits = dict(context_length=full + len("<rubric:a>") + room, rubric_tokens=90)
        play({"0": [delegate("a")]}, graded=True, seen=seen, **limits)
        assert [s.max_new_tokens for s in seen if s.kind == "rubric"] == [given]


def test_a_score_that_does_not_fit_is_invalid(monkeypatch):
    rooms = []
    monkeypatch.setattr(CharacterPrompts, "score", lambda self, *args: rooms.append(args[-1]))
    tree = play(TWO, graded=True, world=CountingWorld(9), rubric_tokens=500)
    assert (tree.info["scores_invalid"], tree.info["scores"]) == (2, 0)
    assert "no room" in tree.by_id()["0.0"].score_problem and rooms == [9_500] * 2


def test_one_global_rubric_for_every_goal():
    fixed = Rubric((Criterion("done", "", 1.0), Criterion("tidy", "", 0.0)))
    seen = []

    async def score(request):
        return rubrics.read_score('{"gate": 1, "criteria": [0.5, 1]}', 2)

    graders = rubrics.Graders(rubrics.global_rubric(fixed), score)
    tree = play(TWO, graded=graders, seen=seen, world=CountingWorld(9))
    assert {n.rubric for n in tree.nodes[1:]} == {fixed}
    assert {n.rubric_call for n in tree.nodes} == {None} and {s.kind for s in seen} == {"act"}
    assert rewards.execution_rewards(tree)["0.0"] == 0.5


@pytest.mark.parametrize(
    "failing, node",
    [({"rubric a": [ConnectionError("gone")]}, "0"), ({"score 0.1": [OSError("gone")]}, "0.1")],
)
def test_a_failed_call_gives_the_tree_up(failing, node):
    with pytest.raises(RolloutError, match=f"node {node} failed: no .*gone"):
        play({**TWO, **failing}, graded=True, world=CountingWorld(9))


def test_an_answer_that_cannot_be_trained_on_gives_the_tree_up():
    cut = generation("x", finish_reason="abort")
    with pytest.raises(RolloutError, match="abort"):
        play({**TWO, "rubric a": [cut]}, graded=True, world=CountingWorld(9))


def test_errors_of_other_graders_are_not_taken_for_the_policys():
    async def score(request):
        raise ZeroDivisionError

    graders = rubrics.Graders(rubrics.global_rubric(Rubric((Criterion("x", "", 1.0),) * 2)), score)
    with pytest.raises(ZeroDivisionError):
        play(TWO, graded=graders, world=CountingWorld(9))


def test_a_response_cut_at_its_limit_may_still_hold_a_rubric():
    text = '{"criteria": [{"name": "x", "weight": 1}, {"name": "y", "weight": 1}]} and then'
    cut = generation(text, stop=False, finish_reason="length")
    tree = play({"0": [delegate("a")], "rubric a": [cut]}, graded=True)
    call = tree.by_id()["0.0"].rubric_call
    assert STOP not in call.tokens[call.start :] and tree.info["rubrics_written"] == 1
