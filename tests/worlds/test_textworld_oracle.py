"""The greedy cook finishes what it is asked for, alone and in company, from any state."""

import collections
import json
import pathlib
import random

import pytest

from sera_jax.worlds import textworld_sync as tws

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden/textworld_sync.json").read_text())


def solve(world: tws.World, agent: str = "root", **scope) -> int:
    """Plays to the end; returns the number of actions, all of them accepted."""
    count = 0
    while (command := tws.oracle.next_action(world, agent, **scope)) is not None:
        assert world.step(agent, command).accepted, command
        count += 1
    return count


def hard_task(family: str = "dependency_gate", tier: str = "hard") -> tws.Task:
    return tws.generate_task("test", tier, family, 822407, "t")


def test_alone_it_solves_every_test_task_within_its_budget():
    counts = collections.defaultdict(list)
    for task in tws.generate("test"):
        world = tws.World(task)
        counts[task.tier].append(solve(world))
        assert world.success, task.task_id
    assert max(counts["easy"]) <= 20 < min(counts["hard"])  # what one agent's steps allow
    means = {tier: round(sum(c) / len(c), 2) for tier, c in counts.items()}
    assert means == GOLDEN["oracle_mean_actions"]


@pytest.mark.parametrize("family", tws.FAMILIES)
@pytest.mark.parametrize("tier", ["medium", "extreme"])
def test_one_agent_a_dish_in_turns(family, tier):
    world = tws.World(hard_task(family, tier).with_budget(400))
    dishes = {f"a{n}": (dish.dish_id,) for n, dish in enumerate(world.task.dishes)}
    for agent in dishes:
        world.join(agent)
    active = collections.deque(dishes)
    while active:
        agent = active.popleft()
        command = tws.oracle.next_action(world, agent, dishes=dishes[agent])
        if command is not None:
            assert world.step(agent, command).accepted
            active.append(agent)
    assert world.success


def test_agents_in_random_order_share_everything():
    for seed in range(20):
        rng = random.Random(seed)
        world = tws.World(hard_task().with_budget(400))
        world.join("a1")
        while not world.done:
            agent = rng.choice(("root", "a1"))
            assert world.step(agent, tws.oracle.next_action(world, agent)).accepted
        assert world.success


def test_a_share_of_the_dishes():
    world = tws.World(hard_task())
    solve(world, dishes=["dish_3", "dish_1"])
    assert world.state("root")["meals_eaten"] == ["dish_1", "dish_3"]
    assert len(world.counter) == len(world.taken) == 8
    assert solve(world, dishes=["dish_3"]) == 0 and not world.success
    solve(world)
    assert world.success


def test_a_share_of_the_ingredients():
    task = hard_task()
    names = [task.dishes[1].recipe[0].name, task.dishes[0].recipe[2].name]
    world = tws.World(task)
    solve(world, ingredients=names)
    state = world.state("root")
    assert state["prepared"] == sorted(names) and state["meals_prepared"] == []
    assert state["gate_open"]  # the second dish is behind it
    assert solve(world, ingredients=names) == 0
    assert solve(world, ingredients=[]) == solve(world, ingredients=["unheard of"]) == 0


def test_gate_stays_shut_where_nothing_behind_it_is_wanted():
    world = tws.World(hard_task())
    solve(world, dishes=["dish_1"])
    assert not world.gate_open


def test_finishes_what_an_agent_left_in_the_full_inventory():
    world = tws.World(hard_task("multi_dish_fork_join"))
    here, other = (world.plan.items[i].name for i in world.visible("kitchen")[:2])
    world.step("root", f"take {here}")
    world.join("a1")
    solve(world, "a1", ingredients=[other])
    assert other in world.state("a1")["prepared"]


def test_from_any_state_it_offers_a_valid_command():
    for family in tws.FAMILIES:
        rng = random.Random(family)
        world = tws.World(hard_task(family).with_budget(2000))
        for _ in range(150):
            command = tws.oracle.next_action(world, "root")
            assert command is None if world.done else command in world.valid_actions("root")
            world.step("root", rng.choice(world.valid_actions("root")))
        solve(world)
        assert world.success
