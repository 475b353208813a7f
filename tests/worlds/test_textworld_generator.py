"""The fixed task sets come out equal to the last field."""

import importlib.util
import json
import pathlib
from collections import Counter

import pytest

from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync import foods

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden/textworld_sync.json").read_text())


@pytest.fixture(scope="module")
def splits():
    return {split: tws.generate(split) for split in ("train", "dev", "test")}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_known_tasks(splits, split):
    digests = {task.task_id: task.digest() for task in splits[split]}
    expected = GOLDEN["digests"][split]
    assert {task_id: digests[task_id] for task_id in expected} == expected


def test_every_recorded_task(splits, recordings):
    expected = json.loads((recordings / "tws_v9_digests.json").read_text())
    for split, tasks in splits.items():
        got = {task.task_id: task.digest() for task in tasks}
        assert got == expected[split]
        assert list(got) == list(expected[split])


def test_sizes_of_the_splits(splits):
    by_tier = {split: Counter(task.tier for task in tasks) for split, tasks in splits.items()}
    assert by_tier["train"] == {"medium": 900, "extreme": 450, "hard": 150}
    assert by_tier["dev"] == dict.fromkeys(("easy", "medium", "hard", "extreme"), 50)
    assert by_tier["test"] == dict.fromkeys(("easy", "medium", "hard", "extreme"), 350)
    assert len(set(task.digest() for tasks in splits.values() for task in tasks)) == 3100


def test_families_differ_where_they_should(splits):
    for task in splits["test"]:
        doors = [d.target for d in task.dependencies if d.type == "door"]
        expected = [dish.dish_id for dish in task.dishes[1:]]
        assert doors == (expected if task.family == "dependency_gate" else [])
        assert task.include_doors == (task.tier != "easy" or task.family == "dependency_gate")
        has_capacity = task.family in ("conflict", "resource_constrained")
        assert (task.resource_capacity is not None) == has_capacity
        assert (task.view == "coarse") == (task.tier == "extreme")


def test_one_task_of_a_seed_of_ones_own(splits):
    made = tws.generate_task("test", "easy", "critical_path", 820100, "mine")
    twin = next(t for t in splits["test"] if t.family == "critical_path")
    assert made.dishes == twin.dishes and made.task_id == "mine"


def test_unknown_split_names_the_known_ones():
    with pytest.raises(ValueError, match="train, dev, test"):
        tws.generate("validation")


def test_missing_food_data_names_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install textworld-express"):
        foods.load.__wrapped__()


def test_sources_of_grouped_foods():
    sources = foods.load().sources
    assert sources["olive oil"] == ("pantry.shelf", "supermarket.showcase")
    assert sources["egg"] == ("kitchen.fridge", "supermarket.showcase")
