import asyncio
import dataclasses
import json

import pytest

from sera_jax import evaluate as ev
from sera_jax.trees import Node, Step, Tree


@dataclasses.dataclass(frozen=True)
class FakeTask:
    task_id: str
    tier: str = "easy"
    family: str = "shared"


TASKS = [FakeTask("a"), FakeTask("b", tier="hard"), FakeTask("c", family="solo")]


def tree_of(task, reward=1.0, **info):
    steps = (Step("action", "", start=4, end=9), Step("delegate", "", ("0.0",), start=20, end=27))
    child = Node("0.0", "0", 1, "", "finished", steps=(Step("action", "", start=3, end=4),))
    return Tree(
        task.task_id, reward, (Node("0", None, 0, "", "finished", steps=steps), child), info
    )


def run(rollout_one, path, tasks=TASKS, **options):
    return asyncio.run(ev.evaluate(tasks, rollout_one, path, **options))


async def succeed_unless_hard(task):
    return tree_of(task, reward=0.0 if task.tier == "hard" else 1.0, world_actions=5)


def test_records_hold_what_reports_need():
    assert ev.record_of(TASKS[1], tree_of(TASKS[1], world_actions=7)) == {
        "task_id": "b", "tier": "hard", "family": "shared", "success": 1,
        "nodes": 2, "depth": 1, "tokens": 13, "world_actions": 7, "choices": {},
    }  # fmt: skip
    assert ev.record_of(TASKS[1], tree_of(TASKS[1]))["world_actions"] == 2


def test_one_line_a_task_and_records_in_the_tasks_order(tmp_path):
    async def later_tasks_first(task):
        await asyncio.sleep({"a": 0.02, "b": 0.01, "c": 0.0}[task.task_id])
        return tree_of(task)

    records = run(later_tasks_first, tmp_path / "deep" / "eval.jsonl")
    assert [record["task_id"] for record in records] == ["a", "b", "c"]
    lines = (tmp_path / "deep" / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == ["c", "b", "a"]


def test_resuming_runs_only_what_is_missing(tmp_path):
    path = tmp_path / "eval.jsonl"
    first = run(succeed_unless_hard, path, tasks=TASKS[:2])
    with path.open("a") as file:
        file.write('{"task_id": "c", "suc')  # killed while writing
    ran = []

    async def remember(task):
        ran.append(task.task_id)
        return tree_of(task)

    records = run(remember, path)
    assert ran == ["c"] and records[:2] == first
    assert len(path.read_text().splitlines()) == 3
    assert run(remember, path) == records and ran == ["c"]


def test_a_failure_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    async def fail_late(task):
        if task.task_id == "b":
            await asyncio.sleep(0.01)
            raise TimeoutError("no answer in 60 s")
        if task.task_id == "c":
            await asyncio.sleep(30)  # cancelled by the failure
        return tree_of(task)

    with pytest.raises(ev.EvaluationError, match="task b failed: TimeoutError: no answer") as info:
        run(fail_late, tmp_path / "eval.jsonl")
    assert "1 of 3 tasks" in str(info.value) and "same command" in str(info.value)
    assert len(run(succeed_unless_hard, tmp_path / "eval.jsonl")) == 3


def test_concurrency_is_bounded(tmp_path):
    running, most = 0, 0

    async def count(task):
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.001)
        running -= 1
        return tree_of(task)

    run(count, tmp_path / "eval.jsonl", [FakeTask(str(i)) for i in range(12)], concurrency=3)
    assert most == 3


def test_resuming_under_other_settings_is_refused(tmp_path):
    path = tmp_path / "eval.jsonl"
    run(succeed_unless_hard, path, settings={"temperature": 1.0, "api_key": "x"})
    assert "api_key" not in (tmp_path / "eval.settings.json").read_text()
    run(succeed_unless_hard, path, settings={"temperature": 1.0, "api_key": "y"})
    with pytest.raises(ev.EvaluationError, match="temperature"):
        run(succeed_unless_hard, path, settings={"temperature": 0.0})


def test_summary_by_tier_and_family(tmp_path):
    rows = ev.summary(run(succeed_unless_hard, tmp_path / "eval.jsonl"))
    assert list(rows) == ["all", "tier: easy", "tier: hard", "family: shared", "family: solo"]
    assert rows["all"]["successes"] == 2 and rows["all"]["n"] == 3
    assert rows["tier: easy"]["rate"] == 1.0 and rows["tier: hard"]["rate"] == 0.0
    assert rows["tier: easy"]["low"] == pytest.approx(0.3424, abs=1e-4)
    assert rows["all"]["world_actions"] == 5.0
    assert ev.summary([]) == {}


def test_table_sets_before_beside_after(tmp_path):
    after = ev.summary(run(succeed_unless_hard, tmp_path / "eval.jsonl"))
    before = {name: row for name, row in after.items() if name != "tier: hard"}
    assert ev.table({"before": before, "after": after}).splitlines() == [
        "                                       before                    after",
        "all                     66.7 [20.8, 93.9] n=3    66.7 [20.8, 93.9] n=3",
        "tier: easy            100.0 [34.2, 100.0] n=2  100.0 [34.2, 100.0] n=2",
        "tier: hard                                  -      0.0 [0.0, 79.3] n=1",
        "family: shared           50.0 [9.5, 90.5] n=2     50.0 [9.5, 90.5] n=2",
        "family: solo          100.0 [20.7, 100.0] n=1  100.0 [20.7, 100.0] n=1",
        "nodes a task                              2.0                      2.0",
        "depth a task                              1.0                      1.0",
        "tokens a task                            13.0                     13.0",
        "world actions a task                      5.0                      5.0",
    ]


def test_records_are_read_back_in_the_order_of_the_tasks(tmp_path):
    async def rollout(task):
        return tree_of(task)

    records = run(rollout, tmp_path / "before_fresh.jsonl", tasks=TASKS[::-1])
    found = ev.saved_sets({"fresh": TASKS, "test": TASKS}, tmp_path / "before")
    assert found == {"fresh": records[::-1], "test": []}
