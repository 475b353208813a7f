"""Runs that end without a word, at any instant, go on as if nothing had happened."""

import random
import time

from jobs import differing, finish, kill, phase, saving, start, wait_until


def test_a_run_killed_in_a_save_and_at_a_random_instant_ends_in_the_same_bits(whole, tmp_path):
    folder = tmp_path / "killed"
    process = start(folder)
    # Inside the second save: the first one is what the run goes on from.
    first = folder / "checkpoints" / "1"
    assert wait_until(process, lambda: first.exists() and saving(folder))
    kill(process)
    assert phase(folder) == "inside a save" and not (folder / "policy").exists()
    process = start(folder)
    time.sleep(random.Random(1).uniform(5.0, 20.0))
    kill(process)
    output = finish(start(folder))
    assert "resuming after step" in output
    assert not differing(folder, whole[0])
    assert not list((folder / "checkpoints").glob("*tmp*"))
