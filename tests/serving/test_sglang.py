"""How SGLang is started, and what reads our exports in its environment."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import CONFIG, KEYS, make_params
from contract import prompt_of, trained_logprobs

from sera_jax.model import huggingface, qwen3
from sera_jax.serving import embedded, sglang
from sera_jax.serving.errors import PolicyServerError

STAND_IN = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ["SERA_API_KEY"]]))
"""


def test_what_sglang_is_started_with(tmp_path, monkeypatch):
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    (tmp_path / "serve.py").write_text(STAND_IN)
    monkeypatch.setattr(sglang, "FOLDER", tmp_path)
    monkeypatch.setattr(sglang, "installed", lambda: sys.executable)
    monkeypatch.setattr(sglang, "hardware", lambda: "cpu")
    log = tmp_path / "logs" / "server.log"
    process = sglang.start("model", log, context_length=100, slots=4, weight_version="7")
    assert process.wait(30) == 0
    arguments, key = json.loads(log.read_text())
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in arguments)
    assert 0 < int(flags.pop("port")) < 65_536
    assert flags == {
        "model-path": str(pathlib.Path("model").resolve()),
        "host": "127.0.0.1",
        "context-length": "106",  # what it keeps for itself on top
        "max-running-requests": "4",
        "max-total-tokens": "848",  # two contexts a request
        "weight-version": "7",
        "parent": str(os.getpid()),
        "skip-tokenizer-init": "",
    }
    # Keys go by the environment: command lines are for all to read.
    assert key == "normal-key" and not any(key in flag for flag in arguments)


def test_where_it_is_not_installed_the_error_says_how_to(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PolicyServerError, match="not installed.*\n.*install.sh c") as error:
        sglang.installed()
    folder = next(word for word in str(error.value).split() if str(tmp_path) in word).rstrip(":")
    pathlib.Path(folder).mkdir(parents=True)  # as an interrupted installation leaves it
    with pytest.raises(PolicyServerError, match="not installed"):
        sglang.installed()


def test_the_installer_says_how_it_is_used():
    told = subprocess.run([sglang.FOLDER / "install.sh"], capture_output=True, text=True)
    assert told.returncode == 2 and "install.sh cpu|cuda" in told.stderr


def test_transformers_reads_our_exports(tmp_path):
    """With a head and without, in float32, and in bfloat16 over several files."""
    try:
        python = sglang.installed()
    except PolicyServerError as error:
        pytest.skip(f"runs where torch and transformers are, in SGLang's environment: {error}")
    tied = dataclasses.replace(CONFIG, tie_embeddings=True)
    folders = []
    for name, config, params in [
        ("head", CONFIG, make_params(3)),
        ("tied", tied, qwen3.init(jax.random.key(3), tied)),
    ]:
        for dtype, limit in [("float32", 2**30), ("bfloat16", 20_000)]:
            folders.append(tmp_path / f"{name}-{dtype}")
            huggingface.export(params, config, folders[-1], dtype=dtype, max_shard_bytes=limit)
    ids = prompt_of(23, 40)
    script = embedded.ROOT / "tests" / "serving" / "transformers_logprobs.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.run(
        [python, script, json.dumps(ids), *folders],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    ).stdout
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    for folder, theirs in zip(folders, lines, strict=True):
        np.testing.assert_allclose(theirs, trained_logprobs(folder, ids), atol=1e-4)
