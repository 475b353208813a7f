"""Two processes on loopback: what they tell each other, and that neither waits for a dead one."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from sera_jax import hosts

ROOT = pathlib.Path(__file__).parents[1]

TWO = """
import os, signal, sys
import jax, numpy as np
from sera_jax import hosts

port, number, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with hosts.ending_at_once():
    hosts.start(f"127.0.0.1:{port}", 2, number)
    assert hosts.count() == 2 and hosts.is_first() == (number == 0) and hosts.on_one_machine()
    items = list("abcde")
    shares = hosts.gather(hosts.share(items))
    assert shares == [list("ace"), list("bd")] and hosts.interleaved(shares) == items
    assert hosts.gather_bytes(b"x" * (1 + 999 * number)) == [b"x", b"x" * 1000]
    assert hosts.from_first({"folder": number}) == {"folder": 0}

    mesh = jax.make_mesh((2,), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = np.arange(4.0)
    array = jax.make_array_from_callback((4,), split, lambda index: whole[index])
    assert hosts.fetch(array).tolist() == whole.tolist()

    hosts.check_alike({"steps": 3})
    if ending == "alike":
        hosts.check_alike({"steps": number})
    if number == 1:
        print("leaving", flush=True)
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if ending == "raises":
            raise RuntimeError("a fault of its own")
    hosts.gather("never answered" if ending != "ends" else "bye")
"""


def two(ending):
    """(exit status, what it said) of each process, and how long the last one took to end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    env = os.environ | {"JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(port), str(number), ending],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    second, _ = processes[1].communicate(timeout=120)
    since = time.monotonic()
    first, _ = processes[0].communicate(timeout=120)
    waited = time.monotonic() - since
    return [
        (p.returncode, said) for p, said in zip(processes, (first, second), strict=True)
    ], waited


def test_two_processes_share_gather_and_end_together():
    for status, said in two("ends")[0]:
        assert status == 0, said


def test_processes_with_different_configs_are_refused():
    for status, said in two("alike")[0]:
        assert status == 1 and "start all with the same --config flags" in said


@pytest.mark.parametrize("ending, status", [("killed", -signal.SIGKILL), ("raises", 1)])
def test_a_process_that_ends_takes_the_other_along(ending, status):
    ((first, said), (second, reason)), waited = two(ending)
    assert second == status and "leaving" in reason
    assert ("a fault of its own" in reason) == (ending == "raises")
    assert first == 1 and "the first one to end says why" in said and "Traceback" not in said
    assert waited < hosts.HEARTBEAT


def test_one_process_needs_no_other():
    value = {"nothing": object()}
    assert hosts.gather(value) == [value] and hosts.from_first(value) is value
    assert hosts.share([1, 2]) == [1, 2] and hosts.interleaved([[1, 2]]) == [1, 2]


def test_a_missing_coordinator_is_said_in_a_line():
    with pytest.raises(hosts.HostError, match="--coordinator"):
        hosts.start("127.0.0.1:1", processes=2, process=5)
