"""Event files hold the scalars of each step, nested ones by path."""

from sera_jax.report.tensorboard import EventWriter, records, scalars

RECORD = {
    "success": 0.5,
    "no_op": False,
    "objective": "execution",
    "loss": "nan",
    "reward_by_depth": {"0": 0.25, "1": 1},
    "ratio": float("inf"),
}


def read_events(folder):
    """(step, tag, value) of every scalar."""
    return [
        (event.step, value.tag, value.simple_value)
        for path in sorted((folder / "tensorboard").iterdir())
        for _, event in records(path.read_bytes())
        for value in event.summary.value
    ]


def test_scalars_are_flattened_and_words_left_out():
    assert dict(scalars(RECORD)) == {
        "success": 0.5,
        "no_op": 0.0,
        "reward_by_depth/0": 0.25,
        "reward_by_depth/1": 1.0,
    }


def test_event_files_read_back(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.write(0, RECORD)
        writer.write(1, {"success": 0.75})
    found = read_events(tmp_path)
    assert (0, "reward_by_depth/0", 0.25) in found
    assert (1, "success", 0.75) in found
    assert len(found) == 5


def test_a_resumed_run_leaves_one_event_a_step(tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in range(4):
            writer.write(step, {"success": 0.75})
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-7])  # killed while it wrote
    with EventWriter(tmp_path, 2) as writer:
        for step in range(2, 5):
            writer.write(step, {"success": 0.5})
    assert [(step, value) for step, _, value in read_events(tmp_path)] == [
        (0, 0.75),
        (1, 0.75),
        (2, 0.5),
        (3, 0.5),
        (4, 0.5),
    ]


def test_a_run_killed_before_its_first_checkpoint_writes_its_events_anew(tmp_path):
    for _ in range(2):
        with EventWriter(tmp_path, 0) as writer:
            writer.write(0, {"success": 0.75})
    assert [step for step, *_ in read_events(tmp_path)] == [0]
