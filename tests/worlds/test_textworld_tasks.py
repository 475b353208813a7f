"""Task records: JSON forms in and out, and what a user hears about a bad file."""

import json

import pytest

from sera_jax.worlds import textworld_sync as tws


@pytest.fixture
def task():
    return tws.generate_task("test", "medium", "hierarchical", 821600, "t0")


def published(task: tws.Task) -> dict:
    """The benchmark's file format, as far as a reader needs it, with extras it should skip."""
    obj = task.canonical()
    shared = {k: obj[k] for k in ("task_id", "difficulty", "task_family", "seed", "task_view")}
    return shared | {
        "dishes": obj["dishes"],
        "game_params": {
            "numLocations": task.num_locations,
            "numDistractorItems": task.num_distractors,
            "includeDoors": int(task.include_doors),
            "limitInventorySize": int(task.limit_inventory),
        },
        "parallelism": {
            "dependencies": obj["dependencies"],
            "resource_capacity": obj["resource_capacity"],
            "mechanisms": {"tool_cooldown_steps": task.tool_cooldown_steps, "other": True},
            "shared_environment_max_steps": task.action_budget,
        },
        "task_description": "Cook.",
    }


def write(path, *objects) -> str:
    path.write_text("\n\n".join(o if isinstance(o, str) else json.dumps(o) for o in objects))
    return str(path)


def test_canonical_round_trip_is_json(task):
    obj = json.loads(json.dumps(task.canonical()))
    assert tws.Task.from_canonical(obj) == task
    assert tws.Task.from_canonical(obj).canonical() == obj


@pytest.mark.parametrize("family", tws.FAMILIES)
def test_published_file_round_trip(tmp_path, family):
    tasks = [
        tws.generate_task("test", tier, family, seed, f"{tier}_{seed}")
        for tier in ("easy", "medium", "hard", "extreme")
        for seed in (1, 2)
    ]
    assert tws.load_published(write(tmp_path / "tasks.jsonl", *map(published, tasks))) == tasks


def test_optional_parts_may_be_absent_or_null(tmp_path, task):
    obj = published(task)
    obj["parallelism"] = {"shared_environment_max_steps": 9, "resource_capacity": None}
    (loaded,) = tws.load_published(write(tmp_path / "t.jsonl", obj))
    assert (loaded.dependencies, loaded.resource_capacity) == ((), None)
    assert (loaded.tool_cooldown_steps, loaded.action_budget) == (0, 9)


def test_with_budget_changes_nothing_else(task):
    changed = task.with_budget(7)
    assert changed.action_budget == 7
    assert changed.with_budget(task.action_budget) == task
    assert (task.tier, task.family) == ("medium", "hierarchical")


def broken(task, change) -> dict:
    obj = published(task)
    change(obj)
    return obj


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda o: o.pop("seed"), "'seed' is missing"),
        (lambda o: o.update(seed="7"), "'seed' should be a whole number, not '7'"),
        (lambda o: o.pop("game_params"), "'game_params' is missing"),
        (lambda o: o["game_params"].pop("includeDoors"), "'includeDoors' is missing"),
        (lambda o: o.update(task_view="blind"), "structured or coarse, not 'blind'"),
        (lambda o: o.update(dishes=[]), "there is no dish"),
        (lambda o: o["dishes"].append(o["dishes"][0]), "dish 'dish_1' occurs more than once"),
        (lambda o: o["dishes"][0]["recipe"][0].pop("name"), "'name' is missing"),
        (lambda o: o["dishes"][0]["recipe"][0].update(preparation=["burnt"]), "'burnt'"),
        (lambda o: o["dishes"][0]["recipe"][0].update(preparation=[1]), "a list of strings"),
        (lambda o: o["parallelism"].update(dependencies=["gate"]), "an object with 'from'"),
        (lambda o: o["parallelism"].update(resource_capacity={"inventory": "2"}), "whole numbers"),
        (lambda o: o["parallelism"].pop("shared_environment_max_steps"), "is missing"),
    ],
)
def test_bad_line_is_located(tmp_path, task, change, complaint):
    path = write(tmp_path / "tasks.jsonl", published(task), broken(task, change))
    with pytest.raises(ValueError) as error:
        tws.load_published(path)
    # Records stand on lines 1 and 3, with a blank line between them.
    assert str(error.value).startswith(f"{path}, line 3: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", ["{", "[]", "3"])
def test_line_that_is_no_object(tmp_path, line):
    with pytest.raises(ValueError, match="line 1: not a task"):
        tws.load_published(write(tmp_path / "tasks.jsonl", line))
