"""Success over a set of tasks, by tier and family, with intervals; knows nothing of servers.

    records = await evaluate(tasks, rollout_one, "run/eval.jsonl", concurrency=32)
    print(table({"before": summary(before), "after": summary(records)}))

`rollout_one` is an async callable from a task to its finished tree.
"""

import asyncio
import collections
import json
import os
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from sera_jax import metrics
from sera_jax.progress import Progress
from sera_jax.rollout.grading import COUNTS
from sera_jax.trees import Tree
from sera_jax.worlds.base import Task

Record = dict[str, Any]
Summary = dict[str, dict[str, Any]]

MEANS = ("nodes", "depth", "tokens", "world_actions")


class EvaluationError(Exception):
    """An evaluation that could not go on; the message says what to do."""


async def evaluate(
    tasks: Sequence[Task],
    rollout_one: Callable[[Task], Awaitable[Tree]],
    path: str | pathlib.Path,
    *,
    concurrency: int = 16,
    settings: Mapping[str, Any] | None = None,
    title: str = "evaluation",
) -> list[Record]:
    """One rollout a task, at most `concurrency` at a time; records in the order of `tasks`.

    Each finished task is one line of `path`, and tasks found there are not run again. `settings`
    (checkpoint, temperature, limits) are kept beside it: resuming under others is refused.
    The progress line is headed by `title`.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_settings(path, settings)
    lines = metrics.read_lines(path)
    metrics.rewrite_lines(path, lines)  # without a torn last line
    wanted = {task.task_id for task in tasks}
    records = {line["task_id"]: line for line in lines if line["task_id"] in wanted}
    progress = Progress(title, len(wanted), "tasks", done=len(records))
    slots = asyncio.Semaphore(concurrency)

    async def run(task: Task, file: TextIO) -> None:
        async with slots:
            try:
                tree = await rollout_one(task)
            except Exception as error:
                raise EvaluationError(
                    f"task {task.task_id} failed: {type(error).__name__}: {error}\n"
                    f"{len(records)} of {len(wanted)} tasks are in {path}: run the same command "
                    "again to go on from there"
                ) from error
        records[task.task_id] = record_of(task, tree)
        metrics.append_line(file, records[task.task_id])
        successes = sum(r["success"] for r in records.values())
        progress(len(records), f"success {100 * successes / len(records):.1f} %")

    try:
        with path.open("a") as file, progress:
            async with asyncio.TaskGroup() as group:
                for task in {t.task_id: t for t in tasks if t.task_id not in records}.values():
                    group.create_task(run(task, file))
    except ExceptionGroup as group:  # the first failure has cancelled the others
        failures, _ = group.split(EvaluationError)
        raise (failures or group).exceptions[0] from None
    return [records[task_id] for task_id in dict.fromkeys(task.task_id for task in tasks)]


async def evaluate_sets(
    sets: Mapping[str, Sequence[Task]],
    rollout_one: Callable[[Task, str], Awaitable[Tree]],
    stem: str | pathlib.Path,
    *,
    title: str,
    **options: Any,
) -> dict[str, list[Record]]:
    """Set name -> records; each set has its file, `stem` with its name, and its own tree ids."""
    results = {}
    for name, tasks in sets.items():
        results[name] = await evaluate(
            tasks,
            lambda task, name=name: rollout_one(task, f"{name}/{task.task_id}"),
            f"{stem}_{name}.jsonl",
            title=f"{title}, {name} tasks",
            **options,
        )
    return results


def saved_sets(
    sets: Mapping[str, Sequence[Task]], stem: str | pathlib.Path
) -> dict[str, list[Record]]:
    """What evaluate_sets has written, in the order of the tasks, without those that are missing."""
    results: dict[str, list[Record]] = {}
    for name, tasks in sets.items():
        found = {line["task_id"]: line for line in metrics.read_lines(f"{stem}_{name}.jsonl")}
        names = dict.fromkeys(task.task_id for task in tasks)
        results[name] = [found[task_id] for task_id in names if task_id in found]
    return results


def record_of(task: Task, tree: Tree) -> Record:
    """What evaluation keeps of a tree."""
    steps = [step for node in tree.nodes for step in node.steps]
    actions = sum(step.kind == "action" for step in steps)
    return {
        "task_id": task.task_id,
        "tier": task.tier,
        "family": task.family,
        "success": int(tree.reward > 0),
        "nodes": len(tree.nodes),
        "depth": max(node.depth for node in tree.nodes),
        "tokens": sum(step.end - step.start for step in steps),
        # The rollout knows which actions cost the world nothing (look-ups); a bare tree does not.
        "world_actions": tree.info.get("world_actions", actions),
        "choices": dict(collections.Counter(n.choice for n in tree.nodes if n.choice)),
    } | {name: tree.info[name] for name in COUNTS if tree.info.get(name)}


def summary(records: Sequence[Record]) -> Summary:
    """Rows "all", "tier: NAME" and "family: NAME", tiers and families as they first occur."""
    rows = {"all": list(records)} if records else {}
    for column in ("tier", "family"):
        for name in dict.fromkeys(record[column] for record in records):
            rows[f"{column}: {name}"] = [r for r in records if r[column] == name]
    return {name: _row(members) for name, members in rows.items()}


def counts(records: Sequence[Record]) -> dict[str, int]:
    """Rubrics, scores, verdicts and candidates of a whole evaluation, by rollout/grading.py."""
    found = {name: sum(record.get(name, 0) for record in records) for name in COUNTS}
    choices = collections.Counter()  # why which candidate was committed
    for record in records:
        choices.update(record["choices"])
    return found | {f"chosen by {reason}": count for reason, count in choices.items()}


def table(summaries: Mapping[str, Summary]) -> str:
    """Summaries side by side as aligned text: success in % with its 95 % interval, and n."""
    rows = dict.fromkeys(name for columns in summaries.values() for name in columns)
    rows = sorted(rows, key=lambda name: ("all", "tier", "family").index(name.split(":")[0]))
    cells = [["", *summaries]]
    for row in rows:
        cells.append([row, *(_cell(columns.get(row)) for columns in summaries.values())])
    for mean in MEANS:
        values = [columns.get("all", {}).get(mean) for columns in summaries.values()]
        if any(value is not None for value in values):
            cells.append([f"{mean.replace('_', ' ')} a task", *map(_number, values)])
    return aligned(cells)


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text columns, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for first, *others in cells:
        rest = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def _check_settings(path: pathlib.Path, settings: Mapping[str, Any] | None) -> None:
    if settings is None:
        return
    beside = path.with_suffix(".settings.json")
    settings = json.loads(json.dumps(metrics.redacted(settings)))
    before = json.loads(beside.read_text()) if beside.exists() and path.exists() else settings
    changed = sorted(k for k in {*settings, *before} if settings.get(k) != before.get(k))
    if changed:
        raise EvaluationError(
            f"{path} was written under other settings ({', '.join(changed)}): name another file, "
            "or delete it to evaluate afresh"
        )
    partial = beside.with_name(f"{beside.name}.partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n")
    os.replace(partial, beside)


def _row(records: Sequence[Record]) -> dict[str, Any]:
    successes = sum(record["success"] for record in records)
    low, high = metrics.wilson(successes, len(records))
    means = {key: float(np.mean([r[key] for r in records])) for key in MEANS}
    rate = successes / len(records)
    return {
        "n": len(records),
        "successes": successes,
        "rate": rate,
        "low": low,
        "high": high,
    } | means


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    rate, low, high = (100 * row[key] for key in ("rate", "low", "high"))
    return f"{rate:.1f} [{low:.1f}, {high:.1f}] n={row['n']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
