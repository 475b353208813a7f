"""What a run writes down of each step: a metrics line, TensorBoard events, some of its trees."""

import contextlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from sera_jax import hosts, metrics
from sera_jax.report.tensorboard import EventWriter
from sera_jax.tree_writer import TreeWriter
from sera_jax.trees import Tree


class Journal:
    """Context manager over the files of one run folder; of several processes the first one writes.

    `resume_step` is the first step that is carried out now. What a killed run had written of it
    and of later ones, torn ends included, is dropped.
    """

    def __init__(self, folder: pathlib.Path, resume_step: int, tree_bytes: int):
        self._folder, self._resume_step, self._tree_bytes = folder, resume_step, tree_bytes

    def __enter__(self) -> "Journal":
        with contextlib.ExitStack() as stack:
            if hosts.is_first():
                enter, at = stack.enter_context, (self._folder, self._resume_step)
                self._metrics = enter(metrics.MetricsWriter(*at))
                self._events = enter(EventWriter(*at))
                self._trees = enter(TreeWriter(self._folder, self._tree_bytes, self._resume_step))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def write(
        self,
        step: int,
        record: Mapping[str, Any],
        trees: Sequence[Tree],
        **values: Sequence,
    ) -> None:
        """`values` are tree_writer's: each keyword holds one value a tree."""
        if hosts.is_first():
            self._trees.write(step, record["objective"], trees, **values)
            self._events.write(step, record)
            self._metrics.write(step, record)

    def flush(self) -> None:
        """Returns when all that was written is in its file, as far as the disk takes it."""
        if hosts.is_first():
            self._trees.flush()
