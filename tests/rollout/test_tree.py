"""The recursion: who is launched, when, in which world; what is refused; who is judged."""

import asyncio
import dataclasses
import json

import pytest
from rollout_fakes import CharacterPrompts, CountingWorld, encode, generation, play

from sera_jax.rollout.tree import RolloutError
from sera_jax.trees import Tree

UP = "<action>up</action>"
BAD_JSON = '<delegate>{"goal": }</delegate>'


def delegate(*goals, **limits):
    if len(goals) == 1:
        return f"<delegate>{json.dumps({'goal': goals[0], **limits})}</delegate>"
    body = {"delegations": [{"goal": goal} for goal in goals], **limits}
    return f"<delegate>{json.dumps(body)}</delegate>"


def test_children_work_in_turn_in_the_shared_world_and_report():
    world = CountingWorld()
    answers = {
        "0": [delegate("first", "second"), delegate("third")],
        "0.0": [UP, UP, "<finish>two ups</finish>"],
        "0.1": [UP, UP],
        "0.2": ["nonsense"],
    }
    tree = play(answers, world=world)
    assert [n.id for n in tree.nodes] == ["0", "0.0", "0.1", "0.2"]
    assert [n.goal for n in tree.nodes] == ["", "first", "second", "third"]
    assert [(n.parent, n.depth) for n in tree.nodes[1:]] == [("0", 1)] * 3
    assert [s.children for s in tree.root.steps] == [("0.0", "0.1"), ("0.2",), ()]
    # The children of one step alternate; the parent goes on when all of them have ended.
    assert world.log == [("0.0", "up"), ("0.1", "up"), ("0.0", "up"), ("0.1", "up")]
    assert world.agents == ["0", "0.0", "0.1", "0.2"]
    assert tree.root.steps[0].observation == (
        "children:[('first', 'two ups', 'finished'), ('second', 'over', 'finished')]"
    )
    orders = {node.id: [step.order for step in node.steps] for node in tree.nodes}
    assert orders["0"][0] == 0 and orders["0.0"] == [1, 3, 5] and orders["0.1"] == [2, 4, 6]
    assert sorted(sum(orders.values(), [])) == list(range(tree.info["steps"]))
    assert tree.info["children"] == 3
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree


def test_a_child_without_a_message_says_how_it_ended():
    answers = {"0": [delegate("slow", max_steps=2)], "0.0": [UP, UP, UP]}
    tree = play(answers)
    assert tree.by_id()["0.0"].status == "out_of_steps"
    assert tree.root.steps[0].observation == "children:[('slow', None, 'out_of_steps')]"


@pytest.mark.parametrize("asked, given", [(2, 2), (None, 4), (50, 4)])
def test_delegated_steps_can_only_lower_the_limit(asked, given):
    limits = {} if asked is None else {"max_steps": asked}
    tree = play({"0": [delegate("a", **limits)], "0.0": ["x"] * 9}, max_steps=4)
    child = tree.by_id()["0.0"]
    assert len(child.steps) == given
    assert CharacterPrompts().decode(child.tokens).startswith(f"[a|0.0|{given}]")


def test_depth_three_is_the_deepest():
    seen = []
    nodes = ["0", "0.0", "0.0.0", "0.0.0.0"]
    tree = play({node: [delegate("deeper")] for node in nodes}, seen=seen)
    assert [n.id for n in tree.nodes] == nodes
    last = tree.by_id()["0.0.0.0"]
    assert (last.depth, last.steps[0].kind, last.steps[0].children) == (3, "delegate", ())
    assert last.steps[0].observation == "depth:"
    assert {s.agent: s.can_delegate for s in seen} == dict(
        zip(nodes, [True, True, True, False], strict=True)
    )


@pytest.mark.parametrize(
    "answer, limits, notice",
    [
        (BAD_JSON, {}, "invalid:the delegation is not valid JSON"),
        (delegate(" "), {}, "invalid:the goal is empty"),
        (delegate("a", max_steps=0), {}, "invalid:"),
        (delegate("a"), {"delegation": False}, "delegation_off:"),
        (delegate("a"), {"max_depth": 0}, "depth:"),
    ],
)
def test_a_delegation_that_launches_nothing_is_still_an_event(answer, limits, notice):
    tree = play({"0": [UP, answer]}, **limits)
    assert [(event, step.children) for event, _, step in tree.events()] == [("0#1", ())]
    assert tree.root.steps[1].observation.startswith(notice)
    assert tree.root.is_leaf and tree.root.status == "finished"


def test_the_cap_counts_all_children_and_launches_the_first_that_fit():
    seen = []
    answers = {"0": [delegate("a"), delegate("b", "c"), delegate("d")], "0.0": [delegate("e")]}
    tree = play(answers, max_children=3, seen=seen)
    assert [n.goal for n in tree.nodes] == ["", "a", "e", "b"]
    assert [s.children for s in tree.root.steps] == [("0.0",), ("0.1",), (), ()]
    assert tree.root.steps[1].observation == "children:[('b', 'over', 'finished')]\ncap:"
    assert tree.root.steps[2].observation == "cap:"
    assert [s.can_delegate for s in seen if s.agent == "0"] == [True, True, False, False]


