"""One HTML file that holds the report, its data and its code, and asks no network for anything.

The data lies in inert blocks of base64 (gzip inside), one a tree, unpacked when a tree is opened:
no character of policy text is ever part of the markup, and a page of many trees loads at once.
The content security policy runs this page's own script and no other.
"""

import base64
import datetime
import gzip
import hashlib
import html
import itertools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from sera_jax import evaluate, metrics
from sera_jax.progress import Progress
from sera_jax.report import charts, viewer
from sera_jax.report.runs import Run
from sera_jax.tree_writer import count_trees, read_trees

STATIC = pathlib.Path(__file__).parent / "static"
SCRIPTS = ("dom.js", "charts.js", "overview.js", "list.js", "tree.js", "node.js", "app.js")
MAX_TREES = 1000
MAX_BYTES = 64 << 20  # of packed trees: what a browser opens without a wait


def build(runs: Sequence[Run]) -> str:
    """The whole page."""
    rows, payloads, saved = _trees(runs)
    title = " and ".join(run.name for run in runs)
    overview = {
        "title": title,
        "written": datetime.datetime.now().isoformat(sep=" ", timespec="minutes"),
        "runs": [_facts(run) for run in runs],
        "charts": [_chart(chart, runs) for chart in charts.CHARTS],
        "heldOut": _held_out(runs),
        "settings": _settings(runs),
        "trees": rows,
        "saved": saved,
    }
    blocks = [_block("overview", _pack(overview))]
    blocks += [_block(f"tree-{i}", payload) for i, payload in enumerate(payloads)]
    script = "".join((STATIC / name).read_text() for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    style = (STATIC / "style.css").read_text()
    page = (STATIC / "page.html").read_text()
    parts = {
        "TITLE": html.escape(f"{title} - sera_jax"),
        "SCRIPT_HASH": _hash(script),
        "STYLE_HASH": _hash(style),
        "STYLE": style,
        "DATA": "\n".join(blocks),
        "SCRIPT": script,
    }
    # Split, so that nothing in a part is taken for another's place.
    pieces = page.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _trees(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """Rows, packed payloads and how many trees were saved; one of every so many where too many."""
    saved = sum(count_trees(run.folder) for run in runs)
    every = max(1, math.ceil(saved / MAX_TREES))
    found, numbers = [], itertools.count()
    with Progress("report", saved, "trees") as progress:
        for index, run in enumerate(runs):
            for record, number in zip(read_trees(run.folder), numbers, strict=False):
                if number % every == 0:
                    packed = _pack(viewer.payload(record, run.tokenizer))
                    found.append((viewer.row(record, index), packed))
                progress(number + 1)
    while sum(len(packed) for _, packed in found) > MAX_BYTES:
        found = found[::2]
    return [row for row, _ in found], [packed for _, packed in found], saved


def _facts(run: Run) -> dict[str, Any]:
    """What one wants to know first of a run, as text by label."""
    last = run.metrics[-1] if run.metrics else {}
    seconds = sum(charts.number(r, "seconds_step") or 0 for r in run.metrics)
    tokens = sum(charts.number(r, "generated_tokens") or 0 for r in run.metrics)
    calls = sum(used["calls"] for used in (last.get("supervision") or {}).values())
    first = run.provenance[0] if run.provenance else {}
    git = first.get("git") or {}
    commit = git.get("commit", "")[:10] + (" and changes" if git.get("changed") else "")
    facts = {
        "Optimizer steps": f"{last['step'] + 1}" if last else "0",
        "Objectives": ", ".join(dict.fromkeys(r.get("objective", "?") for r in run.metrics)),
        "Trees sampled": metrics.short_count(sum(r.get("trees", 0) for r in run.metrics)),
        "Tokens sampled": metrics.short_count(tokens),
        "Verifier and judge calls": metrics.short_count(calls),
        "Time in training steps": metrics.short_time(seconds),
        "Benchmark": run.config.get("benchmark", ""),
        "Preset": run.config.get("preset", ""),
        "Execution reward": str((run.config.get("rewards") or {}).get("execution", "")),
        "Started": first.get("time", ""),
        "Commit": commit,
        "Folder": str(run.folder),
    }
    return {"name": run.name, "facts": {k: v for k, v in facts.items() if v}}


def _chart(chart: charts.Chart, runs: Sequence[Run]) -> dict[str, Any]:
    shown = ("name", "title", "note", "scale", "stacked")
    return {name: getattr(chart, name) for name in shown} | {"panels": chart.panels(runs)}


def _held_out(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows of success with its interval: run, set, tier or family, before or after."""
    return [
        {"run": run.name, "set": name, "when": when, "group": group}
        | {key: row[key] for key in ("rate", "low", "high", "n")}
        for run in runs
        for name, columns in run.evaluations.items()
        for when, records in columns.items()
        for group, row in evaluate.summary(records).items()
    ]


def _settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every setting by name with each run's value, those that differ marked."""
    flat = [dict(_flatten(run.config)) for run in runs]
    rows = []
    for name in sorted({name for one in flat for name in one}):
        values = [one.get(name, "") for one in flat]
        rows.append({"name": name, "values": values, "differ": len(set(values)) > 1})
    return rows


def _flatten(value: Any, prefix: str = ""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _pack(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0))


def _block(name: str, packed: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{packed.decode("ascii")}</script>'


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
