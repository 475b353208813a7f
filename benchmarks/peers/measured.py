"""What every peer measures of a step, in its own process. Standard library and NumPy only."""

import ctypes
import json
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np


def arguments() -> tuple[pathlib.Path, dict[str, np.ndarray], str, int]:
    """FOLDER KIND STEPS -> checkpoint folder, inputs [B, T], kind, steps to time."""
    folder, kind, steps = sys.argv[1:]
    return (
        pathlib.Path(folder),
        dict(np.load(pathlib.Path(folder) / "inputs.npz")),
        kind,
        int(steps),
    )


def report(step: Callable[[], tuple[float, dict[str, np.ndarray]]], steps: int) -> None:
    """Times `step`, which returns the loss and gradients by Hugging Face name, after one warm-up.

    Prints one line of JSON. The peak is that of the whole process while it steps.
    """
    loss, gradients = step()
    norms = {
        name: float(np.linalg.norm(np.asarray(g, np.float64))) for name, g in gradients.items()
    }
    del gradients
    ctypes.CDLL(None).malloc_trim(0)  # what compilation left on the heap is no part of a step
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # starts the peak anew
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    status = pathlib.Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    figures = {"wall": wall / steps, "cpu": cpu / steps, "peak": peak}
    print(json.dumps(figures | {"loss": float(loss), "norms": norms}))
