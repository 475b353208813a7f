"""What a run reports: metrics as JSON lines, a progress line a step, its provenance and config.

Pure Python and NumPy: reports and evaluation import it without an accelerator runtime.
"""

import collections
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sera_jax import rewards as rewards_lib
from sera_jax.redaction import plain, redacted
from sera_jax.trees import Tree

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers")


class MetricsWriter:
    """Appends one flushed JSON line a step to `metrics.jsonl` of a run folder.

    `resume_step` is the first step that the resumed run carries out: lines of it and of later
    ones, written after the checkpoint, are dropped, so that each step has one line.
    """

    def __init__(self, folder: str | pathlib.Path, resume_step: int | None = None):
        self.path = pathlib.Path(folder) / "metrics.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = read_lines(self.path)
        if resume_step is not None:
            lines = [line for line in lines if line["step"] < resume_step]
        rewrite_lines(self.path, lines)
        self._file = self.path.open("a")

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        append_line(self._file, {"step": step, **metrics})

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def read_lines(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file, [] where there is none; a torn last line is left out."""
    path = pathlib.Path(path)
    text = path.read_text() if path.exists() else ""
    records = []
    *complete, _torn = text.split("\n")  # what follows the last newline was not finished
    for number, line in enumerate(complete, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error}): remove it") from None
    return records


def rewrite_lines(path: str | pathlib.Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the file at once, so that an interruption leaves the old or the new one."""
    path = pathlib.Path(path)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(plain(r)) + "\n" for r in records))
    os.replace(temporary, path)


def append_line(file: Any, record: Mapping[str, Any]) -> None:
    file.write(json.dumps(plain(record), allow_nan=False) + "\n")
    file.flush()


def tree_metrics(
    trees: Sequence[Tree],
    execution_rewards: Callable[[Tree], Mapping[str, float]] = rewards_lib.execution_rewards,
) -> dict[str, Any]:
    """Summary of a batch: success, size and shape of its trees, mean reward by depth.

    Means are over trees, except the rewards', which are over the nodes that have one. `statuses`
    counts nodes, the roots' apart.
    """
    if not trees:
        return {"trees": 0}
    nodes = [node for tree in trees for node in tree.nodes]
    steps = [step for node in nodes for step in node.steps]
    roots = [tree.root for tree in trees]
    return {
        "trees": len(trees),
        "success": float(np.mean([tree.reward for tree in trees])),
        "nodes": len(nodes) / len(trees),
        "delegations": sum(step.kind == "delegate" for step in steps) / len(trees),
        "empty_delegations": sum(s.kind == "delegate" and not s.children for s in steps)
        / len(trees),
        "depth": float(np.mean([max(n.depth for n in tree.nodes) for tree in trees])),
        "steps": len(steps) / len(trees),
        "invalid_steps": sum(step.kind == "invalid" for step in steps) / len(trees),
        "generated_tokens": sum(step.end - step.start for step in steps),
        "reward_by_depth": _mean_by_depth(
            (node.depth, reward)
            for tree in trees
            for node, reward in _with_values(tree, execution_rewards(tree))
        ),
        "verified_by_depth": _mean_by_depth(
            (node.depth, node.verified) for node in nodes if node.verified is not None
        ),
        "root_statuses": dict(collections.Counter(node.status for node in roots)),
        "child_statuses": dict(
            collections.Counter(n.status for n in nodes if n.parent is not None)
        ),
    }


def version_lag(trees: Sequence[Tree], version: int) -> dict[str, float]:
    """Updates from the weights that sampled a token to those it trains, `version` (METHOD 5)."""
    lags = [
        (version - int(sampled), count)
        for tree in trees
        for node in tree.nodes
        for step in node.steps
        for sampled, count in step.versions
    ]
    tokens = sum(count for _, count in lags)
    if not tokens:
        return {}
    mean = sum(lag * count for lag, count in lags) / tokens
    return {"version_lag_max": max(lag for lag, _ in lags), "version_lag_mean": mean}


