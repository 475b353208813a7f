"""The loop with played servers: what overlaps, and that a broken run ends as a whole one does."""

import asyncio
import json
import zlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from test_train_step import CONFIG

from configs import textworld
from sera_jax import checkpoints, launching, supervision, train, train_step
from sera_jax.model import qwen3
from sera_jax.tree_writer import read_trees
from sera_jax.trees import Node, Step, Tree

STEPS = 5
SETUP = train_step.Setup(CONFIG, train_step.make_optimizer(1e-2), chunk=8)


class Killed(Exception):
    """Stands for a process that ends without a word."""


class Server:
    """A policy client whose server samples by the version of its weights."""

    def __init__(self):
        self.version, self.keeper, self.fleet = None, None, SimpleNamespace(servers=[])

    async def update_weights(self, path, version, probe):
        self.version = version

    def record(self):
        return {"requests": 1}


class PlayedSampler:
    """Trees of random tokens; `at` is called with each step before it is sampled."""

    def __init__(self, config, at=lambda step: None):
        self.config, self.at, self.client = config, at, Server()
        self.counters, self.prompts = supervision.Counters(), SimpleNamespace(decode=str)
        self.worlds = SimpleNamespace(
            training_tasks=lambda tasks, seed, step, count: [
                SimpleNamespace(task_id=f"{step}/{k}") for k in range(count)
            ],
            evaluation_tasks=lambda eval: {
                "fresh": [SimpleNamespace(task_id="held-out", tier="easy", family="f")]
            },
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def groups(self, tasks, step, asked):
        await asyncio.sleep(0)
        self.at(step)
        await asyncio.sleep(0.02)
        self.counters.add("child")
        return [[self.play(f"{task.task_id}/{k}", k) for k in range(3)] for task in tasks]

    async def tree(self, task, tree_id, **_):
        return self.play(tree_id, 0)

    def play(self, name, number):
        random = np.random.default_rng(zlib.crc32(f"{name} {self.client.version}".encode()))
        tokens = random.integers(0, CONFIG.vocab_size, 12).tolist()
        logprobs = tuple(random.uniform(-4, -3, 8).tolist())
        versions = ((self.client.version, 8),)
        step = Step("action", "go", start=4, end=12, logprobs=logprobs, versions=versions)
        node = Node("0", None, 0, "goal", "done", steps=(step,), tokens=tuple(tokens))
        return Tree(name.rpartition("/")[0], float(number == 0), (node,))


def make_run(folder, overlap, at=lambda step: None, **changes):
    config = textworld.get_config("small,single_cispo").unlock()
    config.train.update(steps=STEPS, overlap=overlap, tasks=2, row_lengths=(16,), rows=8, **changes)
    config.run.checkpoint_every = 2
    return train.Run(
        config=config,
        folder=folder,
        model=CONFIG,
        setup=SETUP,
        state=train_step.init_state(qwen3.init(jax.random.key(0), CONFIG), SETUP),
        checkpoints=checkpoints.Checkpoints(folder / "checkpoints", 2),
        sampler=PlayedSampler(config, at),
    )


def go(run):
    """Resumes the run where it has a checkpoint; its closing table, None when interrupted."""
    with run.checkpoints:
        train.restore(run)
        return asyncio.run(train.train(run))


def result(run):
    """Weights, metrics but times, and saved trees."""
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    drop = ("seconds", "client", "sync")
    lines = [{k: v for k, v in x.items() if not k.startswith(drop)} for x in lines]
    weights = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.state)]
    return weights, lines, list(read_trees(run.folder))


@pytest.fixture(scope="module", params=[False, True], ids=["on-policy", "overlap"])
def whole(request, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("whole"), request.param)
    assert "Held-out success" in go(run)
    return run


def test_trees_are_as_old_as_method_5_allows(whole):
    overlap = whole.config.train.overlap
    _, lines, trees = result(whole)
    wanted = [0] + [int(overlap)] * (STEPS - 1)
    assert [line["version_lag_max"] for line in lines] == wanted
    assert [line["version_lag_mean"] for line in lines] == wanted
    versions = {t["step"]: t["nodes"][0]["steps"][0]["versions"][0][0] for t in trees}
    assert versions == {n: str(n - lag) for n, lag in enumerate(wanted)}
    assert all(0.0 <= line["clip_fraction"] <= 1.0 for line in lines)
    assert [line["supervision"]["child"]["calls"] for line in lines] == [1, 2, 3, 4, 5]


def test_the_metrics_tell_who_waited(whole):
    for line in map(json.loads, (whole.folder / "metrics.jsonl").read_text().splitlines()):
        for phase in ("trainer_idle", "servers_idle", "sampling", "training", "reporting"):
            assert line[f"seconds_{phase}"] >= 0.0
        if not whole.config.train.overlap:  # nothing trains while the servers sample
            assert line["seconds_servers_idle"] >= line["seconds_training"]


@pytest.mark.parametrize("moment", [0, 1, 3])
def test_a_run_interrupted_while_it_samples_resumes_to_the_same_bits(whole, moment, tmp_path):
    def interrupt(step):
        if step == moment:
            run.interrupt.ask()

    run = make_run(tmp_path, whole.config.train.overlap, interrupt)
    assert go(run) is None
    if not whole.config.train.overlap:  # else the step that trains meanwhile may end or not begin
        assert run.step == moment and run.pending is None
    again = make_run(tmp_path, whole.config.train.overlap)
    assert go(again)
    assert result(again) == result(whole)


@pytest.mark.parametrize("moment", [0, 3])
def test_a_run_interrupted_while_it_trains_resumes_to_the_same_bits(
    whole, moment, tmp_path, monkeypatch
):
    def interrupt(run, *rest):
        run.interrupt.asked |= run.step == moment
        return update(run, *rest)

    update = train.update
    run = make_run(tmp_path, whole.config.train.overlap)
    with monkeypatch.context() as patch:
        patch.setattr(train, "update", interrupt)
        assert go(run) is None
    # The step is carried through, and the trees that older weights sampled are kept.
    assert run.step == moment + 1 and bool(run.pending) == whole.config.train.overlap
    again = make_run(tmp_path, whole.config.train.overlap)
    assert go(again)
    assert result(again) == result(whole)


@pytest.mark.parametrize("moment", [1, 3, 4])
def test_a_killed_run_resumes_to_the_same_bits(whole, moment, tmp_path):
    def kill(step):
        if step == moment:
            raise Killed

    with pytest.raises(Killed):
        go(make_run(tmp_path, whole.config.train.overlap, kill))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "obj')
    with (tmp_path / "trees.jsonl.gz").open("ab") as file:
        file.write(b"\x1f\x8b\x08 torn")
    again = make_run(tmp_path, whole.config.train.overlap)
    assert go(again)
    assert result(again) == result(whole)


def test_pending_trees_are_trained_also_where_the_resumed_run_does_not_overlap(tmp_path):
    run = make_run(tmp_path, overlap=True, at=lambda step: step == 2 and run.interrupt.ask())
    assert go(run) is None
    step, pending = run.step, run.pending.trees
    again = make_run(tmp_path, overlap=False)
    assert go(again)
    assert [t["nodes"][0]["tokens"] for t in read_trees(tmp_path) if t["step"] == step] == [
        list(tree.root.tokens) for tree in pending
    ]


def test_overlap_is_refused_where_several_objectives_are_trained():
    config = textworld.get_config("small,sera").unlock()
    config.train.overlap = True
    with pytest.raises(launching.SetupError, match="3 objectives"):
        launching.check(config)
    config.cycle = (("execution", 1), ("rubric", 0))
    launching.check(config)
