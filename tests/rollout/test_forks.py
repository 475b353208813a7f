"""Forks of rubric steps: clone, run B attempts, commit the first; 16 worlds a tree."""

import json

import pytest
from rollout_fakes import CountingWorld, play

from sera_jax import rewards
from sera_jax.rollout.tree import RolloutError
from sera_jax.trees import Tree

UP = "<action>up</action>"


def delegate(*goals):
    return f"<delegate>{json.dumps({'delegations': [{'goal': goal} for goal in goals]})}</delegate>"


def fork(answers, *, count=9, attempts=8, **kwargs):
    calls = []

    def judge(world, goal, agent):
        calls.append(agent)
        return world.count % 2 == 0

    world = CountingWorld(count)
    kwargs = dict(judge=judge, graded=True, world=world) | kwargs
    return play(answers, attempts=attempts, **kwargs), calls, world


def names(child, count=8):
    return [child, *(f"{child}@{i}" for i in range(1, count))]


def test_every_attempt_has_its_own_world_and_the_first_is_committed():
    ups = {name: [UP] * index for index, name in enumerate(names("0.0"))}
    ups["0.0"] = [UP] * 2
    seen = []
    tree, judged, given = fork({"0": [UP, delegate("a"), UP], **ups}, seen=seen)
    node = tree.by_id()["0.0"]
    assert tree.root.steps[1].children == ("0.0",) and len(tree.nodes) == 2
    assert [a.index for a in node.attempts] == list(range(8)) and node.committed == 0
    assert given.count == 1  # the world given was forked before it was worked on
    assert tree.root.steps[2].observation == "now 4"  # 1 up, 2 of attempt 0, 1 of the root
    assert [a.verified for a in node.attempts] == [
        (1 + n) % 2 == 0 for n in (2, 1, 2, 3, 4, 5, 6, 7)
    ]
    assert node.attempts[0].nodes == () and node.verified is False
    for index, attempt in enumerate(node.attempts[1:], start=1):
        (run,) = attempt.nodes
        assert run.id == f"0.0@{index}" and run.parent == "0" and run.depth == 1
        assert len(run.steps) == index + 1 and run.rubric == node.rubric
        assert (run.verified, run.score) == (attempt.verified, attempt.score)
        assert run.rubric_call is None and node.rubric_call.order < run.steps[0].order
    assert sorted(judged) == sorted(names("0.0"))
    worlds = {s.agent: s.world for s in seen if s.kind == "act" and s.agent != "0"}
    assert len({id(world) for world in worlds.values()}) == 8
    assert all(world.places[agent] == "0" for agent, world in worlds.items())
    assert all(world.agents == ["0", agent] for agent, world in worlds.items())
    assert len({s.seed for s in seen}) == len(seen)


def test_one_rubric_and_a_score_and_a_label_of_each_attempt():
    scores = {f"score {name}": [f'{{"gate": 1, "criteria": [0.{i}, 0.{i}]}}'] for i, name in
              enumerate(names("0.0"))}  # fmt: skip
    scores["score 0.0@3"] = ["?"]
    answers = {"0": [delegate("a")], **scores, "0.0@2": ["?"] * 9}
    tree, judged, _ = fork(answers, max_steps=4)
    node = tree.by_id()["0.0"]
    expected = [0.0, 0.1, 0.0, None, 0.4, 0.5, 0.6, 0.7]
    assert rewards.attempt_scores(node) == pytest.approx(expected)
    assert node.attempts[2].score is None and node.attempts[2].status == "out_of_steps"
    info = {key: tree.info[key] for key in ("rubrics_written", "scores", "scores_invalid")}
    assert info == {"rubrics_written": 1, "scores": 6, "scores_invalid": 1}
    assert (tree.info["scores_by_rule"], tree.info["judge_calls"], len(judged)) == (1, 8, 8)
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree
    assert list(tree.forked()) == [node]


def test_two_groups_fork_then_delegations_are_ordinary_and_not_graded():
    seen = []
    answers = {"0": [delegate("a"), delegate("b"), delegate("c", "d")]}
    tree, judged, _ = fork(answers, seen=seen)
    assert [len(n.attempts) for n in tree.nodes] == [0, 8, 8, 0, 0]
    assert (tree.info["forks"], tree.info["attempts"]) == (2, 16)
    assert tree.info["rubrics_written"] == 2 and tree.info["judge_calls"] == len(judged) == 16
    last = tree.by_id()["0.3"]
    assert last.rubric is None and last.verified is None and last.score is None
    assert [s.goal for s in seen if s.kind == "rubric"] == ["a", "b"]


