"""The whole rollout on the real cooking world, played by its oracle in place of a policy."""

import asyncio
import json

from rollout_fakes import CharacterPrompts, generation

from sera_jax.rollout import tree
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.supervision import Counters, Judge
from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync.verifiers import mentions

TASK = tws.generate_task("train", "medium", "load_balanced", 11, "rollout-test")
DISHES = [dish.dish_id for dish in TASK.dishes]


def oracle_team(*, lazy=frozenset()):
    """The root sends one cook a dish; a lazy cook reports success without working."""

    async def respond(situation):
        await asyncio.sleep(0)
        if situation.goal is None:
            if situation.step == 0:
                goals = [{"goal": f"prepare and eat {dish}"} for dish in DISHES]
                return block("delegate", json.dumps({"delegations": goals}))
            return block("finish", "dinner is over")
        dish = situation.goal.split()[-1]
        command = None
        if dish not in lazy:
            command = tws.oracle.next_action(situation.world, situation.agent, dishes=[dish])
        return block("finish", f"{dish} is eaten") if command is None else block("action", command)

    return respond


def block(kind, content):
    return generation(f"<{kind}>{content}</{kind}>")


def cook(respond, counters=None):
    world = tws.World(TASK)
    judge = Judge(mentions, counters or Counters())
    config = RolloutConfig(context_length=100_000, max_new_tokens=1_000, max_steps=40)
    playing = tree.rollout(
        TASK, world, respond, CharacterPrompts(), judge, config, tree_id="t", seed=0
    )
    return asyncio.run(playing), world


def test_cooks_eat_every_dish_together():
    counters = Counters()
    played, world = cook(oracle_team(), counters)
    assert played.reward == 1.0 and world.success
    assert [node.verified for node in played.nodes] == [True] * (1 + len(DISHES))
    assert counters.total().calls == len(DISHES)
    assert played.info["world_actions"] == TASK.action_budget - world.steps_left
    # The last bite ends the world, and with it whoever was still at work.
    assert {node.status for node in played.nodes} <= {"done", "finished"}
    assert played.root.status == "done"


def test_a_report_of_work_not_done_is_not_believed():
    played, _ = cook(oracle_team(lazy={DISHES[0]}))
    assert played.reward == 0.0 and played.root.verified is False
    verified = [node.verified for node in played.nodes[1:]]
    assert verified == [False] + [True] * (len(DISHES) - 1)
    assert played.by_id()["0.0"].message == f"{DISHES[0]} is eaten"


def test_recorded_commands_replay_to_the_same_world():
    played, world = cook(oracle_team())
    steps = [(s.order, n.id, s) for n in played.nodes for s in n.steps if s.kind == "action"]
    again = tws.World(TASK)
    for node in played.nodes:
        again.join(node.id)
    for _, agent, step in sorted(steps, key=lambda entry: entry[0]):
        again.step(agent, step.text.removeprefix("<action>").removesuffix("</action>"))
    assert again.state("0") == world.state("0")
