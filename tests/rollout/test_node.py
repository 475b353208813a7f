"""One agent's loop: tokens in tokens out, every way of ending, what costs what."""

import asyncio
import dataclasses

import pytest
from rollout_fakes import STOP, CharacterPrompts, CountingWorld, encode, generation, play

from sera_jax.rollout import node, tree
from sera_jax.rollout.situation import RolloutConfig, Situation, request_seed
from sera_jax.rollout.tree import RolloutError

UP = "<action>up</action>"
FINISH = "<finish>over</finish>"


def test_tokens_are_what_was_seen_and_returned_and_nothing_else():
    seen = []
    unclosed = generation("hm " + UP, stop=False, version="w1")
    root = play({"0": [UP, unclosed, FINISH]}, seen=seen).root

    text = [f"[None|0|20]{UP}", "<now 1>", f"hm {UP}", "$<now 2>", FINISH]
    first, second, third = (step.start for step in root.steps)
    assert CharacterPrompts().decode(root.tokens) == "".join(text)
    assert [s.input_ids for s in seen] == [root.tokens[:start] for start in (first, second, third)]
    assert root.tokens[root.steps[0].end - 1] == STOP and root.steps[2].end == len(root.tokens)

    step = root.steps[1]
    assert (step.kind, step.text, step.observation) == ("action", f"hm {UP}", "now 2")
    assert root.tokens[step.start : step.end] == unclosed.token_ids
    assert (step.logprobs, step.versions) == (unclosed.logprobs, unclosed.versions)
    assert [s.order for s in root.steps] == [0, 1, 2]


def test_finish_ends_the_node_with_its_message():
    tree = play({"0": [FINISH, UP]})
    assert (tree.root.status, tree.root.message, tree.reward) == ("finished", "over", 0.0)
    assert tree.root.verified is False


@pytest.mark.parametrize("world, reward", [(CountingWorld(2), 1.0), (CountingWorld(9, 2), 0.0)])
def test_the_world_ends_the_node(world, reward):
    tree = play({"0": [UP] * 5}, world=world)
    assert (tree.root.status, tree.root.message, tree.reward) == ("done", None, reward)
    assert len(tree.root.steps) == len(world.log) == 2
    assert tree.root.steps[-1].observation == "now 2"
    assert tree.root.steps[-1].end == len(tree.root.tokens)  # nothing after the last response


def test_out_of_steps_and_what_a_step_costs():
    world = CountingWorld(budget=3)
    answers = [UP, "<action>inventory</action>", "no block", "<action>fly</action>"]
    tree = play({"0": [*answers, UP, UP]}, world=world, max_steps=4)
    assert tree.root.status == "out_of_steps"
    assert [s.kind for s in tree.root.steps] == ["action", "action", "invalid", "action"]
    assert [s.observation for s in tree.root.steps[:2]] == ["now 1", "count 1"]
    assert "no <action>" in tree.root.steps[2].observation
    assert world.log == [("0", "up"), ("0", "fly")]  # neither the look-up nor the invalid step
    assert (tree.info["world_actions"], tree.info["steps"], tree.info["tier"]) == (2, 4, "easy")


def test_a_world_that_ended_meanwhile_takes_no_action_but_a_finish_counts():
    async def late(situation):
        situation.world.count = 5  # as another agent would
        return generation(UP if situation.agent == "0" and situation.step == 0 else FINISH)

    world = CountingWorld()
    root = play(late, world=world).root
    assert (root.status, root.steps[0].observation, world.log) == ("done", node.ENDED, [])

    async def reporting(situation):
        situation.world.count = 5
        return generation(FINISH)

    assert play(reporting).root.status == "finished"


def test_out_of_context_leaves_the_segment_out():
    opening, answer, segment = len("[None|0|20]"), len(UP) + 1, len("<now 1>")
    limit = opening + answer + segment
    tree = play({"0": [UP, UP]}, context_length=limit)
    assert tree.root.status == "out_of_context"
    assert len(tree.root.tokens) == opening + answer == tree.root.steps[0].end

    seen = []
    cut = generation("<", stop=False, finish_reason="length")
    tree = play({"0": [UP, cut]}, context_length=limit + 1, seen=seen)
    assert seen[1].max_new_tokens == 1  # room for exactly one more token
    assert tree.root.status == "out_of_context" and len(tree.root.tokens) == limit + 1
    assert [s.kind for s in tree.root.steps] == ["action", "invalid"]


