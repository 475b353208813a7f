"""Curves from metrics: intervals, gaps, and what was not recorded."""

import json

import pytest

from sera_jax import metrics
from sera_jax.report import figures, runs
from sera_jax.report.charts import CHARTS, line

BY_NAME = {chart.name: chart for chart in CHARTS}


def series(name, records):
    return {s.name: s for s in BY_NAME[name].series(records)}


def test_success_by_tier_with_wilson_intervals():
    once = {"trees": 1, "successes": 0}
    records = [
        {"step": 0, "by_tier": {"easy": {"trees": 8, "successes": 4}}},
        {"step": 1, "by_tier": {"easy": {"trees": 8, "successes": 8}, "hard": once}},
    ]
    found = series("success", records)
    assert (found["easy"].x, found["easy"].y) == ([0, 1], [0.5, 1.0])
    assert (found["easy"].low[0], found["easy"].high[0]) == metrics.wilson(4, 8)
    assert found["hard"].x == [1]


def test_success_of_all_where_tiers_were_not_recorded():
    found = series("success", [{"step": 0, "trees": 4, "success": 0.25}, {"step": 1, "trees": 0}])
    assert (found["all"].x, found["all"].y) == ([0], [0.25])


def test_a_loss_that_went_astray_is_a_gap():
    records = [{"step": 0, "loss": 1}, {"step": 1, "loss": "nan"}, {"step": 2}]
    (loss,) = line(records, "loss", "loss")
    assert (loss.x, loss.y) == ([0], [1.0])


def test_drift_pairs_each_score_with_its_outcome():
    found = series("drift", [{"step": 3, "drift": {"1": {"score": 0.8, "verified": 0.5}}}])
    score, verified = found["score, depth 1"], found["verified, depth 1"]
    assert (score.y, verified.y) == ([0.8], [0.5])
    assert verified.dashed and not score.dashed and verified.colour == score.colour


def test_counts_that_stay_zero_are_not_drawn():
    assert list(series("grading", [{"step": 0, "grading": {"forks": 2, "scores_invalid": 0}}])) == [
        "forks"
    ]


def test_a_program_verifier_draws_no_token_curve():
    record = {"step": 0, "supervision": {"child": {"calls": 3, "input_tokens": 0}}}
    assert series("external", [record])["child"].y == [3]
    assert series("external_tokens", [record]) == {}


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_every_chart_stands_an_empty_run(chart):
    assert chart.series([]) == [] and chart.series([{"step": 0}]) == []


def test_pngs_of_the_main_curves_of_two_runs(run_folder, tmp_path):
    loaded = runs.load([run_folder, run_folder])
    written = figures.write(loaded, tmp_path)
    assert {"success", "drift", "ranking"} <= {path.stem for path in written}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_runs_of_one_name_are_told_apart(run_folder, tmp_path):
    twin = tmp_path / run_folder.name
    twin.mkdir()
    (twin / "metrics.jsonl").write_text(json.dumps({"step": 0}) + "\n")
    names = [run.name for run in runs.load([run_folder, twin])]
    assert names == [str(run_folder), str(twin)]


@pytest.mark.parametrize(
    "name, text, said",
    [("metrics.jsonl", None, "no metrics.jsonl"), ("config.json", "{", "config.json is not JSON")],
)
def test_what_cannot_be_read_is_named(tmp_path, name, text, said):
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / name).unlink(missing_ok=True)
    if text:
        (tmp_path / name).write_text(text)
    with pytest.raises(runs.ReportError, match=said):
        runs.load([tmp_path])
