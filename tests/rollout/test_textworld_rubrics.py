"""Rubrics, forks and selection on the real cooking world, by a script that looks at the world."""

import asyncio
import json

import pytest

from sera_jax import rewards
from sera_jax.rollout import rubric_text, tree
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.rubrics import policy_graders
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.serving.answers import Generation
from sera_jax.warmstart import tokenizer as small
from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync.demonstrations import vocabulary
from sera_jax.worlds.textworld_sync.verifiers import mentions

TASK = tws.generate_task("train", "medium", "load_balanced", 11, "rollout-test")
DISHES = [dish.dish_id for dish in TASK.dishes]
CONTEXT = 512


@pytest.fixture(scope="module")
def prompts():
    names = vocabulary([TASK])
    with pytest.MonkeyPatch.context() as patch:
        protocol = dict.fromkeys((*small.PROTOCOL, *rubric_text.SPELLING))
        patch.setattr(small, "PROTOCOL", tuple(protocol))
        trained = small.train(WORDS, names, 640)
    return Prompts(trained, "textworld_sync", "compact")


WORDS = [
    "kitchen pantry garden supermarket sees holds ready served eaten busy door task goal alone "
    "score rubric before after made says did no take go to open prepare eat dish_1 dish_2 dish_3 "
    "chop slice dice cook in stove oven on grill fry roast knife "
] * 4


def recipe(dish):
    return [item.name for d in TASK.dishes if d.dish_id == dish for item in d.recipe]


def kitchen_team(prompts, *, lazy=(), seen=None):
    """A root that sends one cook a dish, who may be lazy, and who knows how work is scored."""

    async def respond(situation):
        await asyncio.sleep(0)
        if seen is not None:
            seen.append(situation)
        return generation_of(prompts, text(situation))

    def text(situation):
        if situation.kind == "rubric":
            dish = situation.goal.split()[-1]
            assert dish not in situation.world.state(situation.agent)["meals_eaten"]
            made = [(f"made {name}", 1) for name in recipe(dish)]
            return rubric_text.spell_rubric([*made, (f"eaten {dish}", 2)])
        if situation.kind == "score":
            return scored(situation)
        if situation.goal is None:
            if situation.step < len(DISHES):
                return f'<delegate>{{"goal": "eat {DISHES[situation.step]}"}}</delegate>'
            return "<finish>dinner is over</finish>"
        dish = situation.goal.split()[-1]
        command = None
        if situation.agent not in lazy:
            command = tws.oracle.next_action(situation.world, situation.agent, dishes=[dish])
        return f"<finish>{dish} eaten</finish>" if command is None else action(command)

    return respond


def action(command):
    return f"<action>{command}</action>"


def scored(situation):
    state, before = (w.state(situation.agent) for w in (situation.world, situation.before))
    assert len(before["meals_eaten"]) <= len(state["meals_eaten"])
    done = [*(f"made {name}" for name in state["prepared"])]
    done += [f"eaten {dish}" for dish in state["meals_eaten"]]
    scores = [float(criterion.name in done) for criterion in situation.rubric.criteria]
    return rubric_text.spell_score(int(min(scores)), scores)


def cook(prompts, lazy=(), judge=mentions, seen=None, **limits):
    respond = kitchen_team(prompts, lazy=lazy, seen=seen)
    limits = {"max_steps": 40} | limits
    config = RolloutConfig(context_length=CONTEXT, max_new_tokens=256, **limits)
    graders = policy_graders(respond, prompts, config)
    world = tws.World(TASK)
    kept = dict(tree_id="t", seed=0, graders=graders)
    return asyncio.run(tree.rollout(TASK, world, respond, prompts, judge, config, **kept))


