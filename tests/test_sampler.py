"""Who is asked for what, with policy servers played by a script that reads its prompts."""

import asyncio

import pytest

from configs import textworld
from sera_jax import credit
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.rubric_text import spell_rubric, spell_score
from sera_jax.sampler import Sampler
from sera_jax.serving.answers import Generation
from sera_jax.serving.errors import PolicyServerError
from sera_jax.warmstart import tokenizer as small
from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync.demonstrations import vocabulary

TASK = tws.generate_task("train", "easy", "multi_dish_fork_join", 5, "task")


class ScriptedClient:
    """A root that delegates once and finishes, children that finish, an evaluator that answers."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked, self.temperatures = tokenizer, [], {}

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def generate(
        self, input_ids, *, temperature, max_new_tokens, stop_token_ids, seed, sticky
    ):
        text = self.tokenizer.decode(input_ids).split("<|user|>")[-1]
        kind = text.split()[0]
        self.asked.append(kind)
        self.temperatures[kind] = temperature
        answer = {
            "task": '<delegate>{"goal": "eat dish_1"}</delegate>',
            "goal": "<finish>done</finish>",
            "rubric": spell_rubric([("dish_1 eaten", 3), ("says done", 1)]),
            "score": spell_score(1, [0, 1]),
        }.get(kind, "<finish>over</finish>")
        ids = tuple(self.tokenizer.encode(answer, add_special_tokens=False))
        return Generation(ids, (-0.5,) * len(ids), "stop", (("0", len(ids)),))


class BrokenClient(ScriptedClient):
    async def generate(self, *_, **__):
        raise PolicyServerError("gone")


@pytest.fixture(scope="module")
def tokenizer():
    names = vocabulary([TASK])
    return small.train(["rubric score goal task"], names, 400)


def sampler(tokenizer, variant, client=ScriptedClient, **changes):
    config = textworld.get_config(f"small,{variant}")
    with config.unlocked():
        for field, value in changes.items():
            config[field] = value
        config.train.trees = 2
    prompts = Prompts(tokenizer, "textworld_sync", "compact")
    frozen = ScriptedClient(tokenizer) if config.rubrics.weights == "frozen" else None
    return Sampler(config, tws, prompts, client(tokenizer), evaluator=frozen)


def groups(made, objective="execution"):
    asked = credit.sampling(objective, made.config)

    async def run():
        async with made:
            return await made.groups([TASK], 0, asked)

    return asyncio.run(run())[0]


def test_sera_asks_the_policy_for_rubrics_and_scores_and_nobody_for_labels(tokenizer):
    made = sampler(tokenizer, "sera")
    for tree in groups(made):
        child = tree.nodes[1]
        assert (child.verified, child.score.criteria) == (None, (0.0, 1.0))
        # Written before the child's first step (METHOD 1).
        assert child.rubric_call.order < child.steps[0].order
    assert made.client.asked.count("rubric") == made.client.asked.count("score") == 2
    assert made.client.temperatures["score"] == 0.0 and made.client.temperatures["rubric"] == 1.0
    assert made.counters.to_json() == {}


def test_rao_asks_the_judge_and_for_no_rubric(tokenizer):
    made = sampler(tokenizer, "rao")
    assert [tree.nodes[1].verified for tree in groups(made)] == [False, False]
    assert not {"rubric", "score"} & set(made.client.asked)
    assert made.counters.to_json()["child"]["calls"] == 2


def test_decomposition_steps_ask_nobody(tokenizer):
    made = sampler(tokenizer, "sera")
    assert all(tree.nodes[1].rubric is None for tree in groups(made, "decomposition"))
    assert not {"rubric", "score"} & set(made.client.asked) and not made.counters.to_json()


def test_rubric_steps_score_and_judge_every_attempt(tokenizer):
    made = sampler(tokenizer, "sera")
    for tree in groups(made, "rubric"):
        (forked,) = tree.forked()
        assert len(forked.attempts) == 8
        assert all(a.verified is False and a.score is not None for a in forked.attempts)
    assert made.counters.to_json()["attempt"]["calls"] == 16
    assert (made.client.asked.count("rubric"), made.client.asked.count("score")) == (2, 16)


def test_a_frozen_evaluator_scores_and_the_policy_writes(tokenizer):
    made = sampler(tokenizer, "sera_wo_d,frozen_evaluator")
    groups(made)
    assert set(made.evaluator.asked) == {"score"}
    assert "score" not in made.client.asked and "rubric" in made.client.asked


def test_a_global_rubric_is_written_by_nobody(tokenizer):
    made = sampler(tokenizer, "sera_wo_d_rt,global_rubric")
    trees = groups(made)
    assert "rubric" not in made.client.asked
    assert len({tree.nodes[1].rubric for tree in trees}) == 1
    assert sum(c.weight for c in trees[0].nodes[1].rubric.criteria) == pytest.approx(1.0)


def test_label_noise_flips_what_the_judge_says(tokenizer):
    noisy = sampler(tokenizer, "rao", judge_noise=1.0)
    assert [tree.nodes[1].verified for tree in groups(noisy)] == [True, True]


def test_a_tree_whose_request_failed_is_left_out_and_said(tokenizer, capsys):
    assert groups(sampler(tokenizer, "sera", BrokenClient)) == []
    assert capsys.readouterr().out.count("tree left out") == 2
