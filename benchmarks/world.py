"""Speed of the worlds on one core, and what their scripted players solve.

    python -m benchmarks.world

Prints for each benchmark the CPU time of a copy and of commands, along a fixed line of play
of fixed tasks: in TextWorld-Sync each with its observation and the valid actions after it, in
TextCraft-Synth 16 a step with what is said to them. Then how many tasks of each tier are solved
alone, and for TextCraft-Synth as a tree of agents within 20 steps each and depth 3 (METHOD 1), by
the commands that a step may hold. About three minutes.
"""

import time
import timeit
from collections.abc import Callable, Sequence

from sera_jax.worlds import textcraft_synth as tcs
from sera_jax.worlds import textworld_sync as tws

REPEATS = 5  # the fastest counts
TIERS = ("easy", "medium", "hard", "extreme")


def best(function, number: int) -> float:
    """CPU seconds a call."""
    timer = time.process_time
    return min(timeit.repeat(function, timer=timer, number=number, repeat=REPEATS)) / number


def line(name: str, value: str) -> None:
    print(f"{name:28} {value}")


def counts(name: str, tasks: Sequence, solves: Callable[..., bool]) -> None:
    """A line of solved/all by tier."""
    solved = {tier: [solves(task) for task in tasks if task.tier == tier] for tier in TIERS}
    of_all = sum(map(sum, solved.values()))
    by_tier = "  ".join(f"{tier} {sum(of)}/{len(of)}" for tier, of in solved.items())
    line(name, f"{of_all}/{len(tasks)}   {by_tier}")


# --- TextWorld-Sync ----------------------------------------------------------------------------


def cook(task: tws.Task) -> tuple[tws.World, list[str]]:
    """The world at the end of the oracle's play, and its commands."""
    world, commands = tws.World(task), []
    while (command := tws.oracle.next_action(world, "root")) is not None:
        commands.append(command)
        world.step("root", command)
    return world, commands


def textworld() -> None:
    tasks = [
        tws.generate_task("test", "extreme", family, 823_000 + i, f"benchmark_{family}")
        for i, family in enumerate(tws.FAMILIES)
    ]
    games = [(tws.World(task), cook(task)[1]) for task in tasks]

    def play() -> None:
        for start, commands in games:
            world = start.copy()
            for command in commands:
                world.step("root", command)
                world.valid_actions("root")

    actions = sum(len(commands) for _, commands in games)
    generation = best(lambda: [tws.generate(split) for split in ("train", "dev", "test")], 1)
    print("TextWorld-Sync")
    line("copy", f"{best(games[0][0].copy, 2000) * 1e6:.2f} microseconds")
    line("actions", f"{actions / best(play, 20):,.0f} a second")
    line("all 3,100 tasks generated", f"{generation:.2f} seconds")
    counts("test solved alone", tws.generate("test"), lambda task: cook(task)[0].success)


# --- TextCraft-Synth ---------------------------------------------------------------------------


def crafts(task: tcs.Task) -> list[str]:
    world = tcs.World(task)
    return tcs.oracle.next_commands(world.recipes, world.inventory, dict(task.targets))


def alone(task: tcs.Task) -> bool:
    world = tcs.World(task)
    tcs.oracle.play_flat(world, "0")
    return world.success


def together(task: tcs.Task, commands: int) -> bool:
    world = tcs.World(task)
    world.join("0")
    within = tcs.oracle.play_tree(world, "0", dict(task.targets), lines=commands)
    return within and world.success


def textcraft() -> None:
    tasks = tcs.published("train") + tcs.published("val")
    chosen = [next(t for t in tasks if t.tier == tier) for tier in TIERS]
    games = [(tcs.World(task), crafts(task)) for task in chosen]
    for world, _ in games:
        world.join("0")
    questions = [[command.split()[2] for command in commands] for _, commands in games]

    def play() -> None:
        for start, commands in games:
            world = start.copy()
            for i in range(0, len(commands), 16):
                world.step("0", "\n".join(commands[i : i + 16]))

    def ask() -> None:
        for (world, _), items in zip(games, questions, strict=True):
            for i in range(0, len(items), 16):
                world.step("0", "info " + ", ".join(items[i : i + 16]))

    number = sum(len(commands) for _, commands in games)
    print("\nTextCraft-Synth")
    line("copy", f"{best(games[0][0].copy, 2000) * 1e6:.2f} microseconds")
    line("craft commands", f"{number / best(play, 20):,.0f} a second")
    line("items asked about", f"{number / best(ask, 20):,.0f} a second")
    counts("all solved alone", tasks, alone)
    counts("trees, 16 commands a step", tasks, lambda task: together(task, 16))
    counts("trees, 1 command a step", tasks, lambda task: together(task, 1))


if __name__ == "__main__":
    textworld()
    textcraft()
