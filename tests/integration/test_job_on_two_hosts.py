"""The main job as two processes on loopback, each with half of the devices and of the tasks."""

import socket

import numpy as np
import pytest
from jobs import end_of, lines, start
from safetensors.numpy import load_file


def close(ours, theirs):
    """Equal but for the last digits of numbers, which the order of sums decides."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(close(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(theirs, float):
        return ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    return ours == theirs


def test_two_processes_end_as_one_does(whole, tmp_path):
    folder, one = tmp_path / "two", whole[0]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    processes = [
        start(
            folder,
            f"--coordinator={address}",
            "--processes=2",
            f"--process={number}",
            env={"JAX_NUM_CPU_DEVICES": "1"},  # `whole` has a mesh of two devices as well
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "trained policy" in said[0] and "step 1/3" not in said[1]  # it speaks to its log
    assert "step 1/3" in (folder / "process-1" / "log").read_text()

    ours, theirs = end_of(folder), end_of(one)
    for name in ("metrics", "trees"):
        assert close(ours[name], theirs[name]), name
    for name in (key for key in theirs if key.startswith("evaluation")):
        by_task = {record["task_id"]: record for record in ours[name]}
        assert by_task == {record["task_id"]: record for record in theirs[name]}
        assert 0 < len(lines(folder / "process-1" / name)) < len(by_task)
    first, second = (load_file(f / "policy" / "model.safetensors") for f in (folder, one))
    # One Adam step of a rate of 3e-4, whose size says little of the gradient's.
    assert max(np.abs(first[name] - second[name]).max() for name in second) < 2e-5
