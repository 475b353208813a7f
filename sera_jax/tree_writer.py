"""Sampled trees of a run on disk: compressed JSON lines, bounded in size, off the training loop.

    with TreeWriter(folder, max_bytes=100_000_000) as writer:
        writer.write(step, "execution", trees, rewards=rewards, advantages=credits)
    for record in read_trees(folder):
        tree = Tree.from_json(record)

`trees.jsonl.gz` is plain gzip, one member a write, so that `zcat` reads it and an interruption
costs the last member at most. A record is the tree's own JSON plus "step", "objective" and what
`write` was given for each tree:

    rewards, advantages   {node id or event id: value}, as rewards.py and advantages.py return them
    trainer_logprobs      {node id: the trainer's log-prob of every token the policy generated}
"""

import json
import os
import pathlib
import queue
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sera_jax.redaction import plain
from sera_jax.trees import Tree

NAME = "trees.jsonl.gz"
CHUNK = 1 << 16
WAITING = 16  # writes that may wait for a slow disk before further ones are dropped

Record = dict[str, Any]


class TreeWriter:
    """Appends to a run's `trees.jsonl.gz` from a thread of its own; `write` never waits.

    Where the file would outgrow `max_bytes`, every step's share of trees is halved, those written
    before included: all of the run stays visible, with fewer trees a step. Trees are a report's
    and not the method's, so a full disk or a slow one costs trees (said once, counted in
    `dropped`) and never the run.

    `resume_step` is the first step that the resumed run carries out; trees of it and later ones
    are dropped, as by metrics.MetricsWriter.
    """

    def __init__(self, folder: str | pathlib.Path, max_bytes: int, resume_step: int | None = None):
        self.path = pathlib.Path(folder) / NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.max_bytes, self.dropped = max_bytes, 0
        self._share: int | None = None  # trees a step; None: all that come
        self._stopped = ""  # why
        _cut(self.path, resume_step)
        self._queue: queue.Queue = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="tree writer", daemon=True)
        self._thread.start()

    def write(self, step: int, objective: str, trees: Sequence[Tree], **values: Sequence) -> None:
        """Hands over the trees of one step; each keyword holds one value a tree."""
        common = {"step": step, "objective": objective}
        rows = [
            (tree, common | dict(zip(values, column, strict=True)))
            for tree, *column in zip(trees, *values.values(), strict=True)
        ]
        try:
            if rows:
                self._queue.put_nowait(rows)
        except queue.Full:
            self._drop(rows, "the disk is too slow")

    def flush(self) -> None:
        """Waits until everything handed over is on disk, or dropped."""
        self._queue.join()

    def close(self) -> None:
        """Flushes, and ends the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def __enter__(self) -> "TreeWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _run(self) -> None:
        while (rows := self._queue.get()) is not None:
            try:
                if not self._stopped:
                    self._append([tree.to_json() | extra for tree, extra in rows])
            except Exception as error:  # whatever it is, it must not end a training run
                # What is half written would hide all that follows it.
                self._stopped = f"{type(error).__name__}: {error}"
            if self._stopped:
                self._drop(rows, self._stopped)
            self._queue.task_done()

    def _append(self, records: list[Record]) -> None:
        member = _member(records[: self._share])
        while self._size() + len(member) > self.max_bytes:
            if not self._halve(records):
                self._stopped = f"{self.path} has reached its {self.max_bytes} bytes"
                return
            member = _member(records[: self._share])
        with self.path.open("ab") as file:
            file.write(member)

    def _halve(self, records: list[Record]) -> bool:
        """Halves the trees of every step; False where each has one and no more can go."""
        saved = list(read_trees(self.path.parent))
        most = max(Counter(record["step"] for record in [*saved, *records]).values())
        share = min(most, self._share or most) // 2
        if share == 0:
            return False
        self._share = share
        kept: dict[int, list[Record]] = {}
        for record in saved:
            kept.setdefault(record["step"], []).append(record)
        temporary = self.path.with_name(NAME + ".tmp")
        temporary.write_bytes(b"".join(_member(step[:share]) for step in kept.values()))
        os.replace(temporary, self.path)
        return True

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _drop(self, rows: list, reason: str) -> None:
        if not self.dropped:
            print(f"from here on, trees are missing from the record: {reason}", flush=True)
        self.dropped += len(rows)


def read_trees(folder: str | pathlib.Path) -> Iterator[Record]:
    """The saved records in order, none where there is no file; a torn last member is left out."""
    for _, text in _members(pathlib.Path(folder) / NAME):
        for line in text.splitlines():
            yield json.loads(line)


def count_trees(folder: str | pathlib.Path) -> int:
    return sum(text.count("\n") for _, text in _members(pathlib.Path(folder) / NAME))


def _member(records: Sequence[Record]) -> bytes:
    text = "".join(_line(record) for record in records)
    packer = zlib.compressobj(6, wbits=31)  # 31: with a gzip header
    return packer.compress(text.encode("ascii")) + packer.flush()


def _line(record: Record) -> str:
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except (TypeError, ValueError):  # arrays, or a number that is none
        return json.dumps(plain(record), allow_nan=False) + "\n"


def _members(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """(byte after its last, text) of every whole gzip member."""
    if not path.exists():
        return
    with path.open("rb") as file:
        end, chunk = 0, file.read(CHUNK)
        while chunk:
            unpacker, parts = zlib.decompressobj(wbits=31), []
            while chunk and not unpacker.eof:
                try:
                    parts.append(unpacker.decompress(chunk))
                except zlib.error:
                    return
                end += len(chunk) - len(unpacker.unused_data)
                chunk = unpacker.unused_data or file.read(CHUNK)
            if not unpacker.eof:
                return
            yield end, b"".join(parts).decode("ascii")


def _cut(path: pathlib.Path, resume_step: int | None) -> None:
    """Cuts off a torn end, and what a resumed run will write again."""
    size = 0
    for end, text in _members(path):
        step = json.loads(text.partition("\n")[0])["step"]
        if resume_step is not None and step >= resume_step:
            break
        size = end
    if path.exists():
        os.truncate(path, size)