def test_nobody_is_launched_into_a_world_that_has_ended():
    async def respond(situation):
        situation.world.count = 5
        return generation(delegate("a"))

    tree = play(respond)
    assert (len(tree.nodes), tree.root.status, tree.reward) == (1, "done", 1.0)
    assert tree.root.steps[0].kind == "delegate"


def test_the_world_ending_ends_everybody():
    answers = {"0": [delegate("a", "b")], "0.0": [UP] * 9, "0.1": [UP] * 9}
    tree = play(answers)
    assert {n.status for n in tree.nodes} == {"done"}
    assert tree.reward == 1.0 and tree.root.verified is True


def test_a_last_step_whose_children_end_the_world_is_not_out_of_steps():
    tree = play({"0": [delegate("a")], "0.0": [UP]}, world=CountingWorld(1), max_steps=1)
    assert [n.status for n in tree.nodes] == ["done", "done"]


def test_every_child_is_judged_once_when_it_ends():
    calls = []

    def judge(world, goal, agent):
        calls.append((goal, agent, world.count))
        return {"a": True, "b": False}.get(goal)

    answers = {"0": [delegate("a", "b"), delegate("c")], "0.0": [UP], "0.2": [UP], "0.1": ["x"] * 3}
    tree = play(answers, judge=judge)
    assert calls == [("a", "0.0", 1), ("b", "0.1", 1), ("c", "0.2", 2)]
    assert [n.verified for n in tree.nodes] == [False, True, False, None]
    assert [n.verified for n in play(answers).nodes] == [False, None, None, None]

    async def slow_judge(world, goal, agent):
        await asyncio.sleep(0)
        return True

    assert [n.verified for n in play(answers, judge=slow_judge).nodes] == [False] + [True] * 3


def test_a_failed_child_gives_the_tree_up():
    judged = []
    answers = {
        "0": [delegate("a", "b")],
        "0.0": [UP, ConnectionError("gone")],
        "0.1": [UP, UP, UP, UP],
    }
    with pytest.raises(RolloutError, match="node 0.0 failed: gone") as raised:
        play(answers, judge=lambda *call: judged.append(call))
    tree = raised.value.tree
    assert {n.status for n in tree.nodes} == {"error"} and judged == []
    assert len(tree.by_id()["0.0"].steps) == 1
    assert "given up" in tree.by_id()["0.1"].error and "given up" in tree.root.error
    assert tree.root.steps[0].children == ("0.0", "0.1")


def test_a_tree_is_a_function_of_its_answers():
    answers = {"0": [delegate("a", "b", "c")], "0.0": [UP, delegate("d")], "0.1": ["?", UP]}
    first, second = (play(answers, seen=seen) for seen in ([], []))
    assert first == second
    seeds = [], []
    play(answers, seen=seeds[0]), play(answers, seen=seeds[1])
    assert [s.seed for s in seeds[0]] == [s.seed for s in seeds[1]]
    assert len({s.seed for s in seeds[0]}) == len(seeds[0])
    assert dataclasses.replace(first, info={}) != dataclasses.replace(play({}), info={})


def test_a_goal_the_world_refuses_sends_nobody_and_says_why():
    world = CountingWorld()
    tree = play({"0": [delegate("first", "dance")]}, world=world)
    assert world.agents == ["0"] and world.goals == {"0": None}
    step = tree.root.steps[0]
    assert (step.kind, step.children) == ("delegate", ())
    assert step.observation == "invalid:count up or down"


def test_children_join_with_their_goals():
    world = CountingWorld()
    play({"0": [delegate("first", "second")]}, world=world)
    assert world.goals == {"0": None, "0.0": "first", "0.1": "second"}


def test_success_counts_when_the_world_ends_or_the_root_finishes():
    @dataclasses.dataclass
    class Patient(CountingWorld):
        """Goes on when it has succeeded."""

        done = False

    for answers, reward in ((["x", "x"], 0.0), (["x"], 1.0)):
        tree = play({"0": answers}, world=Patient(target=0), max_steps=2)
        assert (tree.reward, tree.root.verified) == (reward, bool(reward))
    assert play({"0": [UP]}, world=CountingWorld(target=1), max_steps=1).reward == 1.0


def test_a_child_is_told_the_context_of_its_goal():
    seen = []
    goals = '{"delegations": [{"goal": "a", "context": "up thrice"}, {"goal": "b"}]}'
    play({"0": [f"<delegate>{goals}</delegate>"]}, seen=seen)
    first = {s.agent: s.input_ids for s in seen if s.step == 0}
    assert first["0.0"] == tuple(encode("[a|0.0|20]up thrice"))
    assert first["0.1"] == tuple(encode("[b|0.1|20]"))
