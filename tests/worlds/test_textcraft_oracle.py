"""The oracle: alone from any state, and as a tree of agents within the limits of METHOD 1."""

import pytest

from sera_jax.worlds import textcraft_synth as tc
from sera_jax.worlds.textcraft_synth import oracle
from sera_jax.worlds.textcraft_synth.recipes import recipes

pytestmark = pytest.mark.usefixtures("textcraft_data")


def everything():
    return tc.published("train") + tc.published("val")


def test_demand_is_summed_before_anything_is_crafted():
    # a9_i1: 3 from 2 raw_a1. a0_i1_20: 4 from raw_a0. a2_i2_22: 3 from 2 a9_i1, 1 a0_i1_20.
    book, needs = recipes(), {"a2_i2_22": 4, "a9_i1": 2}
    stock = {"raw_a1": 4, "raw_a0": 1, "a9_i1": 5, "a0_i1_20": 1}
    # Two crafts of a2_i2_22 take 4 a9_i1; 5 are to stay and 2 to be added: 6 more, two crafts.
    assert oracle.plan(book, stock, needs) == [("a9_i1", 2), ("a0_i1_20", 1), ("a2_i2_22", 2)]
    assert oracle.next_commands(book, stock, needs) == [
        "craft 6 a9_i1 using 4 raw_a1",
        "craft 4 a0_i1_20 using 1 raw_a0",
        "craft 6 a2_i2_22 using 4 a9_i1, 2 a0_i1_20",
    ]
    assert oracle.next_commands(book, {**stock, "raw_a1": 3}, needs) is None
    assert oracle.next_commands(book, stock, {}) == []
    assert oracle.next_commands(book, stock, {"raw_a0": 1}) is None
    assert oracle.next_commands(book, stock, {"a9_i1": 1, "no item": 1}) is None


def test_deeper_items_are_delegated_first():
    book = recipes()
    own = [("a1_i5", 3)]  # from 1 a7_i4, 1 a3_i4_23, 1 a9_i4 each
    assert oracle.subgoals(book, {"a9_i4": 1}, own) == {"a7_i4": 3, "a3_i4_23": 3, "a9_i4": 2}
    used = [("a2_i2_22", 1), ("a3_i3", 1)]  # a3_i3: from 2 a1_i2, 1 a0_i1
    assert oracle.subgoals(book, {"a0_i1": 1}, used) == {"a1_i2": 2}
    assert oracle.subgoals(book, {"a0_i1": 1, "a1_i2": 2}, used) == {"a9_i1": 2, "a0_i1_20": 1}
    enough = {"a0_i1": 1, "a1_i2": 2, "a9_i1": 2, "a0_i1_20": 1}
    assert oracle.subgoals(book, enough, used) == {}


def test_flat_play_solves_a_tenth_of_all_tasks():
    for task in everything()[::10]:
        world = tc.World(task)
        oracle.play_flat(world, "0")
        assert world.success, task.task_id


def test_trees_of_sixteen_commands_a_step_solve_all():
    worlds = [tc.World(task) for task in everything()]
    for world in worlds:
        world.join("0")
        assert oracle.play_tree(world, "0", dict(world.task.targets)), world.task.task_id
        assert world.success
    # Some need helpers even so.
    assert sum(len(world.starts) > 1 for world in worlds) == 8


def test_trees_of_one_command_a_step_stay_within_the_limits():
    depths = set()
    for task in everything()[::150]:
        world = tc.World(task)
        world.join("0")
        assert oracle.play_tree(world, "0", dict(task.targets), lines=1), task.task_id
        assert world.success
        for agent in world.starts:
            depths.add(agent.count("."))
            # Crafts and at least one delegation, if it has children, and the finish.
            crafts = sum(made.agent == agent for made in world.log)
            assert crafts + 1 <= 20
    assert depths == {0, 1, 2, 3}


def test_where_no_tree_exists_it_says_so():
    (task,) = (t for t in everything() if t.task_id == "textcraft_synth.train.0")
    world = tc.World(task)
    world.join("0")
    assert not oracle.play_tree(world, "0", dict(task.targets), lines=1, steps=3)
