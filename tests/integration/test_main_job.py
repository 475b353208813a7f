"""The main job as a user runs it: set-up, servers, training, interruption, resume, evaluation."""

import json
import signal
import subprocess
import sys

import pytest
from jobs import ROOT, TINY, differing, finish, lines, start, wait_until

from sera_jax.tree_writer import read_trees


def test_a_run_ends_with_its_table_and_everything_in_its_folder(whole):
    folder, output = whole
    for number, objective in enumerate(("execution", "decomposition", "rubric"), start=1):
        assert f"step {number}/3 {objective}" in output
    for text in ("Held-out success in %, fresh tasks", "before", "after", "Wall clock"):
        assert text in output and text in (folder / "summary.txt").read_text()
    assert json.loads((folder / "config.json").read_text())["train"]["steps"] == 3
    assert lines(folder / "provenance.jsonl")[0]["packages"]["jax"]
    for when in ("before", "after"):
        for name in ("fresh", "test"):
            assert len(lines(folder / f"evaluation_{when}_{name}.jsonl")) == 4


def test_trainer_and_server_agree_on_every_token(whole):
    for record in lines(whole[0] / "metrics.jsonl"):
        assert record["trees"] == 6 and record["trees_lost"] == 0
        if not record["no_op"]:
            assert record["logprob_gap"] < 1e-4 and record["clip_fraction"] == 0.0
    for tree in read_trees(whole[0]):
        for node in tree["nodes"]:
            ours = tree["trainer_logprobs"].get(node["id"], [])
            theirs = [logprob for step in node["steps"] for logprob in step["logprobs"]]
            assert ours == pytest.approx(theirs, abs=1e-4)


def test_each_step_samples_with_the_newest_weights(whole):
    metrics = lines(whole[0] / "metrics.jsonl")
    version = 0  # updates so far; a step without signal makes none
    for record in metrics:
        trees = [t for t in read_trees(whole[0]) if t["step"] == record["step"]]
        assert len(trees) == 6
        assert {v for t in trees for v in versions(t)} == {str(version)}
        version += not record["no_op"]


def versions(tree):
    return [v for node in tree["nodes"] for step in node["steps"] for v, _ in step["versions"]]


def test_each_kind_of_step_asks_only_for_what_it_needs(whole):
    execution, decomposition, rubric = (r["grading"] for r in lines(whole[0] / "metrics.jsonl"))
    assert execution["judge_calls"] == execution["forks"] == 0
    assert not any(decomposition.values())
    assert execution["scores"] + execution["scores_by_rule"] + execution["scores_invalid"] > 0
    assert rubric["judge_calls"] == rubric["attempts"] == 2 * rubric["forks"] > 0


def test_an_interrupted_run_resumes_to_the_same_end(whole, tmp_path):
    folder = tmp_path / "broken"
    process = start(folder)
    metrics = folder / "metrics.jsonl"
    assert wait_until(process, lambda: metrics.exists() and "\n" in metrics.read_text())
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert f"--config.run.folder={folder}" in output
    done = len(lines(metrics))
    assert 1 <= done < 3, "the interrupt came too late to test anything"
    assert f"resuming after step {done}" in finish(start(folder))
    assert not differing(folder, whole[0])


def evaluate(policy, *flags):
    command = [sys.executable, "launch/evaluate.py", *TINY, f"--checkpoint={policy}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_trained_policy_is_evaluated_with_candidates_and_its_rubrics_audited(whole, tmp_path):
    policy = whole[0] / "policy"
    output = evaluate(policy, "--n=2", f"--out={tmp_path / 'n2'}")
    assert "N = 2" in output and "Held-out success in %, test tasks" in output
    records = lines(tmp_path / "n2" / "evaluation_fresh.jsonl")
    assert len(records) == 4 and all("choices" in record for record in records)
    # Done already: nothing is sampled again.
    assert evaluate(policy, "--n=2", f"--out={tmp_path / 'n2'}").splitlines()[-1] in output
    audit = evaluate(policy, "--audit", f"--out={tmp_path / 'audit'}")
    assert "Rubrics against verified outcomes" in audit
    assert set(json.loads((tmp_path / "audit" / "audit.json").read_text())) == {"fresh", "test"}