def test_an_opening_that_does_not_fit():
    root = play({}, context_length=5).root
    assert (root.status, root.steps, root.tokens) == ("out_of_context", (), ())


@pytest.mark.parametrize("text", ["thinking", "<action>up", '<delegate>{"goal": "x'])
def test_a_response_cut_before_its_block_closes_is_invalid(text):
    cut = generation(text.rjust(30, "."), stop=False, finish_reason="length")
    root = play({"0": [cut]}, max_new_tokens=30).root
    assert root.steps[0].kind == "invalid"
    assert "cut after 30 tokens" in root.steps[0].observation
    assert root.status == "finished"  # there was room to go on


@pytest.mark.parametrize(
    "failure, text",
    [
        (ConnectionError("no answer"), "no answer"),
        (generation("<fin", finish_reason="abort"), "abort"),
        (dataclasses.replace(generation(UP), logprobs=(-0.1,)), "1 log-probs"),
    ],
)
def test_a_failed_request_is_an_error_and_no_tree_to_train_on(failure, text):
    with pytest.raises(RolloutError, match="count-to-five: the request of node 0 failed") as raised:
        play({"0": [UP, failure]})
    root = raised.value.tree.root
    assert root.status == "error" and text in root.error
    assert len(root.steps) == 1 and root.steps[0].end == len(root.tokens)


def test_more_tokens_than_asked_for_are_refused():
    with pytest.raises(RolloutError, match="20 tokens came where 4"):
        play({"0": [UP]}, max_new_tokens=4)


def test_bugs_of_a_world_are_not_taken_for_a_failed_server():
    world = CountingWorld()
    world.step = lambda agent, command: 1 / 0
    with pytest.raises(ZeroDivisionError):
        play({"0": [UP]}, world=world)


def test_seeds_name_their_request():
    seeds = {
        request_seed(seed, tree, node_id, step)
        for seed in (0, 1)
        for tree in ("a", "b")
        for node_id in ("0", "0.0")
        for step in (0, 1)
    }
    assert len(seeds) == 16 and all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(7, "t1", "0", 0) == request_seed(7, "t1", "0", 0)


def test_the_responder_of_a_policy_server_passes_the_situation_on():
    calls = []

    class Client:
        async def generate(self, input_ids, **kwargs):
            calls.append((input_ids, kwargs))
            return generation(FINISH)

    respond = node.policy_responder(Client(), temperature=0.5, stop_token_ids=[STOP])
    assert play(respond, max_new_tokens=30).root.status == "finished"
    ((input_ids, kwargs),) = calls
    assert input_ids == tuple(encode("[None|0|20]"))
    assert kwargs == dict(
        temperature=0.5,
        max_new_tokens=30,
        stop_token_ids=(STOP,),
        seed=request_seed(7, "t1", "0", 0),
        sticky="t1",
    )


@pytest.mark.parametrize("given, temperatures", [(0.5, [0.5, 1.0, 0.0]), (None, [0.7, 1.0, 0.0])])
def test_the_kind_of_call_decides_its_temperature(given, temperatures):
    asked = []

    class Client:
        async def generate(self, input_ids, *, temperature, **kwargs):
            asked.append(temperature)
            return generation("<delegate>{}</delegate>")

    respond = node.policy_responder(Client(), temperature=given, stop_token_ids=[STOP])
    play(respond, temperature=0.7, max_steps=1)
    situation = Situation((1,), None, "0", None, 0, 0, False, 0, "t", 9)
    for kind, temperature in (("rubric", 1.0), ("score", 0.0)):
        call = dataclasses.replace(situation, kind=kind, temperature=temperature)
        asyncio.run(respond(call))
    assert asked == temperatures


def test_a_cancelled_rollout_stops():
    async def never(situation):
        await asyncio.Event().wait()

    async def main():
        config = RolloutConfig(context_length=100, max_new_tokens=10)
        args = (None, CountingWorld(), never, CharacterPrompts(), None, config)
        await asyncio.wait_for(tree.rollout(*args, tree_id="t", seed=0), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
