"""The scalars of `metrics.jsonl` as TensorBoard event files."""

import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tensorboardX import SummaryWriter


class EventWriter:
    """Writes the record of each optimizer step to `tensorboard/` of a run folder.

    `resume_step` is the first step that the resumed run carries out: TensorBoard hides what an
    earlier start had written for it and later ones.
    """

    def __init__(self, folder: str | pathlib.Path, resume_step: int | None = None):
        self._writer = SummaryWriter(
            str(pathlib.Path(folder) / "tensorboard"),
            purge_step=resume_step or None,
            filename_suffix=f".from{resume_step or 0}",
        )

    def write(self, step: int, record: Mapping[str, Any]) -> None:
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Returns when all that was written is in its file."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a record by name, those of nested ones as "reward_by_depth/0"."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            yield f"{prefix}{key}", float(value)