def test_goals_of_one_step_take_turns_and_the_rest_runs_together():
    answers = {"0": [delegate("a", "b", "c", "d")], "0.0": [UP, UP], "0.1": [UP], "0.1@1": [UP] * 2}
    answers |= {"0.2": [UP, UP], "0.3": [UP, UP]}
    seen = []
    tree, _, _ = fork(answers, count=50, seen=seen)
    worlds = {s.agent: s.world for s in seen if s.kind == "act"}
    assert all(worlds[name].log == [] for name in names("0.0")[1:])
    done_by_first = [("0.0", "up"), ("0.0", "up")]  # "b" goes on from what it committed
    assert all(worlds[name].log[:2] == done_by_first for name in names("0.1"))
    assert worlds["0.1@1"].log[2:] == [("0.1@1", "up")] * 2
    last = [s.world for s in seen if s.agent == "0"][-1]
    alternating = [("0.2", "up"), ("0.3", "up")] * 2
    assert last.log == [("0.0", "up"), ("0.0", "up"), ("0.1", "up"), *alternating]
    assert tree.root.steps[0].children == ("0.0", "0.1", "0.2", "0.3")
    assert tree.info["world_actions"] == 7


def test_attempts_delegate_further_within_the_same_budget():
    deeper = {name: [UP, delegate("deeper"), UP] for name in names("0.0")}
    inside = {name: [UP] for name in [*names("0.0@2.0"), "0.0.0"]}
    tree, _, _ = fork({"0": [delegate("a"), UP, delegate("b")], **deeper, **inside}, count=99)
    assert tree.info["forks"] == 2
    outer, inner = tree.forked()
    assert outer.id == "0.0" and inner.parent in names("0.0") and len(inner.attempts) == 8
    # The committed attempt delegated too, and that is the tree's own.
    assert tree.by_id()["0.0.0"].parent == "0.0" and tree.by_id()["0.0"].committed == 0
    for attempt in outer.attempts[1:]:
        run, child = attempt.nodes
        assert run.steps[1].children == (child.id,) and child.parent == run.id
    assert tree.by_id()["0.1"].attempts == ()
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_the_cap_on_children_counts_along_the_committed_branch():
    deeper = {name: [delegate("deeper", "and deeper")] for name in names("0.0")}
    tree, _, _ = fork({"0": [delegate("a"), delegate("b")], **deeper}, max_children=3)
    assert [n.id for n in tree.nodes] == ["0", "0.0", "0.0.0", "0.0.1"]
    assert tree.root.steps[1].observation.startswith("cap") and tree.info["children"] == 3
    assert all(len(a.nodes) == 3 for a in tree.by_id()["0.0"].attempts[1:])


def test_without_a_rubric_there_is_nothing_to_rank():
    answers = {"0": [delegate("a"), delegate("b")], "rubric a": ["?"], "0.0": [UP]}
    tree, judged, world = fork(answers)
    first, second = tree.nodes[1:]
    assert first.attempts == () and first.rubric_problem and first.verified is None
    assert len(second.attempts) == 8 and judged[0] == "0.1"
    assert (tree.info["rubrics_invalid"], tree.info["forks"], tree.info["attempts"]) == (1, 1, 8)
    assert world.log == [("0.0", "up")]  # the world itself: there was no fork yet


def test_a_committed_end_of_the_world_ends_the_step():
    answers = {"0": [delegate("a", "b")], "0.0": [UP]}
    tree, _, _ = fork(answers, count=1)
    assert tree.reward == 1.0 and tree.info["forks"] == 1
    assert [n.status for n in tree.nodes] == ["done", "done", "done"]
    assert tree.by_id()["0.1"].steps == ()
    # An uncommitted one does not.
    tree, _, _ = fork({"0": [delegate("a")], "0.0@1": [UP]}, count=1)
    assert tree.reward == 0.0 and tree.root.status == "finished"
    assert tree.by_id()["0.0"].attempts[1].status == "done"


def test_a_failed_attempt_gives_the_tree_up():
    with pytest.raises(RolloutError, match="node 0.0@5 failed: gone") as raised:
        fork({"0": [delegate("a")], "0.0@5": [OSError("gone")]})
    assert raised.value.tree.by_id()["0.0"].attempts[5].status == "error"


def test_forks_without_graders_are_judged_only():
    tree, judged, _ = fork({"0": [delegate("a")]}, graded=False, attempts=3)
    assert len(tree.by_id()["0.0"].attempts) == len(judged) == 3
    assert tree.info["rubrics_written"] == tree.info["scores"] == 0
