"""Published and fresh tasks: their numbers, their order, and what is kept apart."""

from types import SimpleNamespace

import pytest

from sera_jax.worlds import textcraft_synth as tc
from sera_jax.worlds.textcraft_synth import package, tasks
from sera_jax.worlds.textcraft_synth.recipes import recipes

pytestmark = pytest.mark.usefixtures("textcraft_data")


def config(**values):
    return SimpleNamespace(**{"source": "train", "tiers": ("medium",), "tasks": 5, **values})


def targets_of(tasks):
    return {item for task in tasks for item, _ in task.targets}


def test_published_counts_and_depths():
    train, val = tc.published("train"), tc.published("val")
    assert (len(train), len(val)) == (2522, 632)
    assert sum(task.tier == "medium" for task in train) == 852
    assert [sum(t.tier == tier for t in val) for tier in tc.TIERS] == [147, 213, 136, 136]
    for task in train + val:
        low, high = tasks.DEPTHS[task.tier]
        assert low <= int(task.family.removeprefix("depth ")) <= high
    assert not targets_of(train) & targets_of(val)
    assert len({task.task_id for task in train + val}) == 3154


def test_a_published_task_without_its_solution():
    task = tc.published("train")[0]
    assert (task.task_id, task.tier, task.targets) == (
        "textcraft_synth.train.0",
        "medium",
        (("a1_i5", 3),),
    )
    assert task.goal == "Craft the following items: 3x a1_i5"
    assert dict(task.inventory)["raw_a1"] == 71 and task.family == "depth 5"


def test_another_number_of_tasks_is_an_error(monkeypatch):
    lines = package.published_lines("val")[1:]
    monkeypatch.setattr(package, "published_lines", lambda split: lines)
    with pytest.raises(ValueError, match="split 'val' should have"):
        tasks.published.__wrapped__("val")


def test_training_goes_through_the_split_in_epochs_shuffled_anew():
    steps = [tc.training_tasks(config(), 0, step, 71) for step in range(24)]
    first, second = sum(steps[:12], []), sum(steps[12:], [])
    assert len({t.task_id for t in first}) == 852 == len({t.task_id for t in second})
    assert first != second and {t.tier for t in first} == {"medium"}
    assert tc.training_tasks(config(), 0, 3, 71) == steps[3]
    assert tc.training_tasks(config(), 1, 3, 71) != steps[3]


def test_evaluation_sets_are_fixed_and_complete():
    tiers = tc.TIERS
    sets = tc.evaluation_tasks(config(sets=("fresh", "test"), tiers=tiers, tasks=1000))
    assert len(sets["fresh"]) == 4000 and len(sets["test"]) == 632
    assert {t.task_id for t in sets["test"]} == {t.task_id for t in tc.published("val")}
    few = tc.evaluation_tasks(config(sets=("test",), tiers=("easy", "hard"), tasks=3))["test"]
    assert [t.tier for t in few] == ["easy"] * 3 + ["hard"] * 3


def test_fresh_tasks_of_each_use_are_its_own():
    made = {use: tc.fresh(use, tc.TIERS, 0, 400) for use in ("warmstart", "train", "dev")}
    made["evaluation"] = tc.fresh("evaluation", tc.TIERS, 0, 400)
    tested = targets_of(tc.published("val"))
    for use, tasks_of_use in made.items():
        assert not targets_of(tasks_of_use) & tested
        for other in {"evaluation", "dev"} - {use}:
            assert not targets_of(tasks_of_use) & targets_of(made[other]), (use, other)
    everything = sum(made.values(), [])
    worlds = {(task.targets, task.inventory) for task in everything}
    published = {(t.targets, t.inventory) for s in ("train", "val") for t in tc.published(s)}
    assert len(worlds) == len(everything) and not worlds & published
    assert made["train"][8:12] == tc.fresh("train", tc.TIERS, 8, 4)


def test_fresh_tasks_are_shaped_as_the_published_ones():
    def shape(some):
        items = sorted(len(task.inventory) for task in some)
        pieces = sorted(sum(count for _, count in task.inventory) for task in some)
        return items[len(items) // 2], pieces[len(pieces) // 2], {t.targets[0][1] for t in some}

    for tier in ("easy", "medium"):
        published = [task for task in tc.published("train") if task.tier == tier]
        (items, pieces, counts) = shape(published)
        (fresh_items, fresh_pieces, fresh_counts) = shape(tc.fresh("train", (tier,), 0, 600))
        assert abs(items - fresh_items) <= 1 and counts == fresh_counts
        assert pieces / 1.25 < fresh_pieces < pieces * 1.25


def test_other_names_are_the_same_recipes():
    plain, other = recipes(), recipes(5)
    assert sorted(plain.depth.items()) == sorted(other.depth.items())
    assert plain.base == other.base and plain.of != other.of

    def shapes(book):
        return sorted(
            (book.depth[item], item[0], r.count, sorted(r.ingredients.values()))
            for item, r in book.of.items()
        )

    assert shapes(plain) == shapes(other)
    for item, recipe in other.of.items():
        assert all(other.depth[name] < other.depth[item] for name in recipe.ingredients)
    task = tc.fresh("warmstart", ("easy",), 3, 1, renamed=True)[0]
    world = tc.World(task)
    assert task.names and world.recipes is recipes(task.names)
    tc.oracle.play_flat(world, "0")
    assert world.success


@pytest.mark.parametrize(
    "wrong, said",
    [
        (dict(source="val"), "no tasks 'val'"),
        (dict(tiers=("simple",)), "no tier 'simple'; choose from easy"),
        (dict(tiers=()), "no tiers given"),
        (dict(source="fresh", tiers=()), "no tiers given"),
    ],
)
def test_what_there_is_not_is_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        tc.training_tasks(config(**wrong), 0, 0, 1)


def test_single_tiers_may_be_measured_on_fewer_tasks():
    settings = config(sets=("fresh", "test"), tiers=("easy", "hard"), tasks=3, at_most={"hard": 1})
    for chosen in tc.evaluation_tasks(settings).values():
        assert sorted(task.tier for task in chosen) == ["easy"] * 3 + ["hard"]
    more = config(sets=("fresh",), tiers=("easy", "hard"), tasks=3, at_most={"hard": 9})
    fresh = tc.evaluation_tasks(more)["fresh"]
    assert fresh == tc.fresh("evaluation", ("easy", "hard"), 0, 6)
