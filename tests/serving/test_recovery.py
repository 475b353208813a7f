"""Whole runs on real servers that are killed, stopped, lost and run out of disk."""

import asyncio
import collections
import contextlib
import json
import os
import signal
import subprocess
import time

import jax
import pytest

from configs import textworld
from sera_jax import launching, sampled
from sera_jax.model import huggingface, qwen3
from sera_jax.serving import embedded, weight_sync
from sera_jax.serving.errors import ServersLost
from sera_jax.serving.supervisor import end, free_port
from sera_jax.tree_writer import read_trees
from sera_jax.trees import Tree
from sera_jax.warmstart import tokenizer as small

STEPS, TASKS, TREES = 3, 2, 3


def odd_lengths(tree: Tree) -> dict[str, float]:
    """Rewards that differ, so that a policy that wins nothing is trained."""
    return {node.id: float(len(node.tokens) % 2) for node in tree.nodes}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A checkpoint of random weights with a tokenizer."""
    folder = tmp_path_factory.mktemp("policy") / "policy"
    tokenizer = small.train(["task goal observation"], [], 400)
    size = len(tokenizer)
    config = qwen3.Config(size, 32, 64, 2, 2, 1, 16, 1e4, max_position_embeddings=512)
    huggingface.export(qwen3.init(jax.random.key(0), config), config, folder)
    tokenizer.save_pretrained(folder)
    return folder


def config_of(policy, folder, **server):
    config = textworld.get_config("small,rao")
    with config.unlocked():
        config.model.path, config.run.folder = str(policy), str(folder)
        config.rewards.execution = odd_lengths
        config.rollout.max_steps, config.rollout.max_new_tokens = 4, 12
        config.train.steps, config.train.tasks, config.train.trees = STEPS, TASKS, TREES
        config.tasks.tiers = ("easy",)
        config.run.save_trees, config.eval.sets = TASKS * TREES, ()
        config.server.slots, config.server.replicas, config.server.hang_timeout = 8, 1, 5.0
        for name, value in server.items():
            config.server[name] = value
    return config


def lines(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def every_tree_is_accounted_for(folder):
    records = lines(folder)
    assert [record["step"] for record in records] == list(range(STEPS))
    assert all((r["trees"], r["trees_lost"]) == (TASKS * TREES, 0) for r in records)
    trees = read_trees(folder)
    ids = collections.Counter((tree["step"], tree["info"]["tree_id"]) for tree in trees)
    assert len(ids) == STEPS * TASKS * TREES and set(ids.values()) == {1}
    for tree in trees:  # on-policy, whatever happened
        steps = [step for node in tree["nodes"] for step in node["steps"]]
        found = {version for step in steps for version, _ in step["versions"]}
        assert found == {str(tree["step"])}
    return records


@pytest.fixture
def disturbances(monkeypatch):
    """Step -> what is called, once, in the middle of that step's sampling."""
    actions, real = {}, sampled.sample

    async def sample(sampler, step):
        trees = asyncio.create_task(real(sampler, step))
        if step in actions:
            answered = sampler.client.counters["requests"]
            while sampler.client.counters["requests"] == answered and not trees.done():
                await asyncio.sleep(0.001)
            assert not trees.done(), "there was nothing to disturb"
            actions.pop(step)()
        return await trees

    monkeypatch.setattr(sampled, "sample", sample)
    return actions


def test_a_run_goes_on_while_its_server_is_killed_and_stopped(
    policy, tmp_path, monkeypatch, disturbances, capsys
):
    processes, start = [], embedded.start

    def recorded(*args, **kwargs):
        processes.append(start(*args, **kwargs))
        return processes[-1]

    monkeypatch.setattr(embedded, "start", recorded)
    disturbances[1] = lambda: os.kill(processes[-1].pid, signal.SIGKILL)
    disturbances[2] = lambda: os.kill(processes[-1].pid, signal.SIGSTOP)
    folder = tmp_path / "run"
    launching.run(config_of(policy, folder), "test")
    records = every_tree_is_accounted_for(folder)
    client = records[-1]["client"]
    assert (client["server_restarts"], client["servers_ended"], client["servers_hung"]) == (2, 1, 1)
    assert client["given_up"] == client["stale"] == 0
    assert all(record["sync"]["logprob_gap"] < 1e-3 for record in records)
    assert records[0]["sync"]["bytes"] > 10_000 and records[0]["sync"]["seconds_export"] > 0
    out = capsys.readouterr().out
    assert "was ended by SIGKILL" in out and "restarting it with weights '1'" in out
    assert "did not answer in time" in out and "restarting it with weights '2'" in out
    exports = {path.name for path in (folder / "weights").iterdir()}
    assert exports == {f"version-{STEPS}", "last.json"}


@contextlib.contextmanager
def somebody_elses_server(policy, folder, port):
    flags = ("--slots=8", "--replicas=1", "--context_length=512")
    folder.mkdir(exist_ok=True)
    process = embedded.start(policy, folder / f"{time.monotonic()}.log", *flags, port=port)
    try:
        embedded.wait_until_healthy(process, next(folder.glob("*.log")), 300.0)
        yield process
    finally:
        end(process, grace=0.0)
        for log in folder.glob("*.log"):
            log.unlink()


def test_a_run_stops_without_disk_or_server_and_goes_on_later(
    policy, tmp_path, disturbances, capsys
):
    folder, port = tmp_path / "run", free_port()
    url = f"http://127.0.0.1:{port}"
    config = config_of(policy, folder, url=url, patience=1.0)
    with (
        small_disk(folder / "weights") as fill,
        somebody_elses_server(policy, tmp_path / "s", port),
    ):
        disturbances[1] = fill
        with pytest.raises(weight_sync.ExportFailed) as caught:
            launching.run(config, "test")
    message = str(caught.value)
    assert "No space left" in message and f"--config.run.folder={folder}" in message
    saved = len(lines(folder))
    assert f"saved up to step {saved};" in message and 1 <= saved < STEPS

    with somebody_elses_server(policy, tmp_path / "s", port) as process:
        disturbances[saved] = lambda: end(process, grace=0.0)
        with pytest.raises(ServersLost, match="no policy server could be used for 1 s") as caught:
            launching.run(config, "test")
    assert f"saved up to step {len(lines(folder))};" in str(caught.value)
    assert "waiting up to 1 s for it" in capsys.readouterr().out

    with somebody_elses_server(policy, tmp_path / "s", port):
        launching.run(config, "test")
    every_tree_is_accounted_for(folder)


@contextlib.contextmanager
def small_disk(folder):
    """`folder` on a disk of its own -> what fills it."""
    folder.mkdir(parents=True)
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("runs where a small file system may be mounted")

    def fill():
        with contextlib.suppress(OSError), open(folder / "other", "wb") as file:
            file.write(bytes(1 << 23))

    try:
        yield fill
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
