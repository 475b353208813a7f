"""The server as a child process, and the way of new weights to it."""

import asyncio
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import CONFIG, CONTEXT, make_params

from sera_jax.serving import embedded, server, weight_sync
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.errors import PolicyServerError

FLAGS = ("--slots=4", "--replicas=1", f"--context_length={CONTEXT}")


def test_a_child_serves_takes_new_weights_and_ends(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv(server.API_KEY_ENV, "normal")
    monkeypatch.setenv(server.ADMIN_KEY_ENV, "admin")

    async def use(url):
        async with PolicyClient(url, vocab_size=64, context_length=CONTEXT) as client:
            for version in ("1", "2"):
                synced = await weight_sync.sync(
                    client, make_params(1), CONFIG, tmp_path / "weights", version=version
                )
            options = {"temperature": 1.0, "stop_token_ids": (), "seed": 1}
            return synced, await client.generate([1, 2, 3], max_new_tokens=5, **options)

    with embedded.embedded_server(checkpoints[0], tmp_path / "log" / "server.log", *FLAGS) as url:
        synced, got = asyncio.run(use(url))
        # The older export is gone.
        assert {p.name for p in (tmp_path / "weights").iterdir()} == {"version-2", "last.json"}
        assert synced.path.name == "version-2" and synced.logprob_gap < 1e-4
        assert synced.bytes == sum(file.stat().st_size for file in synced.path.iterdir())
        assert got.versions == (("2", 5),)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/model_info", timeout=10)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=10)
    assert "normal" not in (tmp_path / "log" / "server.log").read_text()


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path):
    with pytest.raises(PolicyServerError, match=r"status 1: serve: .*config\.json") as error:
        with embedded.embedded_server(tmp_path / "no", tmp_path / "server.log", *FLAGS):
            pass
    assert "\n" not in str(error.value)


def test_the_child_dies_with_its_parent(tmp_path):
    child = tmp_path / "pid"
    code = f"""
import os, signal, subprocess, sys, time
from sera_jax.serving import embedded
if len(sys.argv) > 1:
    embedded.die_with_parent(int(sys.argv[1]))
    open({str(child)!r}, "w").write(str(os.getpid()))
    time.sleep(60)
subprocess.Popen([sys.executable, __file__, str(os.getpid())])
while not os.path.exists({str(child)!r}):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    script = tmp_path / "parent.py"
    script.write_text(code)
    root = pathlib.Path(embedded.__file__).parents[2]
    subprocess.run([sys.executable, script], env=os.environ | {"PYTHONPATH": str(root)}, timeout=30)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.05)
    assert not _alive(child)


def _alive(file: pathlib.Path) -> bool:
    stat = pathlib.Path(f"/proc/{file.read_text() or 'x'}/stat")
    return stat.exists() and stat.read_text().split()[2] != "Z"
