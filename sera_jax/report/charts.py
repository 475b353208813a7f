"""The curves of a run report as plain data, for the page and for the PNGs alike.

A chart is a function from a run's metrics to series; what a run did not record gives none.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sera_jax import metrics
from sera_jax.report.runs import Run

Records = Sequence[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Series:
    """`low` and `high` are a 95 % interval around `y`; what belongs together shares a `colour`."""

    name: str
    x: list[int]
    y: list[float]
    low: list[float] = dataclasses.field(default_factory=list)
    high: list[float] = dataclasses.field(default_factory=list)
    dashed: bool = False
    colour: str = ""  # a name; "": of its own


@dataclasses.dataclass(frozen=True)
class Chart:
    """`scale`: "linear", "rate" (0 to 1 in percent) or "log"; `stacked` series add up."""

    name: str
    title: str
    note: str
    series: Callable[[Records], list[Series]]
    scale: str = "linear"
    stacked: bool = False
    main: bool = False  # also a PNG

    def panels(self, runs: Sequence[Run]) -> list[dict[str, Any]]:
        return [
            {"run": run.name, "series": [dataclasses.asdict(s) for s in self.series(run.metrics)]}
            for run in runs
        ]


def number(record: dict[str, Any], *path: str) -> float | None:
    """The number at `path`, None where there is none (a loss that went astray is text)."""
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, bool | int | float) else None


def line(records: Records, name: str, *path: str, **style: Any) -> list[Series]:
    """One series of the numbers at `path`, over the steps that have one."""
    points = [(r["step"], number(r, *path)) for r in records]
    points = [(x, y) for x, y in points if y is not None]
    if not points:
        return []
    return [Series(name, [x for x, _ in points], [y for _, y in points], **style)]


def lines(records: Records, *path: str, label: str) -> list[Series]:
    """A series for every key of the mapping at `path`."""
    keys: dict[str, None] = {}
    for record in records:
        inner: Any = record
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        keys |= dict.fromkeys(inner or {})
    names = {key: label.format(key).replace("_", " ") for key in sorted(keys)}
    found = [line(records, name, *path, key) for key, name in names.items()]
    return [series for one in found for series in one]


def _success(records: Records) -> list[Series]:
    """Success of the sampled trees by tier, with Wilson intervals; of all where that is missing."""
    tiers = dict.fromkeys(tier for r in records for tier in r.get("by_tier") or {})
    if not tiers:
        counts = [(r["step"], r["success"] * r["trees"], r["trees"]) for r in records if _ran(r)]
        return [_rate("all", counts)] if counts else []
    return [
        _rate(tier, [(r["step"], found["successes"], found["trees"]) for r, found in points])
        for tier in tiers
        if (points := [(r, r["by_tier"][tier]) for r in records if tier in r.get("by_tier", {})])
    ]


def _ran(record: dict[str, Any]) -> bool:
    return bool(record.get("trees")) and "success" in record


def _rate(name: str, counts: list[tuple[int, float, int]]) -> Series:
    intervals = [metrics.wilson(successes, n) for _, successes, n in counts]
    return Series(
        name,
        [step for step, _, _ in counts],
        [successes / n for _, successes, n in counts],
        [low for low, _ in intervals],
        [high for _, high in intervals],
    )


def _drift(records: Records) -> list[Series]:
    depths = sorted({depth for r in records for depth in r.get("drift") or {}})
    found = []
    for depth in depths:
        for kind in ("score", "verified"):
            style = {"dashed": kind == "verified", "colour": depth}
            found += line(records, f"{kind}, depth {depth}", "drift", depth, kind, **style)
    return found


def _ranking(records: Records) -> list[Series]:
    names = {
        "pairwise_accuracy": "pairs ranked right",
        "auc": "AUC",
        "margin_satisfaction": "right by the margin",
    }
    return [s for key, name in names.items() for s in line(records, name, "ranking", key)]


def _grading(records: Records) -> list[Series]:
    return [series for series in lines(records, "grading", label="{}") if any(series.y)]


def _advantages(records: Records) -> list[Series]:
    names = {"p95": "95th percentile", "mean": "mean", "p05": "5th percentile"}
    return [s for key, name in names.items() for s in line(records, name, "advantages", key)]


def _named(**keys: str) -> Callable[[Records], list[Series]]:
    """Series from top-level keys, each under its name: _named(loss="loss")."""
    return lambda records: [one for key, name in keys.items() for one in line(records, name, key)]


def _phases(records: Records) -> list[Series]:
    keys = dict.fromkeys(key for r in records for key in r if key.startswith("seconds_"))
    return [s for key in keys for s in line(records, key.removeprefix("seconds_"), key)]


def _external(records: Records) -> list[Series]:
    purposes = dict.fromkeys(p for r in records for p in r.get("supervision") or {})
    return [s for p in purposes for s in line(records, p, "supervision", p, "calls")]


def _external_tokens(records: Records) -> list[Series]:
    purposes = dict.fromkeys(p for r in records for p in r.get("supervision") or {})
    found = [s for p in purposes for s in line(records, p, "supervision", p, "input_tokens")]
    return [series for series in found if any(series.y)]


CHARTS = (
    Chart(
        "success",
        "Success of sampled trees",
        "Share of trees whose root reached its goal, by tier, with 95 % Wilson intervals.",
        _success,
        "rate",
        main=True,
    ),
    Chart(
        "reward_by_depth",
        "Reward by depth",
        "Mean execution reward of the nodes at each depth; depth 0 is the root.",
        lambda records: lines(records, "reward_by_depth", label="depth {}"),
        main=True,
    ),
    Chart(
        "drift",
        "Evaluator score against verified success",
        "Means over the nodes that have both. Solid lines leaving the dashed ones are drift.",
        _drift,
        "rate",
        main=True,
    ),
    Chart(
        "ranking",
        "Ranking within forked groups",
        "Over all pairs of a successful and a failed attempt at one goal.",
        _ranking,
        "rate",
        main=True,
    ),
    Chart(
        "score_by_outcome",
        "Scores of successes and failures",
        "Mean evaluator score of the attempts of forked groups, by depth and outcome.",
        lambda records: lines(records, "score_by_outcome", label="{}"),
        "rate",
    ),
    Chart(
        "grading",
        "Rubrics, scores, verdicts and forks",
        "Of each step, as they happened.",
        _grading,
    ),
    Chart("advantages", "Advantages", "Of the nodes or events trained on.", _advantages),
    Chart(
        "ratio",
        "Importance ratio",
        "Mean over trained tokens; 1 where trainer and server agree.",
        _named(ratio="ratio"),
    ),
    Chart(
        "clip",
        "Clipped tokens",
        "Share of trained tokens whose ratio lies outside its bounds.",
        _named(clip_fraction="clipped"),
        "rate",
    ),
    Chart(
        "gap",
        "Log-prob gap, mean",
        "Mean absolute difference between the server's and the trainer's log-probs.",
        _named(logprob_gap="mean gap"),
        "log",
    ),
    Chart(
        "gap_tail",
        "Log-prob gap, tail",
        "Share of tokens whose gap is above 0.1 nat.",
        _named(**{"logprob_gap_above_0.1": "above 0.1 nat"}),
        "rate",
    ),
    Chart("loss", "Loss", "Of the step's objective.", _named(loss="loss")),
    Chart(
        "gradient",
        "Gradient norm",
        "Before clipping.",
        _named(gradient_norm="gradient norm"),
        "log",
    ),
    Chart(
        "shape",
        "Shape of a tree",
        "Means over the step's trees.",
        _named(
            nodes="nodes", delegations="delegations", depth="depth", invalid_steps="invalid steps"
        ),
    ),
    Chart(
        "tokens",
        "Tokens a step",
        "Sampled by the policy, and trained on.",
        _named(generated_tokens="sampled", tokens="trained"),
        main=True,
    ),
    Chart("time", "Time by phase", "Seconds of each step.", _phases, stacked=True, main=True),
    Chart(
        "external",
        "Verifier and judge calls",
        "Since the start of the run, by purpose.",
        _external,
        stacked=True,
        main=True,
    ),
    Chart(
        "external_tokens",
        "Judge input tokens",
        "Since the start of the run; a program verifier reads none.",
        _external_tokens,
        stacked=True,
    ),
)
