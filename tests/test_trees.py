import dataclasses
import json

import pytest

from sera_jax import trees
from sera_jax.trees import Attempt, Call, Criterion, Node, Rubric, Score, Step, Tree


def node(name, *steps, **fields):
    parent = name.rpartition(".")[0] or None
    return Node(name, parent, name.count("."), f"goal of {name}", "finished", steps=steps, **fields)


def delegate(*children):
    return Step("delegate", "", children)


@pytest.fixture
def branching():
    """The root delegates twice, the second time with no child; 0.0 has two children of its own."""
    rubric = Rubric((Criterion("recipe", "is followed", 0.75), Criterion("report", "", 0.25)), "{}")
    action = Step(
        kind="action",
        text="take onion",
        observation="you take the onion",
        start=40,
        end=43,
        logprobs=(-0.5, -0.25, 0.0),
        versions=(("7", 2), ("8", 1)),
        order=3,
    )
    return Tree(
        task_id="easy-1",
        reward=1.0,
        nodes=(
            node("0", delegate("0.0", "0.1"), delegate(), Step("finish", "")),
            node("0.0", action, delegate("0.0.0"), delegate("0.0.1"), message="chopped"),
            node("0.0.0"),
            node("0.0.1", verified=False),
            node("0.1", rubric=rubric, score=Score(1, (1.0, 0.5), 0.9), tokens=(5, 6, 7)),
        ),
        info={"tier": "easy"},
    )


@pytest.fixture
def forked(branching):
    """0.1 was tried twice; the attempt that was not committed forked again below."""
    call = Call((1, 2, 3), 2, (-0.5,), (("7", 1),), "{}", 4)
    below = Attempt(1, "out_of_steps", nodes=(node("0.1@1.0@1"),))
    inner = node("0.1@1.0", attempts=(Attempt(0, "finished", verified=True), below), choice="tie")
    outer = node("0.1@1", delegate("0.1@1.0"), score_problem="not JSON")
    attempts = (
        Attempt(0, "finished", "done", True, Score(1, (1.0, 1.0))),
        Attempt(1, "finished", "done", False, nodes=(outer, inner)),
    )
    changes = {"attempts": attempts, "rubric_call": call, "rubric_problem": "x", "committed": 0}
    nodes = (*branching.nodes[:-1], dataclasses.replace(branching.nodes[-1], **changes))
    return dataclasses.replace(branching, nodes=nodes)


def test_attempts_are_kept_and_found_at_any_depth(forked):
    assert Tree.from_json(json.loads(json.dumps(forked.to_json()))) == forked
    assert names(forked.forked()) == ["0.1", "0.1@1.0"]
    assert names(forked.walk()) == ["0", "0.0", "0.0.0", "0.0.1", "0.1"]


def names(nodes):
    return [n.id for n in nodes]


def test_json_round_trip_keeps_everything(branching):
    assert Tree.from_json(json.loads(json.dumps(branching.to_json()))) == branching


def test_absent_and_null_optional_keys_get_their_empty_value():
    root = {"id": "0", "parent": None, "depth": 0, "goal": "", "status": "finished"}
    null = {"message": None, "verified": None, "rubric": None, "score": None}
    step = {"kind": "finish", "text": "done"}
    tree = Tree.from_json(
        {"task_id": "t", "reward": 1, "nodes": [{**root, **null, "steps": [step]}]}
    )
    assert tree.root == Node("0", None, 0, "", "finished", steps=(Step("finish", "done"),))
    assert tree.info == {} and isinstance(tree.reward, float)
    assert Tree.from_json({"task_id": "t", "reward": 0.0, "nodes": [root]}).root.steps == ()


def test_unknown_keys_are_ignored(branching):
    obj = branching.to_json()
    expected = Tree.from_json(obj)
    extended = {**obj, "viewer": {"colour": "red"}}
    extended["nodes"] = [{**n, "seconds": 1.5} for n in obj["nodes"]]
    extended["nodes"][0]["steps"] = [{**s, "extra": 1} for s in obj["nodes"][0]["steps"]]
    extended["nodes"][4]["score"] = {**obj["nodes"][4]["score"], "reason": "tidy"}
    assert Tree.from_json(extended) == expected


def test_walk_goes_parents_first_in_launch_order(branching):
    assert names(branching.walk()) == ["0", "0.0", "0.0.0", "0.0.1", "0.1"]
    assert names(branching.walk("0.0")) == ["0.0", "0.0.0", "0.0.1"]


def test_walk_follows_launches_and_not_the_order_of_the_list(branching):
    shuffled = dataclasses.replace(branching, nodes=tuple(reversed(branching.nodes)))
    assert names(shuffled.walk()) == names(branching.walk())
    assert shuffled.root.id == "0"


def test_leaves_are_nodes_that_launched_no_child(branching):
    assert names(branching.leaves()) == ["0.0.0", "0.0.1", "0.1"]
    assert names(branching.leaves("0.0")) == ["0.0.0", "0.0.1"]
    assert names(branching.leaves("0.1")) == ["0.1"]
    # An attempt to delegate that launched nobody leaves its node a leaf.
    assert names(Tree("t", 0.0, (node("0", delegate()),)).leaves()) == ["0"]


def test_children_are_direct_and_in_launch_order(branching):
    assert names(branching.children("0")) == ["0.0", "0.1"]
    assert names(branching.children("0.0")) == ["0.0.0", "0.0.1"]
    assert branching.children("0.1") == ()


def test_events_name_every_delegation_with_its_step(branching):
    events = [(event, n.id, step.children) for event, n, step in branching.events()]
    assert events == [
        ("0#0", "0", ("0.0", "0.1")),
        ("0#1", "0", ()),
        ("0.0#1", "0.0", ("0.0.0",)),
        ("0.0#2", "0.0", ("0.0.1",)),
    ]
    assert trees.event_id("0", 3) == "0#3"