def test_rubric_then_work_then_score(prompts):
    played = cook(prompts, lazy={"0.0"})
    assert played.reward == 0.0 and len(played.nodes) == 1 + len(DISHES)
    scores = rewards.execution_rewards(played)
    for node in played.nodes[1:]:
        call = node.rubric_call
        assert call.order < node.steps[0].order
        assert call.tokens[: call.start] == tuple(_parent_context(played, node)) + tuple(
            prompts.next_turn(f"rubric {node.goal}", _closed(prompts, played, node))
        )
        assert scores[node.id] == pytest.approx(float(node.verified))
    assert scores["0.0"] == 0.0 and played.by_id()["0.0"].score is not None
    assert played.info["rubrics_invalid"] == played.info["scores_invalid"] == 0


def _parent_context(played, node):
    root = played.root
    return root.tokens[: next(step.end for step in root.steps if node.id in step.children)]


def _closed(prompts, played, node):
    return _parent_context(played, node)[-1] in prompts.stop_ids


def test_eight_attempts_in_worlds_of_their_own_and_two_groups_a_tree(prompts):
    lazy = {f"0.0@{i}" for i in (1, 3, 5)} | {"0.1@7"}
    played = cook(prompts, lazy, attempts=8)
    assert played.info["forks"] == 2 == len(list(played.forked()))
    assert played.info["judge_calls"] == 16 and played.info["rubrics_written"] == 2
    assert played.reward == 1.0  # attempts 0 were diligent, and what they did remained
    first = played.by_id()["0.0"]
    outcomes = [attempt.verified for attempt in first.attempts]
    assert outcomes == [i not in (1, 3, 5) for i in range(8)]
    # Were a world shared, the lazy ones would find the dish eaten by others.
    assert rewards.attempt_scores(first) == [float(outcome) for outcome in outcomes]
    assert rewards.ranking_reward(rewards.attempt_scores(first), outcomes) == 0.0
    spent = {len(attempt.nodes[0].steps) for attempt in first.attempts[1:]}
    assert spent == {1, len(first.steps)}
    assert played.info["world_actions"] == sum(
        step.kind == "action" for node in played.nodes for step in node.steps
    )


def test_an_attempt_starts_in_the_room_of_its_parent(prompts):
    team = kitchen_team(prompts)
    rooms = {}

    async def respond(situation):
        if situation.kind == "act" and situation.goal is None and situation.step == 0:
            return generation_of(prompts, action("go to garden"))
        if situation.kind == "act" and situation.step == 0:
            rooms[situation.agent] = situation.world.state(situation.agent)["location"]
        return await team(situation)

    config = RolloutConfig(CONTEXT, 256, max_steps=40, attempts=3)
    graders = policy_graders(respond, prompts, config)
    playing = tree.rollout(TASK, tws.World(TASK), respond, prompts, None, config, tree_id="t",
                           seed=0, graders=graders)  # fmt: skip
    asyncio.run(playing)
    assert rooms["0.0"] == rooms["0.0@2"] == "garden"


def generation_of(prompts, text):
    ids = tuple(prompts.encode(text))
    return Generation(ids, (0.0,) * len(ids), "stop", (("script", len(ids)),))


def test_selection_turns_a_careless_first_candidate_into_dinner(prompts):
    lazy = {f"0.{i}" for i in range(len(DISHES))}
    assert cook(prompts, lazy).reward == 0.0
    played = cook(prompts, lazy, candidates=2)
    assert played.reward == 1.0
    assert {node.choice for node in played.nodes[1:]} == {"best score"}
    assert {node.committed for node in played.nodes[1:]} == {1}
    assert json.loads(json.dumps(played.to_json()))["reward"] == 1.0


def test_compact_rubrics_and_scores_take_few_tokens(prompts):
    seen = []
    played = cook(prompts, seen=seen)
    for node in played.nodes[1:]:
        criteria = len(node.rubric.criteria)
        assert len(node.rubric_call.logprobs) <= 6 * criteria + 1
    scorings = [len(s.input_ids) for s in seen if s.kind == "score"]
    assert len(scorings) == len(DISHES) and max(scorings) < 300
