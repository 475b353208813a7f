"""Kills a tiny run N times and says whether it still ends in the bits of an unbroken one.

    python tests/integration/torture.py --kills=20 [--overlap] [--folder=FOLDER] [--seed=0]

Each kill is a SIGKILL at a random instant of a start, or as soon as a save or an export is
half-written, in turn. A run that gets to its end is compared, and the next one begins. About
15 s a kill on two idle cores. Further flags go to launch/main.py.
"""

import argparse
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jobs import (
    OVERLAPPING,
    TINY,
    differing,
    exporting,
    finish,
    kill,
    phase,
    saving,
    start,
    wait_until,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--overlap", action="store_true", help="sample while training")
    parser.add_argument("--folder", type=pathlib.Path, help="of the runs; default: a temporary one")
    parser.add_argument("--seed", type=int, default=0)
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        broken = torture(options, flags, options.folder or pathlib.Path(temporary))
    sys.exit(f"{broken} runs ended otherwise" if broken else None)


def torture(options, flags, folder):
    """Prints a row a kill and a row an end; the number of runs that ended otherwise."""
    job = (*(OVERLAPPING if options.overlap else TINY), *flags)
    chance = random.Random(options.seed)
    finish(start(folder / "warm", job=job))  # compiles, and makes the first policy
    begun = time.monotonic()
    finish(start(folder / "whole", job=job))
    length = time.monotonic() - begun
    print(f"the unbroken run takes {length:.0f} s")
    row("kill", "run", "seconds", "asked for", "hit")
    kills, number, broken = 0, 0, 0
    while kills < options.kills:
        number += 1
        run = folder / f"run-{number}"
        kills, ended = until_it_ends(run, job, chance, length, kills, options.kills)
        different = differing(run, folder / "whole")
        broken += bool(different)
        row("", number, "", f"ended after {ended} kills", different or "equal in every bit")
    return broken


def until_it_ends(run, job, chance, length, kills, most):
    """Starts the run again and again; -> kills so far, kills of this run."""
    hits = 0
    while True:
        begun = time.time()
        process = start(run, job=job)
        if kills == most:
            finish(process)
            return kills, hits
        asked, condition = kinds(run, chance, length, begun)[kills % 3]
        if not wait_until(process, condition):
            finish(process)
            return kills, hits
        seconds = time.time() - begun
        kill(process)
        kills, hits = kills + 1, hits + 1
        row(kills, run.name.removeprefix("run-"), f"{seconds:.2f}", asked, phase(run, begun))


def kinds(run, chance, length, begun):
    delay, number, seen = chance.uniform(0.0, length), chance.choice((1, 2)), set()

    def nth_export():
        seen.update(exporting(run, begun))
        return len(seen) >= number

    return (
        ("any instant", lambda: time.time() - begun > delay),
        ("a save", lambda: saving(run, begun)),
        (f"export {number} of a start", nth_export),
    )


def row(*cells):
    widths = (5, 4, 8, 22, 0)
    line = "".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True))
    print(line.rstrip(), flush=True)


if __name__ == "__main__":
    main()