def ranking_metrics(
    groups: Sequence[tuple[Sequence[float | None], Sequence[bool | None]]], margin: float = 0.2
) -> dict[str, Any]:
    """How well scores tell successes from failures among the attempts at one goal (METHOD 9).

    `groups` holds (scores, outcomes) of each forked delegation. Over all pairs of a success and a
    failure within a group: `pairwise_accuracy`, the share ranked right; `auc`, the same with ties
    counted half; `margin_satisfaction`, the share that is right by the margin.
    """
    gaps = [rewards_lib.success_failure_gaps(scores, outcomes)[0] for scores, outcomes in groups]
    mixed = [gap.ravel() for gap in gaps if gap.size]
    counts = {"groups": len(gaps), "mixed_groups": len(mixed)}
    if not mixed:
        return counts
    pairs = np.concatenate(mixed)
    return {
        **counts,
        "pairwise_accuracy": float((pairs > 0).mean()),
        "auc": float((pairs > 0).mean() + 0.5 * (pairs == 0).mean()),
        "margin_satisfaction": float((pairs >= margin).mean()),
    }


def progress_line(
    step: int, total: int, metrics: Mapping[str, Any], seconds_left: float | None = None
) -> str:
    """One line for the screen; parts whose metrics are absent are left out."""
    parts = [f"step {step + 1}/{total} {metrics.get('objective', '')}".rstrip()]
    if "success" in metrics:
        parts.append(f"success {metrics['success']:.2f}")
    if metrics.get("reward_by_depth"):
        by_depth = metrics["reward_by_depth"].items()
        parts.append("reward " + " ".join(f"d{depth} {value:.2f}" for depth, value in by_depth))
    if "nodes" in metrics:
        parts.append(f"{metrics['nodes']:.1f} nodes {metrics['delegations']:.1f} delegations/tree")
    if "generated_tokens" in metrics:
        parts.append(f"{short_count(metrics['generated_tokens'])} tokens")
    phases = ("sampling", "training", "syncing")
    seconds = [f"{p} {metrics[f'seconds_{p}']:.1f}s" for p in phases if f"seconds_{p}" in metrics]
    if seconds:
        parts.append(" ".join(seconds))
    if seconds_left is not None:
        parts.append(f"{short_time(seconds_left)} left")
    return " | ".join(parts)


def seconds_left(step_seconds: Sequence[float], remaining: int, window: int = 20) -> float | None:
    """Remaining steps at the mean pace of the last cycle, whose steps differ in length."""
    recent = list(step_seconds)[-window:]
    return remaining * sum(recent) / len(recent) if recent else None


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a success rate, 95 % by default; (0, 1) where nothing was tried."""
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    centre = rate + z**2 / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def short_time(seconds: float) -> str:
    """A duration for people: "42s", "7m05s", "3h20m"."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def short_count(count: float) -> str:
    """A count for people: "950", "41.2k", "3.1M"."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{suffix}"
    return f"{count:.0f}"


def write_config(folder: str | pathlib.Path, config: Any) -> None:
    """`config.json` of a run folder: every setting as used, without keys and other secrets."""
    path = pathlib.Path(folder) / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(redacted(config), indent=2) + "\n")


def write_provenance(folder: str | pathlib.Path, **facts: Any) -> None:
    """Adds a line to `provenance.jsonl`: what code and packages this start of the run used.

    A line a start, because a resumed run may go on with another revision.
    """
    record = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redacted(sys.argv),
        "git": git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        **redacted(facts),
    }
    path = pathlib.Path(folder) / "provenance.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rewrite_lines(path, [*read_lines(path), record])


def git_revision() -> dict[str, Any] | None:
    """Commit of the checkout this package runs from, and whether files differ from it."""
    folder = pathlib.Path(__file__).resolve().parent
    try:
        commit, status = (
            subprocess.run(
                ["git", *command], cwd=folder, capture_output=True, text=True, check=True
            ).stdout
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.strip(), "changed": bool(status.strip())}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _with_values(tree: Tree, values: Mapping[str, float]):
    return [(node, values[node.id]) for node in tree.nodes if node.id in values]


def _mean_by_depth(pairs) -> dict[str, float]:
    """Mean value of each depth; text keys, for JSON has no others."""
    by_depth = collections.defaultdict(list)
    for depth, value in pairs:
        by_depth[depth].append(float(value))
    return {str(depth): float(np.mean(by_depth[depth])) for depth in sorted(by_depth)}
