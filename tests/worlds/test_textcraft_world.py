"""The crafting world: it agrees with the published game, and takes any text."""

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sera_jax.worlds import textcraft_synth as tc
from sera_jax.worlds.textcraft_synth import commands, package

pytestmark = pytest.mark.usefixtures("textcraft_data")

MAKE = "craft 12 a9_i1 using 8 raw_a1"  # a9_i1: 3 from 2 raw_a1


@pytest.fixture
def world():
    """Has 71 raw_a1, 27 raw_a9 and other base items; wants 3 a1_i5."""
    world = tc.World(tc.published("train")[0])
    world.join("0")
    return world


def line(item, count, ingredients):
    return f"craft {count} {item} using " + ", ".join(f"{n} {i}" for i, n in ingredients.items())


def published_game(task):
    game = package.module("harbor.game")
    facts = {"goal": "", "target_items": task.targets, "initial_inventory": task.inventory}
    return game.Game(game.RecipeBook(package.published_recipes()), facts)


def test_all_recorded_solutions_replay():
    solved = 0
    for split in ("train", "val"):
        for task, record in zip(tc.published(split), package.published_lines(split), strict=True):
            world = tc.World(task)
            lines = [
                line(step["target"][0], step["result_count"], step["ingredients"])
                for step in record["misc"]["gold_trajectory"]
            ]
            for i in range(0, len(lines), 16):
                answers = world.step("0", "\n".join(lines[i : i + 16])).answers
                assert all(answer.kind == "craft" for answer in answers)
            assert not world.done
            solved += world.success
    assert solved == 3154


