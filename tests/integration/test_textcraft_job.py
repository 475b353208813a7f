"""The same job on the other benchmark, from a policy that has seen next to nothing."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
TINY = (
    "--config=configs/textcraft.py:small,rao_rt",
    "--config.cycle=(('execution',1),('rubric',1))",
    "--config.rubrics.attempts=2",
    "--config.rollout.max_steps=3",
    "--config.rollout.max_new_tokens=24",
    "--config.rollout.max_children=2",
    "--config.warmstart.tasks=40",
    "--config.warmstart.tiers=('easy',)",
    "--config.warmstart.steps=30",
    "--config.train.steps=2",
    "--config.tasks.tiers=('easy',)",
    "--config.train.tasks=2",
    "--config.train.trees=2",
    "--config.eval.tasks=1",
    "--config.server.slots=8",
    "--config.server.replicas=1",
)


def test_a_run_on_textcraft_ends_with_its_table(tmp_path, textcraft_data):
    command = [sys.executable, "launch/main.py", *TINY, f"--config.run.folder={tmp_path / 'run'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("fresh tasks", "test tasks", "extreme", "before", "after", "Wall clock"):
        assert text in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["objective"] for line in lines] == ["execution", "rubric"]
    assert all(line["trees"] == 4 and "verifier_disagreement" in line for line in lines)
    assert {tier for line in lines for tier in line["by_tier"]} == {"easy"}
