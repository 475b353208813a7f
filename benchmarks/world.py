"""Speed of the TextWorld-Sync world on one core.

    python -m benchmarks.world

Prints the time of a copy, actions a second (each with its observation and the valid actions after
it), and the time in which all splits are generated. Fixed tasks, a fixed line of play.
"""

import timeit

from sera_jax.worlds import textworld_sync as tws

REPEATS = 5  # the fastest counts: others share the machine


def best(function, number: int) -> float:
    """Seconds a call."""
    return min(timeit.repeat(function, number=number, repeat=REPEATS)) / number


def oracle_play(task: tws.Task) -> list[str]:
    world, commands = tws.World(task), []
    while (command := tws.oracle.next_action(world, "root")) is not None:
        commands.append(command)
        world.step("root", command)
    return commands


def main() -> None:
    generation = best(lambda: [tws.generate(split) for split in ("train", "dev", "test")], 1)
    tasks = [
        tws.generate_task("test", "extreme", family, 823_000 + i, f"benchmark_{family}")
        for i, family in enumerate(tws.FAMILIES)
    ]
    games = [(tws.World(task), oracle_play(task)) for task in tasks]

    def play() -> None:
        for start, commands in games:
            world = start.copy()
            for command in commands:
                world.step("root", command)
                world.valid_actions("root")

    actions = sum(len(commands) for _, commands in games)
    print(f"copy             {best(games[0][0].copy, 2000) * 1e6:8.2f} microseconds")
    print(f"actions          {actions / best(play, 20):8.0f} a second")
    print(f"all 3,100 tasks  {generation:8.2f} seconds")


if __name__ == "__main__":
    main()
