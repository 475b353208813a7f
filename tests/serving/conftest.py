"""A tiny random checkpoint and a policy server over it, shared by the serving tests.

The contract tests speak HTTP alone and run against any server of this API: set SERA_TEST_SERVER to
its URL and SERA_TEST_CHECKPOINT to the folder it serves (float32).
"""

import asyncio
import os
import pathlib
import threading
from dataclasses import dataclass

import jax
import pytest

from sera_jax.model import huggingface, qwen3
from sera_jax.serving import server

CONTEXT = 96
CONFIG = qwen3.Config(
    64, 32, 64, 2, 2, 1, 16, 1e4, tie_embeddings=False, max_position_embeddings=CONTEXT
)
SHAPES = {
    "slots": 6,
    "context": CONTEXT,
    "block": 32,
    "rows": 4,
    "chunk": 8,
    "steps": 3,
    "parked": 6,
    "few_rows": 1,
    "few_slots": 2,
}


@dataclass(frozen=True)
class Endpoint:
    url: str
    checkpoint: pathlib.Path
    config: qwen3.Config
    context: int
    served: server.Served | None  # None: a server of its own, in another process


def make_params(seed: int, config: qwen3.Config = CONFIG) -> qwen3.Params:
    params = qwen3.init(jax.random.key(seed), config)
    params["head"] = params["head"] * 20  # far from uniform, so that mistakes show
    return params


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> list[pathlib.Path]:
    """Two checkpoints of the same shapes and different weights."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed in range(2):
        huggingface.export(make_params(seed), CONFIG, folder / str(seed))
    return [folder / str(seed) for seed in range(2)]


@pytest.fixture(scope="session")
def endpoint(checkpoints):
    url = os.environ.get("SERA_TEST_SERVER")
    if url:
        folder = pathlib.Path(os.environ["SERA_TEST_CHECKPOINT"])
        _, config = huggingface.load(folder)
        yield Endpoint(url.rstrip("/"), folder, config, config.max_position_embeddings, None)
        return
    served = server.load(checkpoints[0], **SHAPES)
    loop, started, urls = asyncio.new_event_loop(), threading.Event(), []

    def ready(url: str) -> None:
        urls.append(url)
        started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(server.serve(served, "127.0.0.1", 0, ready))
        except asyncio.CancelledError:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30)
    yield Endpoint(urls[0], checkpoints[0], CONFIG, CONTEXT, served)
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    thread.join(10)
