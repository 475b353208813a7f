"""Starts the embedded policy server as a child process, and stops it."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sera_jax.serving.errors import PolicyServerError
from sera_jax.serving.supervisor import health

READY = "Policy server ready at "
ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextmanager
def embedded_server(
    model: str | pathlib.Path, log: str | pathlib.Path, *flags: str, timeout: float = 600.0
) -> Iterator[str]:
    """Runs launch/serve.py on a free port -> its URL, once it is healthy.

    What the server prints goes to the file `log`. It ends with the block, and with this process
    however that ends.
    """
    process = start(model, log, *flags)
    try:
        yield wait_until_healthy(process, log, timeout)
    finally:
        stop(process)


def start(
    model: str | pathlib.Path, log: str | pathlib.Path, *flags: str, port: int = 0
) -> subprocess.Popen:
    """Port 0 picks a free one, which wait_until_healthy finds."""
    pathlib.Path(log).parent.mkdir(parents=True, exist_ok=True)
    model = pathlib.Path(model).resolve()
    command = [sys.executable, "-m", "launch.serve", f"--model={model}", f"--port={port}", *flags]
    with open(log, "wb") as output:
        return subprocess.Popen(
            [*command, f"--parent={os.getpid()}"],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            # Ctrl-C in a terminal is for the trainer: it may still need the server to end well.
            start_new_session=True,
        )


def wait_until_healthy(process: subprocess.Popen, log: str | pathlib.Path, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        lines = pathlib.Path(log).read_text(errors="replace").splitlines()
        url = next((line.removeprefix(READY) for line in lines if line.startswith(READY)), None)
        if url and health(url, timeout=5.0) == 200:
            return url
        if process.poll() is not None:
            raise PolicyServerError(
                f"the policy server ended with status {process.returncode}: "
                f"{_last(lines)} (log: {log})"
            )
        time.sleep(0.1)
    raise PolicyServerError(f"the policy server was not ready after {timeout:g} s (log: {log})")


def stop(process: subprocess.Popen, timeout: float = 10.0) -> None:
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def die_with_parent(parent: int) -> None:
    """Called in the child: the kernel ends it when the process that started it ends.

    Linux counts the *thread* that started the child, so start it from the main thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it went before we asked
        sys.exit("the process that started the policy server is gone")


def _last(lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")
