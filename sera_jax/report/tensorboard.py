"""The scalars of `metrics.jsonl` as TensorBoard event files."""

import math
import os
import pathlib
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary


class EventWriter:
    """Writes the record of each optimizer step to `tensorboard/` of a run folder.

    `resume_step` is the first step that is carried out now: what an earlier start had written of
    it and of later ones is cut from its files, torn ends included.
    """

    def __init__(self, folder: str | pathlib.Path, resume_step: int = 0):
        folder = pathlib.Path(folder) / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.tfevents.*"):
            _cut(path, resume_step)
        # Not SummaryWriter, whose thread keeps events to itself for up to two minutes.
        self._writer = EventsWriter(str(folder / "events"), f".from{resume_step}")

    def write(self, step: int, record: Mapping[str, Any]) -> None:
        """All scalars of the step are in the file when it returns."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record)]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        self._writer.write_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def records(data: bytes) -> Iterator[tuple[bytes, Event]]:
    """(its bytes, event) of every whole record: length, its checksum, event, its checksum."""
    while len(data) >= 16:
        size = 16 + struct.unpack("<Q", data[:8])[0]
        if len(data) < size:
            return
        yield data[:size], Event.FromString(data[12 : size - 4])
        data = data[size:]


def _cut(path: pathlib.Path, resume_step: int) -> None:
    kept = [
        record
        for record, event in records(path.read_bytes())
        if event.step < resume_step or not event.summary.value
    ]
    partial = path.with_name(f"{path.name}.partial".replace("tfevents", "cut"))
    partial.write_bytes(b"".join(kept))
    os.replace(partial, path)


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a record by name, those of nested ones as "reward_by_depth/0"."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            yield f"{prefix}{key}", float(value)
