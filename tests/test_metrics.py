import json
import math
import types

import numpy as np
import pytest

from sera_jax import metrics
from sera_jax.redaction import HIDDEN, plain, redacted
from sera_jax.trees import Node, Step, Tree


def two_trees():
    """A success that delegated to one child, and a failure alone that wrote nonsense."""
    root = (
        Step("delegate", "", ("0.0",), start=10, end=14),
        Step("delegate", "", start=20, end=23),
        Step("finish", "", start=30, end=32),
    )
    child = Step("action", "", start=8, end=9)
    first = Tree(
        "t",
        1.0,
        (
            Node("0", None, 0, "", "done", steps=root),
            Node("0.0", "0", 1, "", "out_of_steps", steps=(child,), verified=True),
        ),
    )
    nonsense = Step("invalid", "", start=5, end=15)
    return [first, Tree("t", 0.0, (Node("0", None, 0, "", "finished", steps=(nonsense,)),))]


def test_tree_metrics_by_hand():
    assert metrics.tree_metrics(two_trees()) == {
        "trees": 2,
        "success": 0.5,
        "nodes": 1.5,
        "delegations": 1.0,
        "empty_delegations": 0.5,
        "depth": 0.5,
        "steps": 2.5,
        "invalid_steps": 0.5,
        "generated_tokens": 4 + 3 + 2 + 1 + 10,
        "reward_by_depth": {"0": 0.5, "1": 0.0},
        "verified_by_depth": {"1": 1.0},
        "root_statuses": {"done": 1, "finished": 1},
        "child_statuses": {"out_of_steps": 1},
    }
    assert metrics.tree_metrics([]) == {"trees": 0}


def test_tree_metrics_take_the_reward_in_use():
    got = metrics.tree_metrics(two_trees(), lambda tree: {"0": 3.0})
    assert got["reward_by_depth"] == {"0": 3.0}


def test_ranking_metrics_by_hand():
    # Gaps of the mixed group: 0.5, 0.1, 0.0, -0.4; the other two give no pair.
    groups = [
        ([0.9, 0.4, 0.4, 0.8], [True, True, False, False]),
        ([0.9, 0.1], [True, True]),
        ([None, 0.3], [True, False]),
    ]
    assert metrics.ranking_metrics(groups) == pytest.approx(
        {
            "groups": 3,
            "mixed_groups": 1,
            "pairwise_accuracy": 0.5,
            "auc": 0.625,
            "margin_satisfaction": 0.25,
        }
    )
    assert metrics.ranking_metrics([]) == {"groups": 0, "mixed_groups": 0}


def test_writer_flushes_one_json_line_a_step(tmp_path):
    with metrics.MetricsWriter(tmp_path / "run") as writer:
        writer.write(0, {"loss": np.float32(0.5), "by_depth": {0: np.arange(2)}, "bad": math.nan})
        # Read before closing: a run that is killed keeps its lines.
        line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line == {"step": 0, "loss": 0.5, "by_depth": {"0": [0, 1]}, "bad": "nan"}


def test_resumed_writer_leaves_one_line_a_step(tmp_path):
    with metrics.MetricsWriter(tmp_path) as writer:
        for step in range(4):
            writer.write(step, {"attempt": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "att')  # killed while writing
    with metrics.MetricsWriter(tmp_path, resume_step=2) as writer:
        writer.write(2, {"attempt": 2})
    lines = metrics.read_lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["attempt"]) for line in lines] == [(0, 1), (1, 1), (2, 2)]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nnot json\n{"step": 2}\n')
    with pytest.raises(ValueError, match="metrics.jsonl, line 2"):
        metrics.read_lines(tmp_path / "metrics.jsonl")


def test_progress_line():
    facts = metrics.tree_metrics(two_trees()) | {"objective": "execution"}
    facts |= {"generated_tokens": 41234, "seconds_sampling": 12.04, "seconds_training": 8.0}
    facts |= {"seconds_syncing": 0.41}
    assert metrics.progress_line(11, 250, facts, seconds_left=3725) == (
        "step 12/250 execution | success 0.50 | reward d0 0.50 d1 0.00"
        " | 1.5 nodes 1.0 delegations/tree | 41.2k tokens"
        " | sampling 12.0s training 8.0s syncing 0.4s | 1h02m left"
    )
    assert metrics.progress_line(0, 2, {}) == "step 1/2"


def test_time_left_follows_the_last_cycle():
    assert metrics.seconds_left([], 10) is None
    assert metrics.seconds_left([100.0] + [2.0] * 20, 10) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4s"), (59.6, "1m00s"), (425, "7m05s"), (12000, "3h20m")]
)
def test_short_time(seconds, text):
    assert metrics.short_time(seconds) == text


def test_wilson_against_published_values():
    assert metrics.wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert metrics.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert metrics.wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert metrics.wilson(0, 0) == (0.0, 1.0)
    low, high = metrics.wilson(10, 20, z=1.0)
    assert 0.2993 < low < 0.5 < high < 0.7007


def test_config_is_written_without_secrets(tmp_path):
    config = types.SimpleNamespace(
        learning_rate=3e-6,
        api_key="value-of-it",
        judge={"api_key_env": "JUDGE_KEY", "url": "https://me:pw@host/v1", "hf_token": "x"},
        reward=metrics.tree_metrics,
        max_new_tokens=512,
        stop_token_ids=(1, 2),
        folder=tmp_path,
    )
    metrics.write_config(tmp_path, config)
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "learning_rate": 3e-6,
        "judge": {"api_key_env": "JUDGE_KEY", "url": f"https://{HIDDEN}@host/v1"},
        "reward": "sera_jax.metrics.tree_metrics",
        "max_new_tokens": 512,
        "stop_token_ids": [1, 2],
        "folder": str(tmp_path),
    }


def test_secrets_are_hidden_in_text_and_on_the_command_line():
    made_up = "sk-" + "a1" * 12
    assert redacted(f"use {made_up}") == f"use {HIDDEN}"
    command = ["main.py", "--api-key", "abc", "--judge.api_key=abc", "--steps", "3"]
    assert "abc" not in " ".join(redacted(command))
    assert redacted(command)[-2:] == ["--steps", "3"]


def test_plain_values_are_left_alone():
    assert plain({"a": (1, None, True, "x")}) == {"a": [1, None, True, "x"]}


def test_provenance_adds_a_line_a_start(tmp_path):
    metrics.write_provenance(tmp_path, devices=["cpu:0"])
    metrics.write_provenance(tmp_path)
    first, second = metrics.read_lines(tmp_path / "provenance.jsonl")
    assert first["devices"] == ["cpu:0"] and "devices" not in second
    assert first["packages"]["numpy"] == np.__version__
    assert first["git"] is None or len(first["git"]["commit"]) == 40


def test_version_lag_is_counted_by_tokens():
    def tree(*versions):
        return Tree(
            "t",
            1.0,
            (Node("0", None, 0, "g", "done", steps=(Step("action", "", versions=versions),)),),
        )

    trees = [tree(("3", 6)), tree(("2", 1), ("3", 1))]
    assert metrics.version_lag(trees, 4) == {"version_lag_max": 2, "version_lag_mean": 9 / 8}
    assert metrics.version_lag(trees[:1], 3) == {"version_lag_max": 0, "version_lag_mean": 0.0}
    assert metrics.version_lag([], 3) == {}
