"""Puts the trainer's weights on the policy servers, by way of a checkpoint on disk.

The folder of exports holds at most two checkpoints, the one that the servers have and the one they
get, and `last.json`, which names the one of the last complete sync: whoever restarts a server
starts it from there, and what a server is starting from is kept until it answers. After a crash at
any point the next sync makes all right: it clears what was left, and its calls continue servers
that were left paused.
"""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError

from sera_jax import hosts
from sera_jax.model import huggingface, logprobs, qwen3, sharding
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.control import Probe, Weights
from sera_jax.serving.errors import PolicyServerError

LAST = "last.json"
PROBE_TOKENS = 32
# Of the mean |difference| a token. In bfloat16 two right implementations differ by up to 5e-2.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}


class ExportFailed(PolicyServerError):
    """The weights could not be written; nothing half-written is left."""


@dataclasses.dataclass(frozen=True)
class Synced:
    """What a sync did; the numbers go into the step's metrics."""

    path: pathlib.Path
    bytes: int
    seconds_export: float
    seconds_update: float
    logprob_gap: float  # mean |difference| of the probe's log-probs, the worst server's

    def record(self) -> dict[str, float]:
        numbers = dataclasses.asdict(self)
        return {name: value for name, value in numbers.items() if name != "path"}


async def sync(
    client: PolicyClient,
    params: qwen3.Params,
    config: qwen3.Config,
    folder: str | pathlib.Path,
    *,
    version: str,
    tokenizer_dir: str | pathlib.Path | None = None,
    dtype: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
) -> Synced:
    """Exports, puts the weights on every server, and deletes older exports.

    `folder` must be visible to the servers. The export is complete before it gets its name; each
    server says the new version and gives the trainer's log-probs of a fixed prompt before it
    counts. ExportFailed where the disk is full, PolicyServerError where a server refuses.

    Every process of a multi-host run calls this; the first one writes and talks to the servers,
    the others return, or fail, when it does.
    """
    folder = pathlib.Path(folder).resolve()  # a server has a working directory of its own
    first = hosts.is_first()
    probe = make_probe(params, config, dtype, mesh)
    begin = time.monotonic()
    path = _free_name(folder, version)
    done = False
    try:
        with _disk_errors(path, client):
            if first:
                _keep_last(folder, client)
            await _to_its_end(huggingface.export, params, config, path, tokenizer_dir, dtype)
        exported = time.monotonic()
        if first:
            await client.update_weights(str(path), version, probe)
            with _disk_errors(path, client):
                _write_last(folder, path, version)
            _keep_last(folder, client)
        done = True
    finally:
        done = hosts.from_first(done)
    if not done:
        raise PolicyServerError("the first process could not sync the weights: see its last line")
    if not first:
        client.adopt(Weights(str(path), version, probe))
    size = sum(file.stat().st_size for file in path.iterdir()) if first else 0
    gaps = [server.gap for server in client.fleet.servers if server.gap is not None]
    return Synced(path, size, exported - begin, time.monotonic() - exported, max(gaps, default=0.0))


def last_synced(folder: str | pathlib.Path) -> Weights | None:
    """The weights of the last complete sync, None before there are any."""
    path = pathlib.Path(folder).resolve() / LAST
    if not path.exists():
        return None
    last = json.loads(path.read_text())
    checkpoint = path.parent / last["checkpoint"]
    return Weights(str(checkpoint), last["version"]) if checkpoint.is_dir() else None


def make_probe(
    params: qwen3.Params, config: qwen3.Config, dtype: str, mesh: jax.sharding.Mesh | None = None
) -> Probe:
    """A fixed prompt with the trainer's log-probs of it, at temperature 1."""
    # The lowest ids of a vocabulary are ordinary tokens; primes, so that few repeat.
    size = min(config.vocab_size, 1_009)
    ids = tuple((37 * index + 11) % size for index in range(PROBE_TOKENS))
    scores = jax.device_get(_score(params, np.array([ids], np.int32), config, dtype, mesh))
    return Probe(ids, tuple(map(float, scores[0])), TOLERANCE[dtype])


@functools.partial(jax.jit, static_argnames=("config", "dtype", "mesh"))
def _score(params: qwen3.Params, tokens: Any, config: qwen3.Config, dtype: str, mesh: Any):
    """log p of tokens[:, 1:], [1, T - 1]."""
    places = jnp.arange(tokens.shape[1])[None]
    hidden = qwen3.forward(
        params,
        tokens,
        jnp.ones_like(tokens),
        places,
        config,
        dtype=jnp.dtype(dtype),
        mesh=mesh,
    )
    scores = logprobs.token_logprobs(params, hidden[:, :-1], tokens[:, 1:], config)
    return sharding.constrain(scores, mesh, (None, None))  # every process reads all of them


@contextlib.contextmanager
def _disk_errors(path: pathlib.Path, client: PolicyClient) -> Iterator[None]:
    """What goes wrong while `path` is written, as one line; the unfinished export is removed."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors wraps what the disk says
        _keep_last(path.parent, client)
        free = shutil.disk_usage(path.parent).free
        raise ExportFailed(
            f"cannot write the weights to {path}: {error} ({free / 2**20:,.0f} MiB free): make "
            "room for two checkpoints"
        ) from None


async def _to_its_end(function: Callable, *args: Any) -> None:
    """Runs it in a thread, while requests go on; who gives up waiting waits until it is done."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(work)
    finally:
        await work


def _free_name(folder: pathlib.Path, version: str) -> pathlib.Path:
    """A folder that no server can be reading: a run that resumes may write a version again."""
    names = itertools.chain(
        [f"version-{version}"], (f"version-{version}.{n}" for n in range(1, 100))
    )
    return next(folder / name for name in names if not (folder / name).exists())


def _write_last(folder: pathlib.Path, path: pathlib.Path, version: str) -> None:
    beside = folder / f"{LAST}.partial"
    beside.write_text(json.dumps({"checkpoint": path.name, "version": version}) + "\n")
    os.replace(beside, folder / LAST)


def _keep_last(folder: pathlib.Path, client: PolicyClient) -> None:
    """Deletes all exports, finished or not, but the last synced and those that are being read."""
    last = last_synced(folder)
    kept = {last.path} if last else set()
    kept.update(client.keeper.loading() if client.keeper else ())
    for other in folder.glob("version-*"):
        if str(other) not in kept:
            shutil.rmtree(other, ignore_errors=True)
