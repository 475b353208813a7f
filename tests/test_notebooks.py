"""The notebooks run as they are, say what their stored outputs say, and get their values right."""

import functools
import gzip
import json

import numpy as np
import pytest

from notebooks import run
from sera_jax.trees import Tree

NAMES = ("debug_losses", "read_a_tree", "swap_a_reward")
SAVED = run.FOLDER / "saved_trees.jsonl.gz"


@functools.cache
def executed(name):
    return run.execute(run.FOLDER / f"{name}.ipynb")


def outputs(notebook):
    """Text of each output, a figure's being that there is one."""
    return [
        "".join(output["text"]) if "text" in output else ", ".join(output["data"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    ]


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in run.FOLDER.glob("*.ipynb")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_those_of_the_code(name):
    stored = json.loads((run.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    fresh, _ = executed(name)
    assert outputs(stored) == outputs(fresh), "python notebooks/run.py refreshes them"
    assert "image/png" in outputs(stored)
    assert not any(
        root in text for text in outputs(stored) for root in ("/home/", "/root/", "/tmp/")
    )


def test_saved_trees_are_small_and_of_all_three_objectives():
    assert SAVED.stat().st_size <= 150_000
    records = [json.loads(line) for line in gzip.decompress(SAVED.read_bytes()).splitlines()]
    assert {r["objective"] for r in records} == {"execution", "decomposition", "rubric"}
    for record in records:
        steps = [step for node in Tree.from_json(record).nodes for step in node.steps]
        assert all(len(step.logprobs) == step.end - step.start > 0 for step in steps)


def test_debug_losses_arrives_at_the_gradient():
    _, found = executed("debug_losses")
    # Two trees of eight failed: a solved one's root earns 1 - 5/7, a failed one's 0 - 6/7.
    roots = [values["0"] for values in found["credited"]]
    np.testing.assert_allclose(roots, [-6 / 7] * 2 + [2 / 7] * 6)
    # 8, 16 and 5 sequences at three depths, each depth a third of the 29.
    weights = dict(zip(found["depths"].tolist(), found["weights"], strict=True))
    assert weights == pytest.approx({0: 29 / 24, 1: 29 / 48, 2: 29 / 15})
    np.testing.assert_allclose(found["gradient"], found["expected"], rtol=1e-5)
    assert found["sequences"] and np.count_nonzero(found["expected"])
    np.testing.assert_allclose(found["right"], 1, rtol=1e-5)
    np.testing.assert_allclose(found["wrong"], 1 + found["logprob"], rtol=1e-3, atol=1e-4)
    assert np.max(found["factors"]) == pytest.approx(5, rel=1e-4)


def test_swap_a_reward_trains_by_the_function_it_defines():
    _, found = executed("swap_a_reward")
    assert found["config"].rewards.decomposition is found["work_coverage"]
    # The second tree's leaves took 10 and 3 actions; its child 0.1 passed its goal on whole.
    assert found["after"][1] == pytest.approx({"0#0": 10 / 13, "0#1": 3 / 13, "0.1#2": 3 / 13})
    assert found["before"][1] == {"0#0": 0.5, "0#1": 0.5, "0.1#2": 0.5}
    others = [np.mean(list(values.values())) for k, values in enumerate(found["after"]) if k != 1]
    assert found["credited"][1]["0#0"] == pytest.approx(10 / 13 - np.mean(others))


def test_read_a_tree_ranks_a_forked_goal():
    _, found = executed("read_a_tree")
    node = found["node"]
    assert found["outcomes"] == [False, True, False, True, False, True, True, False]
    assert found["scores"] == [0.5, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    # One of the four failures ties with all four successes: 4 of 16 pairs lack the whole 0.2.
    assert found["reward"] == pytest.approx(-0.05)
    assert node.rubric_call.order < min(step.order for step in node.steps)