@pytest.mark.parametrize("index", [0, 2522 // 2, 17])
def test_random_play_agrees_with_the_published_game(index):
    task = tc.published("train")[index]
    world, game, rng = tc.World(task), published_game(task), random.Random(index)
    book = world.recipes
    wanted = tc.oracle.next_commands(book, world.inventory, dict(task.targets))
    outcomes = {True: 0, False: 0}
    for command in wanted * 3:
        craft = commands.read(command)
        using, item, count = dict(craft.using), craft.item, craft.count
        match rng.randrange(6):
            case 0:
                count += 1
            case 1:
                using[rng.choice(list(using))] += 1
            case 2:
                using[rng.choice(book.base)] = rng.randint(1, 3)
            case 3 if len(using) > 1:
                del using[rng.choice(list(using))]
            case 4:
                item = rng.choice(sorted(book.depth))
        said = game.craft(using, (item, count))
        answer = world.step("0", line(item, count, using)).answers[0]
        accepted = answer.kind == "craft"
        assert accepted == said.startswith("Successfully"), (said, answer)
        assert world.inventory == game.inventory
        outcomes[accepted] += 1
        known = world.known(item)
        (facts,) = game.get_info([item])
        assert (known.have, known.depth) == (facts["in_inventory"], facts["crafting_depth"])
        if facts["recipes"]:
            recipe = facts["recipes"][0]
            assert known.makes == recipe["result_count"]
            assert {i: n for i, n, _ in known.ingredients} == recipe["ingredients"]
    assert min(outcomes.values()) > 3
    assert world.success == (game.evaluate("done")[0] == 1.0)


def test_success_counts_from_the_start(world):
    (target, count), *_ = world.task.targets
    for command in tc.oracle.next_commands(world.recipes, world.inventory, {target: count}):
        assert not world.success
        world.step("0", command)
    assert world.success and world.state("0")["gained"][target] == 3
    world.inventory[target] -= 1
    assert not world.success


def test_lines_are_carried_out_in_order_and_a_failing_one_stops_nothing(world):
    result = world.step("0", f"\ninfo a9_i1\n  {MAKE}  \n\ncraft 3 a9_i1\ninventory\n")
    assert [answer.kind for answer in result.answers] == ["info", "craft", "refused", "inventory"]
    assert result.observation.split("\n") == [
        "a9_i1: have 0; depth 1; makes 3 from 2 raw_a1.",
        "Crafted 12 a9_i1.",
        "Error: craft needs its ingredients; use craft COUNT ITEM using N ITEM, N ITEM",
        "Inventory: 63 raw_a1, 27 raw_a9, 48 raw_a4, 42 raw_a0, 26 raw_a3, 26 raw_a2, 1 raw_t0, "
        "12 a9_i1.",
    ]
    assert result.accepted and not result.done and result.reward == 0.0


def test_seventeen_lines_are_one_too_many(world):
    result = world.step("0", "\n".join(["craft 3 a9_i1 using 2 raw_a1"] * 17))
    assert len(result.answers) == 16 and world.inventory["a9_i1"] == 48
    assert result.observation.endswith("Error: only 16 lines a step; 1 not run")


@pytest.mark.parametrize(
    "command, problem, said",
    [
        ("craft 3 a9_i1 using 3 raw_a1", "amount", "Need 2, provided 3"),
        ("craft 4 a9_i1 using 2 raw_a1", "count", "4 is not divisible by recipe result count 3"),
        ("craft 3 a9_i1 using 2 raw_a2", "recipe", "Missing required ingredient raw_a1"),
        ("craft 3 a9_i1 using 2 raw_a1, 1 raw_a2", "recipe", "not required: raw_a2"),
        ("craft 300 a9_i1 using 200 raw_a1", "short", "raw_a1: need 200, have 71"),
        ("craft 3 a9_i1 using 1 raw_a1, 1 raw_a1", "command", '"raw_a1" is given twice'),
        ("craft 3 a9_i1 using 2 raw_b1", "item", 'there is no item "raw_b1"'),
        ("craft 3 b9_i1 using 2 raw_a1", "item", 'there is no item "b9_i1"'),
        ("craft 3 raw_a1 using 2 raw_a2", "base", "raw_a1 is a base item"),
        ("craft 0 a9_i1 using 2 raw_a1", "command", "not a count above 0"),
        ("craft -3 a9_i1 using 2 raw_a1", "command", "not a count above 0"),
        ("craft 3.0 a9_i1 using 2 raw_a1", "command", "not a count above 0"),
        ("craft ٣ a9_i1 using 2 raw_a1", "command", "not a count above 0"),
        ("craft 3 a9_i1 using 2 raw_a1,", "command", "not a count above 0"),
        ("craft 3 a9_i1 using", "command", "needs its ingredients"),
        (f"craft {'9' * 5000} a9_i1 using 2 raw_a1", "command", '"99999'),
        ("craft 3 a9_i1 using " + ", ".join(f"1 raw_a{i}" for i in range(40)), "command", "raw_a"),
        ("info", "command", "needs the name"),
        ("info , ,", "command", "needs the name"),
        ("info " + ",".join(map(str, range(17))), "command", "at most 16 items"),
        ("inventory please", "command", "not a command"),
        ("Craft 3 a9_i1 using 2 raw_a1", "command", "not a command"),
        ("__import__('os')", "command", "not a command"),
    ],
)
def test_errors_name_what_is_wrong_and_change_nothing(world, command, problem, said):
    before = dict(world.inventory)
    result = world.step("0", command)
    assert world.inventory == before and not world.log and not result.accepted
    assert result.answers[0].problem == problem
    assert result.observation.startswith("Error: ") and said in result.observation
    assert len(result.observation) < 400 and "\n" not in result.observation


def test_unknown_items_are_told_beside_known_ones(world):
    (answer,) = world.step("0", "info raw_a1, nothing, raw_a1, a1_i5").answers
    assert answer.text.split("\n") == [
        "raw_a1: have 71; a base item.",
        'Error: there is no item "nothing"',
        "a1_i5: have 0; depth 5; makes 1 from 1 a7_i4, 1 a3_i4_23, 1 a9_i4.",
    ]
    assert answer.unknown == ("nothing",)
    assert [known.item for known in answer.known] == ["raw_a1", "a1_i5"]


def test_a_goal_may_name_what_there_is_not(world):
    world.join("0.0", goal="3x gold, 1x raw_a1, 1x a9_i1")
    assert world.left("0.0") == {"gold": 3, "raw_a1": 1, "a9_i1": 1}
    assert world.step("0.0", "info a9_i1, gold\ncraft 3 gold using 1 raw_a1").accepted
    assert world.state("0.0")["left"]["gold"] == 3


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text()
    | st.lists(
        st.sampled_from("craft info using inventory , 3 0 a9_i1 raw_a1 \n x".split(" "))
    ).map(" ".join),
    agent=st.text(),
)  # noqa: E501
def test_any_text_is_answered(world, text, agent):
    held = sum(world.inventory.values())
    result = world.step(agent, text)
    assert result.observation and world.observe(agent) and world.state(agent)["done"] is False
    if not any(answer.kind == "craft" for answer in result.answers):
        assert sum(world.inventory.values()) == held
    world.refuse_goal(text)
    for verify in tc.VERIFIERS.values():
        assert verify(world, text, agent) in (True, False, None)


@pytest.mark.parametrize(
    "unit",
    ["craft ", "craft 1 a using ", "1x ", "1", "a,", "info a,", " using ", "\n", "\u2028", "9x  "],
)
def test_long_texts_take_linear_time(world, unit):
    text = unit * (32_768 // len(unit))
    started = time.process_time()
    world.step("0", text)
    world.step("0", "info " + text)
    world.refuse_goal(text)
    tc.VERIFIERS["ledger"](world, text, "0")
    assert time.process_time() - started < 0.25


def test_a_copy_shares_nothing_that_changes(world):
    world.step("0", MAKE)
    other = world.copy()
    other.join("0.0")
    other.step("0.0", MAKE)
    assert (world.inventory["a9_i1"], other.inventory["a9_i1"]) == (12, 24)
    assert list(world.starts) == ["0"] and list(other.starts) == ["0", "0.0"]
    assert (len(world.log), len(other.log)) == (1, 2)
    world.step("0", MAKE)
    assert other.inventory["raw_a1"] == 71 - 16 and other.task is world.task


def test_state_tells_what_changed_since_an_agent_joined(world):
    world.step("0", MAKE)
    world.join("0.0", beside="0", goal="3x a9_i1")
    world.step("0", "craft 3 a9_i1 using 2 raw_a1")
    assert world.state("0.0")["gained"] == {"raw_a1": -2, "a9_i1": 3}
    assert world.state("0")["gained"] == {"raw_a1": -10, "a9_i1": 15}
    assert world.state("0")["targets"] == {"a1_i5": 3}


def test_what_is_left_counts_from_an_agents_start(world):
    world.step("0", "craft 3 a9_i1 using 2 raw_a1")
    world.join("0.0", goal="Craft the following items: 7x a9_i1, 1x a0_i1")
    world.step("0.0", "craft 6 a9_i1 using 4 raw_a1")
    assert world.left("0.0") == {"a9_i1": 1, "a0_i1": 1} == world.state("0.0")["left"]
    assert world.left("0") == {"a1_i5": 3} and world.left("0.7") == {}


def test_info_tells_who_asks_what_its_goal_takes(world):
    # a9_i1: 3 from 2 raw_a1. a2_i2_22: 3 from 2 a9_i1 and 1 a0_i1_20.
    world.join("0.0", goal="4x a2_i2_22")
    world.step("0.0", "craft 3 a9_i1 using 2 raw_a1")
    target, ingredient, other = world.step("0.0", "info a2_i2_22, a9_i1, a0_i1").answers[0].known
    assert (target.makes, target.crafts) == (3, 2)
    assert target.ingredients == (("a9_i1", 2, 3), ("a0_i1_20", 1, 0))
    assert target.lacks == (("a9_i1", 1), ("a0_i1_20", 2))
    assert (ingredient.crafts, ingredient.lacks) == (1, ()) and other.crafts == 1


def test_nothing_is_free_of_a_step(world):
    assert world.lookup("0", "inventory") is None
