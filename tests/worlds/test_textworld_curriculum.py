import collections
from types import SimpleNamespace

import pytest

from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync import curriculum

FRESH = SimpleNamespace(source="fresh", tiers=("easy", "medium"), action_budget=100)


def ids(tasks):
    return [task.task_id for task in tasks]


def test_fresh_tasks_take_tiers_and_families_in_turn():
    tasks = curriculum.fresh("train", ("easy", "medium"), 0, 28)
    assert collections.Counter(task.tier for task in tasks) == {"easy": 14, "medium": 14}
    assert collections.Counter((t.tier, t.family) for t in tasks).most_common()[-1][1] == 2


def test_the_same_seed_and_step_give_the_same_tasks_and_no_others_do():
    first = curriculum.training_tasks(FRESH, seed=1, step=3, count=8)
    assert first == curriculum.training_tasks(FRESH, seed=1, step=3, count=8)
    for other in (dict(seed=2, step=3), dict(seed=1, step=4)):
        tasks = curriculum.training_tasks(FRESH, **other, count=8)
        assert not {task.seed for task in tasks} & {task.seed for task in first}


def test_training_overrides_the_action_budget_and_evaluation_does_not():
    assert {t.action_budget for t in curriculum.training_tasks(FRESH, 0, 0, 8)} == {100}
    own = SimpleNamespace(source="fresh", tiers=("easy",), action_budget=0)
    assert all(t.action_budget >= 115 for t in curriculum.training_tasks(own, 0, 0, 8))
    evaluation = SimpleNamespace(sets=("test",), tiers=("easy",), tasks=7)
    published = {task.task_id: task for task in tws.generate("test")}
    for task in curriculum.evaluation_tasks(evaluation)["test"]:
        assert task == published[task.task_id]


def test_an_epoch_of_the_published_split_holds_every_task_once():
    config = SimpleNamespace(source="train", tiers=("hard",), action_budget=0)
    size = sum(task.tier == "hard" for task in tws.generate("train"))
    epoch = curriculum.training_tasks(config, seed=0, step=0, count=size)
    again = curriculum.training_tasks(config, seed=0, step=1, count=size)
    assert sorted(ids(epoch)) == sorted(ids(again)) and len(set(ids(epoch))) == size
    assert ids(epoch) != ids(again)


def test_evaluation_sets_hold_as_many_of_each_tier_and_spread_over_families():
    config = SimpleNamespace(sets=("fresh", "test"), tiers=("easy", "medium"), tasks=14)
    for tasks in curriculum.evaluation_tasks(config).values():
        counts = collections.Counter((task.tier, task.family) for task in tasks)
        assert len(counts) == 14 and set(counts.values()) == {2}


def test_no_fresh_task_is_a_published_one():
    published = {task.seed for split in ("train", "dev", "test") for task in tws.generate(split)}
    assert max(published) < min(curriculum.SEEDS.values())


def test_a_tier_without_tasks_is_named():
    config = SimpleNamespace(source="train", tiers=("easy",), action_budget=0)
    with pytest.raises(ValueError, match="no task of the tiers easy"):
        curriculum.training_tasks(config, 0, 0, 1)
