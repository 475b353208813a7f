"""Checkpoints: the train state and everything else that resuming exactly needs, by orbax.

    with Checkpoints(run_folder / "checkpoints", keep=3, keep_every=100) as checkpoints:
        restored = checkpoints.restore_latest(state)
        ...
        checkpoints.save(step, state, {"supervision": counters, "pending": trees})

What a run needs beside state and extras follows from the step and is not stored: the phase of the
schedule (schedule.py), the tasks (worlds' training_tasks), the seed of every request (of the run's
seed and the tree's name), and the version of the servers' weights (the state's own step).

A save is written in the background and appears under its name only when it is complete. Orbax
hands back a flipped bit of an array without complaint, so a checksum of every array, and one of
the extras, is saved along and compared on the way back.
"""

import dataclasses
import json
import logging
import math
import os
import pathlib
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

logger = logging.getLogger(__name__)

PyTree = Any
SIZES = "file_sizes.json"
EXTRAS = "extras"  # their name among the checksums; an array's starts with a bracket or a point


class CheckpointError(Exception):
    """A checkpoint that cannot be written or read; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Restored:
    step: int
    state: PyTree
    extras: dict[str, Any]


class Checkpoints:
    """The newest `keep` checkpoints of one run, and those of every `keep_every`-th step (0: none).

    With several processes all of them make every call, and `folder` is one they share.
    """

    def __init__(self, folder: str | pathlib.Path, keep: int = 3, keep_every: int = 0):
        self.folder = pathlib.Path(folder).resolve()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every or None,
            create=True,
            cleanup_tmp_directories=True,  # of saves that a killed run left unfinished
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    @property
    def latest_step(self) -> int | None:
        return max(self.steps, default=None)

    def save(self, step: int, state: PyTree, extras: dict[str, Any]) -> None:
        """Starts writing; returns when `state` is copied, so its buffers may then be donated.

        `extras` is JSON: counters, and trees that are still to be trained. Waits for the save
        before it, and raises what went wrong with that one.
        """
        try:
            extras = json.loads(json.dumps(extras))  # written later, when these may have changed
        except TypeError as error:
            raise CheckpointError(f"extras of checkpoint {step} are not JSON: {error}") from None
        # Orbax passes over a step that is not newer without a word.
        if self.latest_step is not None and step <= self.latest_step:
            raise CheckpointError(
                f"{self.folder} already has checkpoint {self.latest_step}, so {step} cannot be "
                "saved: resume from it, or use a new run folder"
            )
        self.wait()
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            extras=ocp.args.JsonSave(extras),
            checksums=ocp.args.JsonSave(checksums(state) | {EXTRAS: _json_checksum(extras)}),
        )
        self._manager.save(step, args=items)

    def wait(self) -> None:
        """Returns when the save in progress, if any, is on disk; raises if it failed."""
        self._manager.wait_until_finished()
        if jax.process_index() != 0:
            return
        for folder in (self.folder / str(step) for step in self.steps):
            if not (folder / SIZES).exists():
                partial = folder / f"{SIZES}.partial"
                partial.write_text(json.dumps(_file_sizes(folder), indent=0))
                os.replace(partial, folder / SIZES)

    def restore(self, step: int, template: PyTree) -> Restored:
        """One checkpoint, into the structure, dtypes and shardings of `template`.

        `template` holds arrays or `jax.ShapeDtypeStruct`s and is left as it is.
        """
        self._check_files(step)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(template),
            extras=ocp.args.JsonRestore(),
            checksums=ocp.args.JsonRestore(),
        )
        restored = self._manager.restore(step, args=items)
        actual = checksums(restored.state) | {EXTRAS: _json_checksum(restored.extras)}
        wrong = sorted(k for k, value in restored.checksums.items() if actual.get(k) != value)
        if wrong:
            raise CheckpointError(f"the checksum of {', '.join(wrong[:3])} does not match")
        return Restored(step, restored.state, restored.extras)

    def restore_latest(self, template: PyTree) -> Restored | None:
        """The newest checkpoint that can be read; None where the folder has none.

        Damaged newer ones are named in a warning and set aside, so that the run can write these
        steps again. If none can be read the fault is rather in `template`: nothing is touched.
        """
        failures: dict[int, str] = {}
        for step in reversed(self.steps):
            try:
                restored = self.restore(step, template)
            except Exception as error:  # orbax raises bare Exception for a cut file
                failures[step] = _first_line(error)
                continue
            for damaged, reason in failures.items():
                self._set_aside(damaged, step, reason)
            return restored
        if not failures:
            return None
        step, reason = next(iter(failures.items()))
        raise CheckpointError(
            f"none of the {len(failures)} checkpoints in {self.folder} fits this state; {step}: "
            f"{reason}\nCheck that model and optimizer are those of the run."
        )

    def close(self) -> None:
        """Finishes the save in progress and stops the background threads."""
        self.wait()
        self._manager.close()

    def _check_files(self, step: int) -> None:
        """Refuses a checkpoint with missing or cut files, on which orbax prints for pages.

        The list is absent where the process ended just after the save; then orbax decides.
        """
        folder = self.folder / str(step)
        if not (folder / SIZES).exists():
            return
        present = _file_sizes(folder)
        for name, size in json.loads((folder / SIZES).read_text()).items():
            if present.get(name) != size:
                raise CheckpointError(f"{name} has {present.get(name, 0)} of {size} bytes")

    def _set_aside(self, step: int, used: int, reason: str) -> None:
        source = self.folder / str(step)
        target = _free_name(self.folder / f"damaged-{step}")
        logger.warning(
            "checkpoint %s is damaged (%s): using %d, moved it to %s",
            source,
            reason,
            used,
            target.name,
        )
        if jax.process_index() == 0:
            source.rename(target)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"set aside checkpoint {step}")
        self._manager.reload()


def checksums(tree: PyTree) -> dict[str, int]:
    """One number for each array of a tree, the same however the array is sharded."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    sums = jax.device_get([_checksum(jnp.asarray(leaf)) for _, leaf in leaves])
    return {jax.tree_util.keystr(p): int(s) for (p, _), s in zip(leaves, sums, strict=True)}


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    """Sum of the array's words, each times an odd number that tells its place, modulo 2^32.

    Any change of a single word shows, for an odd factor never maps a difference to 0.
    """
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    word = min(x.dtype.itemsize, 4)
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * word}")).astype(jnp.uint32)
    place = jnp.zeros((), jnp.uint32)
    for axis in range(bits.ndim):  # no reshape: it would gather a sharded array
        stride = math.prod(bits.shape[axis + 1 :]) % 2**32
        place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)


def _json_checksum(value: Any) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _file_sizes(folder: pathlib.Path) -> dict[str, int]:
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(SIZES)]
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)}


def _free_name(path: pathlib.Path) -> pathlib.Path:
    names = [path, *(path.with_name(f"{path.name}-{i}") for i in range(1, 1000))]
    return next(name for name in names if not name.exists())


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].split(". ")[0][:160]  # a page of storage settings may follow
