"""Several processes that are one run: how they start, share out work, agree, and end.

Each process owns some of the accelerators and samples its share of the tasks. What each has
sampled goes to all of them, so that credit, packing and every decision are computed alike
everywhere, from the same numbers; process 0 alone writes the run's records. Every function that
says "all" is called by all processes at the same point. With one process they cost nothing.

No process outlives another for long: one that fails ends at once, and one that vanishes is missed
by JAX's heartbeat, which then ends the others.
"""

import contextlib
import json
import os
import pathlib
import socket
import sys
import traceback
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from sera_jax.redaction import redacted

T = TypeVar("T")

HEARTBEAT = 60  # seconds after which a process that vanished is missed


class HostError(Exception):
    """The processes of a run do not work together; the message says why."""


def start(coordinator: str, processes: int | None, process: int | None) -> None:
    """Joins the run's other processes; call it before anything else touches JAX's devices.

    `coordinator` is HOST:PORT of process 0, or "auto": then SLURM's or the TPU's environment says
    all three. HostError where the others do not come.
    """
    given = {"num_processes": processes, "process_id": process}
    if coordinator != "auto":
        given["coordinator_address"] = coordinator
    # JAX would take SIGTERM for itself, and a job that is told to end would not.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **given,
            initialization_timeout=300,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except (RuntimeError, TypeError, ValueError) as error:
        raise HostError(
            f"no run of several processes at {coordinator}: {_first_line(error)} "
            "(--coordinator, --processes and --process; or --coordinator=auto under SLURM or on "
            "a TPU)"
        ) from None
    gather(None)  # collectives on CPUs connect at their first use, and wait 30 s for each other


def count() -> int:
    return jax.process_count()


def is_first() -> bool:
    """Whether this is process 0, which writes."""
    return jax.process_index() == 0


def share(items: Sequence[T]) -> list[T]:
    """This process's part: every count()-th item."""
    return list(items[jax.process_index() :: count()])


def interleaved(shares: Sequence[Sequence[T]]) -> list[T]:
    """The items whose `share` each process had, in their old order."""
    longest = max(map(len, shares))
    return [items[i] for i in range(longest) for items in shares if i < len(items)]


def gather(value: Any) -> list[Any]:
    """The JSON values of all processes, in their order."""
    if count() == 1:
        return [value]
    return [json.loads(data) for data in gather_bytes(json.dumps(value).encode())]


def gather_bytes(data: bytes) -> list[bytes]:
    """The bytes of all processes, in their order; HostError where one does not answer."""
    if count() == 1:
        return [data]
    data = zlib.compress(data, 1)
    try:
        lengths = multihost_utils.process_allgather(np.array([len(data)], np.int32)).ravel()
        # Powers of two: every new shape would compile anew.
        padded = np.zeros(1 << int(lengths.max() - 1).bit_length(), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = multihost_utils.process_allgather(padded)
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # which of them is the backend's
        raise HostError(_lost(error)) from None
    return [
        zlib.decompress(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)
    ]


def from_first(value: Any) -> Any:
    """Process 0's value on all."""
    return gather(value)[0]


def fetch(array: jax.Array) -> np.ndarray:
    """A whole array on all, wherever its parts lie."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def check_alike(config: Any) -> None:
    """HostError unless all were started with one config."""
    own = json.dumps(redacted(config), sort_keys=True)
    different = [n for n, other in enumerate(gather(own)) if other != own]
    if different:
        raise HostError(
            f"process {jax.process_index()} has another config than process {different[0]}: start "
            "all with the same --config flags"
        )


def on_one_machine() -> bool:
    """Whether all reach each other's loopback address."""
    return len(set(gather(socket.gethostname()))) == 1


def own_folder(folder: pathlib.Path) -> pathlib.Path:
    """Where this process writes what is its own: the run's folder for the first one."""
    return folder if is_first() else folder / f"process-{jax.process_index()}"


@contextlib.contextmanager
def speaking_for_all(folder: pathlib.Path) -> Iterator[None]:
    """Leaves the screen to process 0; what others say goes to a file `log` of their own."""
    if is_first():
        yield
        return
    own_folder(folder).mkdir(parents=True, exist_ok=True)
    with (own_folder(folder) / "log").open("a", buffering=1) as log:
        with contextlib.redirect_stdout(log):
            yield


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """An error ends this process without waiting for the others, who wait for it."""
    try:
        yield
    except SystemExit as error:
        end(error.code)
    except HostError as error:
        end(error)
    except jax.errors.JaxRuntimeError as error:
        if count() == 1:
            raise
        end(_lost(error))
    except Exception:
        if count() == 1:
            raise
        end(traceback.format_exc())


def end(message: Any) -> NoReturn:
    """sys.exit, but with several processes without JAX's farewell, which waits for all."""
    if count() == 1:
        sys.exit(message)
    print(f"process {jax.process_index()}: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def _lost(error: Exception) -> str:
    return (
        "the processes lost each other; the first one to end says why in its own output "
        f"({_first_line(error)})"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
