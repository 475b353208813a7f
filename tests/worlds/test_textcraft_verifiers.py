"""Goals and outcomes of children: what is a goal, and who is credited when siblings interfere."""

import random

import pytest

from sera_jax.worlds import textcraft_synth as tc
from sera_jax.worlds.textcraft_synth.goals import read_goal
from sera_jax.worlds.textcraft_synth.verifiers import delta, ledger, subtree_balance


@pytest.mark.parametrize(
    "goal, targets",
    [
        ("Craft the following items: 8x m4_i1, 2x m3_i7", {"m4_i1": 8, "m3_i7": 2}),
        ("3x a9_i1", {"a9_i1": 3}),
        ("2x a9_i1, 1x b, 3x a9_i1", {"a9_i1": 5, "b": 1}),
        ("2x  a9_i1 and 1x raw_a1.", {"a9_i1": 2, "raw_a1": 1}),
        ("Craft a9_i1", {}),
        ("a9_i1 x 3", {}),
        ("0x a9_i1", {}),
        ("-1x a9_i1 1.5x a9_i1", {}),
        ("12345678901x a9_i1", {}),
        ("3xa9_i1", {}),
        ("٣x a9_i1", {}),
        ("", {}),
    ],
)
def test_the_grammar_of_goals(goal, targets):
    assert read_goal(goal) == targets
    if targets:
        assert read_goal(tc.goal_text(targets)) == targets


@pytest.fixture
def world(textcraft_data):
    """a9_i1 is 3 from 2 raw_a1; a2_i2_22 is 3 from 2 a9_i1 and 1 a0_i1_20, this 4 from raw_a0."""
    world = tc.World(tc.published("train")[0])
    world.join("0")
    return world


MAKE = "craft 3 a9_i1 using 2 raw_a1"
GOAL = "Craft the following items: 3x a9_i1"


def both(world, agent, goal=GOAL):
    return delta(world, goal, agent), ledger(world, goal, agent)


def test_a_goal_without_a_target_is_refused_with_the_grammar(world):
    assert world.refuse_goal(GOAL) == ""
    assert '"Craft the following items: 8x m4_i1, 2x m3_i7"' in world.refuse_goal("help me")


def test_a_child_alone_is_judged_alike(world):
    world.join("0.0", goal=GOAL)
    assert both(world, "0.0") == (False, False)
    world.step("0.0", MAKE)
    assert both(world, "0.0") == (True, True)
    assert both(world, "0.0", "Craft the following items: 3x a9_i1, 1x a1_i5") == (False, False)
    assert both(world, "0.0", "2x a9_i1, 2x a9_i1") == (False, False)


def test_what_was_there_before_does_not_count(world):
    world.step("0", MAKE)
    world.join("0.0", goal=GOAL)
    assert both(world, "0.0") == (False, False)


def test_an_idle_child_passes_by_delta_with_its_siblings_work(world):
    world.join("0.0", goal=GOAL)
    world.join("0.1", goal=GOAL)
    world.step("0.1", MAKE)
    assert both(world, "0.0") == (True, False)
    assert both(world, "0.1") == (True, True)


def test_a_child_fails_by_delta_when_a_sibling_uses_its_work(world):
    world.join("0.0", goal=GOAL)
    world.join("0.1", goal="Craft the following items: 3x a2_i2_22")
    world.step("0.0", MAKE)
    world.step("0.1", "craft 4 a0_i1_20 using 1 raw_a0\ncraft 3 a2_i2_22 using 2 a9_i1, 1 a0_i1_20")
    assert both(world, "0.0") == (False, True)
    assert both(world, "0.1", "Craft the following items: 3x a2_i2_22") == (True, True)


def test_the_ledger_has_all_that_is_below_and_what_it_used(world):
    world.join("0.0", goal="Craft the following items: 3x a2_i2_22")
    world.join("0.0.0", goal=GOAL)
    world.step("0.0.0", MAKE)
    world.step("0.0", "craft 4 a0_i1_20 using 1 raw_a0\ncraft 3 a2_i2_22 using 2 a9_i1, 1 a0_i1_20")
    assert subtree_balance(world, "0.0") == {
        "a2_i2_22": 3,
        "a9_i1": 1,
        "a0_i1_20": 3,
        "raw_a1": -2,
        "raw_a0": -1,
    }
    assert both(world, "0.0", "1x a9_i1, 3x a2_i2_22") == (True, True)
    assert both(world, "0.0", "2x a9_i1, 3x a2_i2_22") == (False, False)


def test_names_that_only_begin_alike_are_others(world):
    for agent in ("0.1", "0.10", "0.1@2"):
        world.join(agent, goal=GOAL)
    world.step("0.10", MAKE)
    world.step("0.1@2", MAKE)
    assert ledger(world, GOAL, "0.1") is False


def test_whoever_never_joined_or_has_no_goal_is_not_judged(world):
    assert both(world, "0.7") == (None, None)
    assert both(world, "0", "whatever") == (None, None)


def test_both_agree_in_a_fork(world):
    """Random work of an attempt and its children, in a copy of a world in which others worked."""
    rng = random.Random(0)
    wanted = tc.oracle.next_commands(world.recipes, world.inventory, dict(world.task.targets))
    world.step("0", "\n".join(wanted[:6]))
    verdicts = []
    for attempt in range(60):
        fork = world.copy()
        agents = ["0.0", "0.0.0", "0.0.1"]
        agents = [name.replace("0.0", f"0.0@{attempt}", 1) for name in agents]
        for agent in agents:
            fork.join(agent, goal=GOAL)
        for command in rng.sample(wanted, rng.randint(1, len(wanted))):
            fork.step(rng.choice(agents), command)
        item = rng.choice(sorted(fork.inventory))
        goal = f"{rng.randint(1, 4)}x {item}"
        first, second = both(fork, agents[0], goal)
        assert first == second, (goal, fork.log)
        verdicts.append(first)
    assert 5 < sum(verdicts) < 55
