"""The whole rollout on the crafting world: who succeeds when, who is refused, who is judged."""

import asyncio
import json

import pytest
from rollout_fakes import CharacterPrompts, generation

from sera_jax.rollout import tree
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.supervision import Counters, Judge
from sera_jax.worlds import textcraft_synth as tcs
from sera_jax.worlds.textcraft_synth.demand import plan
from sera_jax.worlds.textcraft_synth.oracle import command, subgoals

pytestmark = pytest.mark.usefixtures("textcraft_data")


def act(*lines):
    return f"<action>{chr(10).join(lines)}</action>"


def delegate(*goals):
    return f"<delegate>{json.dumps({'delegations': [{'goal': goal} for goal in goals]})}</delegate>"


def play(task, answer, **limits):
    """`answer` is a function of the situation; ids of `CharacterPrompts` are characters."""

    async def respond(situation):
        await asyncio.sleep(0)
        return generation(answer(situation))

    config = RolloutConfig(**{"context_length": 1_000_000, "max_new_tokens": 100_000, **limits})
    world, counters = tcs.World(task), Counters()
    judge = Judge(tcs.VERIFIERS["delta"], counters, others=(tcs.VERIFIERS["ledger"],))
    rolled = tree.rollout(
        task, world, respond, CharacterPrompts(), judge, config, tree_id="t", seed=0
    )
    return asyncio.run(rolled), counters.total()


def recursive(situation):
    """Has what lacks for its target made by children, deepest first; the last level is alone."""
    world = situation.world
    left = world.left(situation.agent)
    if not left:
        return "<finish>made</finish>"
    planned = plan(world.recipes, world.inventory, left)
    own = [step for step in planned if step[0] in left]
    if situation.can_delegate and (goals := subgoals(world.recipes, world.inventory, own)):
        return delegate(*(tcs.goal_text({item: count}) for item, count in goals.items()))
    return act(*(command(world.recipes, *step) for step in planned[:16]))


@pytest.mark.parametrize("tier", ["easy", "medium", "hard"])
def test_agents_craft_the_target_together(tier):
    task = next(task for task in tcs.published("val") if task.tier == tier)
    played, usage = play(task, recursive)
    assert played.reward == 1.0 and played.root.status == "finished"
    assert len(played.nodes) > 1 and max(node.depth for node in played.nodes) <= 3
    assert usage.calls == len(played.nodes) - 1 == played.info["judge_calls"]
    for node in played.nodes:
        assert node.verified is True and len(node.steps) <= 20


def test_success_needs_the_finish():
    task = tcs.published("val")[0]  # few enough crafts for one step
    for steps, reward, status in ((1, 0.0, "out_of_steps"), (2, 1.0, "finished")):
        played, _ = play(task, recursive, max_steps=steps, max_depth=0)
        assert (played.reward, played.root.status) == (reward, status)
        assert played.root.verified is bool(reward)


def test_a_goal_without_targets_launches_nobody():
    def answer(situation):
        return delegate("3x a9_i1", "help") if situation.step == 0 else "<finish>no</finish>"

    played, usage = play(tcs.published("train")[0], answer)
    step = played.root.steps[0]
    assert (step.kind, step.children, usage.calls) == ("delegate", (), 0)
    assert "Craft the following items: 8x m4_i1, 2x m3_i7" in step.observation


def test_disagreement_of_the_verifiers_is_counted():
    def answer(situation):
        if situation.step == 0 and situation.agent == "0":
            return delegate("3x a9_i1", "3x a9_i1")
        if situation.step == 0 and situation.agent == "0.0":
            return act("craft 3 a9_i1 using 2 raw_a1")
        if situation.step == 0:
            return act("info a9_i1")
        return "<finish>3 made</finish>"

    played, usage = play(tcs.published("train")[0], answer)
    assert [node.verified for node in played.nodes] == [False, True, True]  # the idle one, too
    assert (usage.calls, usage.disputed) == (2, 1)
    forked, usage = play(tcs.published("train")[0], answer, attempts=2, fork_budget=5)
    assert (usage.calls, usage.disputed) == (4, 0)
    assert [attempt.verified for attempt in forked.by_id()["0.1"].attempts] == [False, False]
