"""Starts SGLang as a child process: its Python environment is its own (third_party/sglang)."""

import os
import pathlib
import subprocess

from sera_jax.serving import embedded
from sera_jax.serving.errors import PolicyServerError
from sera_jax.serving.supervisor import free_port

FOLDER = embedded.ROOT / "third_party" / "sglang"
# SGLang refuses prompts that leave no more than this of its context, and ends answers just short
# of its end; the embedded server and the client use a context whole.
RESERVED = 6
CACHED_CONTEXTS = 2  # tokens of KV cache on a CPU, in contexts a running request


def start(
    model: str | pathlib.Path,
    log: str | pathlib.Path,
    *,
    context_length: int,
    slots: int,
    port: int = 0,
    weight_version: str = "default",
) -> subprocess.Popen:
    """Runs SGLang over a checkpoint folder; embedded.wait_until_healthy then gives its URL.

    Prompt and answer may take `context_length` tokens together, `slots` requests run at once, and
    port 0 picks a free one. It dies with this process; its output goes to the file `log`. Raises
    PolicyServerError where SGLang is not installed.
    """
    flags = {
        "model-path": pathlib.Path(model).resolve(),
        "host": "127.0.0.1",
        "port": port or free_port(),
        "context-length": context_length + RESERVED,
        "max-running-requests": slots,
        "weight-version": weight_version,
        "parent": os.getpid(),
    }
    if hardware() == "cpu":  # a GPU's memory says how much it can hold
        flags["max-total-tokens"] = CACHED_CONTEXTS * slots * (context_length + RESERVED)
    pathlib.Path(log).parent.mkdir(parents=True, exist_ok=True)
    command = [installed(), FOLDER / "serve.py", *(f"--{k}={v}" for k, v in flags.items())]
    command.append("--skip-tokenizer-init")  # token ids alone pass in and out
    with open(log, "wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # as for the embedded server: Ctrl-C is for the trainer
        )


def installed() -> pathlib.Path:
    """The python of SGLang's environment; raises, with the command that makes it, if missing."""
    kind = hardware()
    command = [FOLDER / "install.sh", kind, "--where"]
    python = pathlib.Path(subprocess.check_output(command, text=True).strip())
    if not (python.parents[1] / "complete").exists():
        raise PolicyServerError(
            f"SGLang is not installed; this installs it into {python.parents[1]}:\n"
            f"  third_party/sglang/install.sh {kind}"
        )
    return python


def hardware() -> str:
    return "cuda" if pathlib.Path("/dev/nvidiactl").exists() else "cpu"
