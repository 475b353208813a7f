"""The main job as a user runs it, made tiny: started, killed, and compared."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from safetensors.numpy import load_file

from sera_jax.metrics import read_lines
from sera_jax.tree_writer import read_trees

ROOT = pathlib.Path(__file__).parents[2]
TINY = (
    "--config=configs/textworld.py:small,sera",
    "--config.cycle=(('execution',1),('decomposition',1),('rubric',1))",
    "--config.rubrics.attempts=2",
    "--config.warmstart.tasks=400",
    "--config.warmstart.steps=400",
    "--config.train.steps=3",
    "--config.tasks.tiers=('easy',)",
    "--config.train.tasks=2",
    "--config.train.trees=3",
    "--config.run.checkpoint_every=1",
    "--config.run.save_trees=6",
    "--config.eval.tasks=2",
    "--config.server.slots=1",  # one request at a time: a run is a function of its seed
    "--config.server.replicas=1",
    "--config.server.max_concurrency=1",
)
OVERLAP = ("--config=configs/textworld.py:small,rao", "--config.train.overlap=True")
# One objective instead of three.
OVERLAPPING = (*OVERLAP, *(flag for flag in TINY[1:] if "cycle" not in flag))


def start(folder, *flags, job=TINY, env=None):
    command = [sys.executable, "launch/main.py", *job, f"--config.run.folder={folder}", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | (env or {}),
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return output


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def same_for_the_same_seed(record):
    """Without times, and what the servers counted, which begins anew with each start."""
    changing = ("seconds", "client", "sync")
    return {k: v for k, v in record.items() if not k.startswith(changing)}


def end_of(folder):
    """All that two runs of one seed have in common, to the bit."""
    weights = load_file(folder / "policy" / "model.safetensors")
    return {
        "metrics": [same_for_the_same_seed(r) for r in lines(folder / "metrics.jsonl")],
        "trees": list(read_trees(folder)),
        "weights": {name: value.tobytes() for name, value in weights.items()},
    } | {path.name: lines(path) for path in folder.glob("evaluation_*.jsonl")}


def differing(folder, whole):
    """Names of what differs between the ends of two runs."""
    ours, theirs = end_of(folder), end_of(whole)
    return sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))


def wait_until(process, condition, deadline=600.0):
    """False when the process ends first."""
    until = time.monotonic() + deadline
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.002)
    return True


def saving(folder, since=0.0):
    """Whether a checkpoint is half-written, by a start at time `since`."""
    return any(_newer(path, since) for path in (folder / "checkpoints").glob("*tmp*"))


def exporting(folder, since=0.0):
    """Weights for the servers that are half-written, by a start at time `since`."""
    return [p.name for p in (folder / "weights").glob("version-*.partial") if _newer(p, since)]


def kill(process):
    """SIGKILL; returns when the process and its servers are gone."""
    children = [pid for pid in map(int, _numbers("/proc")) if _parent(pid) == process.pid]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until = time.monotonic() + 20.0
    while alive := [pid for pid in children if _parent(pid) is not None]:
        assert time.monotonic() < until, f"servers outlive their run: {alive}"
        time.sleep(0.05)


def phase(folder, since=0.0):
    """What a run that was killed was doing, as the files of its start at time `since` tell."""
    if saving(folder, since):
        return "inside a save"
    if exporting(folder, since):
        return "inside an export"
    if _newer(folder / "policy.partial", since):
        return "inside the last export"
    if any(_newer(path, since) for path in folder.glob("evaluation_after_*.jsonl")):
        return "evaluation after"
    if not _newer(folder / "metrics.jsonl", since):  # opened anew when the servers are there
        return "starting"
    done = len(read_lines(folder / "metrics.jsonl"))
    return f"after {done} of 3 steps"


def _newer(path, since):
    try:
        return path.stat().st_mtime >= since
    except FileNotFoundError:  # renamed meanwhile
        return False


def _numbers(folder):
    return [name for name in os.listdir(folder) if name.isdigit()]


def _parent(pid):
    """None once the process is gone or a zombie."""
    try:
        state, parent, *_ = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()
    except OSError:
        return None
    return None if state == "Z" else int(parent)
