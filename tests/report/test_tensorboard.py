"""Event files hold the scalars of each step, nested ones by path."""

import struct

from tensorboardX.proto.event_pb2 import Event

from sera_jax.report.tensorboard import EventWriter, scalars

RECORD = {
    "success": 0.5,
    "no_op": False,
    "objective": "execution",
    "loss": "nan",
    "reward_by_depth": {"0": 0.25, "1": 1},
    "ratio": float("inf"),
}


def read_events(folder):
    """(step, tag, value) of every scalar. A record: length, its checksum, data, its checksum."""
    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            data = data[16 + length :]
    return found


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


def test_a_resumed_run_adds_a_file(tmp_path):
    for resume_step in (None, 1):
        with EventWriter(tmp_path, resume_step) as writer:
            writer.write(1, {"success": 0.75})
    assert [step for step, *_ in read_events(tmp_path)] == [1, 1]
