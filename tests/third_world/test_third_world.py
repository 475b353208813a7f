"""A benchmark added as worlds/base.py says, outside the package: nothing else has to know it."""

import asyncio
import importlib
import pathlib
import random

import pytest
from third_world import counting_config

import sera_jax.worlds
from sera_jax import credit, launching
from sera_jax.rollout import prompts as wording
from sera_jax.sampler import Sampler
from sera_jax.warmstart import build
from sera_jax.warmstart.play import demonstrator

HERE = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Its folders where a third benchmark's would be."""
    monkeypatch.setattr(sera_jax.worlds, "__path__", [*sera_jax.worlds.__path__, str(HERE)])
    monkeypatch.setattr(wording, "TEMPLATES", HERE / "templates")


@pytest.fixture
def config():
    return counting_config.get_config("small,sera")


class Scripted(Sampler):
    """The benchmark's own script answers in place of a policy server."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def _responder(self, client):
        script = importlib.import_module("sera_jax.worlds.counting.demonstrations").Script
        self.made = getattr(self, "made", 0) + 1
        return demonstrator(script(None, random.Random(self.made)), self.prompts, [])


def trees_and_credit(config, objective):
    launching.check(config)
    prompts, _ = build.demonstrate(config)
    worlds = launching.benchmark(config)
    sampler = Scripted(config, worlds, prompts, client=None)
    asked = credit.sampling(objective, config)
    tasks = worlds.training_tasks(config.tasks, 0, 0, config.train.tasks)
    groups = asyncio.run(sampler.groups(tasks, 0, asked))
    return groups, credit.credit(objective, groups, config, prompts.decode), sampler.counters


def test_its_demonstrations_teach_acting_and_evaluating(config):
    prompts, sequences = build.demonstrate(config)
    texts = [prompts.tokenizer.decode(s.tokens) for s in sequences]
    for part in ('<delegate>{"goal": "up 1"}</delegate>', "<action>up</action>", '{"gate": 1'):
        assert any(part in text for text in texts)


def test_execution_steps_credit_its_trees(config):
    groups, credited, counters = trees_and_credit(config, "execution")
    rewards = [tree.reward for group in groups for tree in group]
    assert len(rewards) == 6 and 0 < sum(rewards) < 6
    children = [n for group in groups for tree in group for n in tree.nodes if n.parent]
    assert {child.goal for child in children} == {"up 1"} and all(c.score for c in children)
    assert credited.sequences and counters.to_json() == {}


def test_rubric_steps_fork_and_its_verifier_labels_the_attempts(config):
    groups, _, counters = trees_and_credit(config, "rubric")
    forked = [node for group in groups for tree in group for node in tree.forked()]
    assert len(forked) == 6 and all(len(node.attempts) == 8 for node in forked)
    verified = {attempt.verified for node in forked for attempt in node.attempts}
    assert verified == {True, False} and counters.total().calls == 48


def test_an_unknown_verifier_is_named_beside_the_known_ones(config):
    with config.unlocked():
        config.judge = "mentions"
    with pytest.raises(launching.SetupError, match="there are risen, external"):
        launching.check(config)


def test_a_benchmark_that_is_not_there_is_a_line(config):
    with config.unlocked():
        config.benchmark = "nowhere"
    with pytest.raises(launching.SetupError, match="config.benchmark='nowhere'"):
        launching.check(config)
