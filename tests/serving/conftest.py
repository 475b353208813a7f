"""Tiny random checkpoints and a policy server over one of them, shared by the serving tests.

The contract tests speak HTTP alone and run against either server: `pytest --server=sglang`.
"""

import contextlib
import json
import pathlib
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import jax
import pytest

from sera_jax.model import huggingface, qwen3
from sera_jax.serving import client, embedded, fleet, sglang
from sera_jax.serving.server import ADMIN_KEY_ENV, API_KEY_ENV

CONTEXT = 96
CONFIG = qwen3.Config(
    64, 32, 64, 2, 2, 1, 16, 1e4, tie_embeddings=False, max_position_embeddings=1024
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
# Long enough that a request can be met half-way.
SERVED_CONTEXT, SERVED_SLOTS = 256, 8
KEYS = {API_KEY_ENV: "normal-key", ADMIN_KEY_ENV: "admin-key"}
CONTROL = ("/flush_cache", "/abort_request", "/pause_generation", "/continue_generation")
CONTROL += ("/update_weights_from_disk",)


@dataclass(frozen=True)
class Endpoint:
    """A server that holds `checkpoint` under the version "default", and wants keys."""

    kind: str
    url: str
    checkpoint: pathlib.Path
    log: pathlib.Path

    def call(self, path: str, body: Any = None, key: str | None = "due") -> tuple[int, Any]:
        """-> status, answer, decoded where it is JSON. POST where there is a body."""
        if key == "due":
            key = KEYS[ADMIN_KEY_ENV if path in CONTROL else API_KEY_ENV]
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        data = None if body is None else json.dumps(body).encode()
        http = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(http, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


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
def endpoint(request, checkpoints, tmp_path_factory):
    """The server that --server asks for, as a child process."""
    kind = request.config.getoption("server")
    log = tmp_path_factory.mktemp("server") / "server.log"
    if kind == "sglang":
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            subprocess.run([sglang.FOLDER / "install.sh", sglang.hardware()], check=True)
    with pytest.MonkeyPatch.context() as environment:
        for name, key in KEYS.items():
            environment.setenv(name, key)
        process = START[kind](checkpoints[0], log)
    with contextlib.ExitStack() as stack:
        stack.callback(embedded.stop, process)
        url = embedded.wait_until_healthy(process, log, 600.0)
        yield Endpoint(kind, url, checkpoints[0], log)


def _start_embedded(model: pathlib.Path, log: pathlib.Path) -> subprocess.Popen:
    flags = (f"--context_length={SERVED_CONTEXT}", f"--slots={SERVED_SLOTS}", "--replicas=1")
    return embedded.start(model, log, *flags)


def _start_sglang(model: pathlib.Path, log: pathlib.Path) -> subprocess.Popen:
    return sglang.start(model, log, context_length=SERVED_CONTEXT, slots=SERVED_SLOTS)


START = {"embedded": _start_embedded, "sglang": _start_sglang}


@pytest.fixture
def no_waiting(monkeypatch):
    """Retries and tests of failed servers follow at once."""
    monkeypatch.setattr(client, "BACKOFF", 0.001)
    monkeypatch.setattr(fleet, "AGAIN", 0.02)
