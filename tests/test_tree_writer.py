"""The record of trees: read back as written, within its size, whole after a crash."""

import gzip
import threading

import numpy as np
import pytest

from sera_jax import tree_writer
from sera_jax.tree_writer import NAME, TreeWriter, count_trees, read_trees
from sera_jax.trees import Node, Step, Tree

PLENTY = 10_000_000


def tree(name: str, size: int = 1) -> Tree:
    rng = np.random.default_rng(abs(hash(name)) % 2**32)
    logprobs = tuple(float(x) for x in rng.standard_normal(size))  # does not compress
    step = Step("finish", "<finish>\ud800 done</finish>", end=size, logprobs=logprobs)
    return Tree(name, 1.0, (Node("0", None, 0, "", "finished", steps=(step,)),))


def write_steps(folder, steps, count=2, size=1, **options):
    with TreeWriter(folder, **({"max_bytes": PLENTY} | options)) as writer:
        for step in steps:
            writer.write(step, "execution", [tree(f"{step}/{k}", size) for k in range(count)])
            while not writer._queue.empty():  # a test writes faster than a trainer
                pass
    return writer


def names(folder):
    return [record["task_id"] for record in read_trees(folder)]


def test_reads_back_trees_and_what_came_with_them(tmp_path):
    trees = [tree("a"), tree("b")]
    with TreeWriter(tmp_path, PLENTY) as writer:
        writer.write(3, "rubric", trees, rewards=[{"0": 1.0}, {}], advantages=[{"0": -0.5}, {}])
    first, second = read_trees(tmp_path)
    assert count_trees(tmp_path) == 2
    assert Tree.from_json(first) == trees[0]
    assert (first["step"], first["objective"]) == (3, "rubric")
    assert (first["rewards"], first["advantages"]) == ({"0": 1.0}, {"0": -0.5})
    assert second["task_id"] == "b" and second["rewards"] == {}
    assert gzip.open(tmp_path / NAME).read().count(b"\n") == 2  # readable by any tool


def test_arrays_and_broken_numbers_are_written(tmp_path):
    with TreeWriter(tmp_path, PLENTY) as writer:
        writer.write(0, "execution", [tree("a")], advantages=[{"0": np.float32("nan")}])
    assert next(read_trees(tmp_path))["advantages"] == {"0": "nan"}


def test_each_value_needs_every_tree(tmp_path):
    with TreeWriter(tmp_path, PLENTY) as writer, pytest.raises(ValueError):
        writer.write(0, "execution", [tree("a"), tree("b")], rewards=[{}])


def test_nothing_written_reads_as_nothing(tmp_path):
    write_steps(tmp_path, [0], count=0)
    assert names(tmp_path) == []


@pytest.mark.parametrize("torn", [1, 15, 60])
def test_a_crash_costs_the_last_write_alone(tmp_path, torn):
    write_steps(tmp_path, [0, 1])
    path = tmp_path / NAME
    whole = path.read_bytes()
    write_steps(tmp_path, [2])
    path.write_bytes(path.read_bytes()[: len(whole) + torn])
    assert names(tmp_path) == ["0/0", "0/1", "1/0", "1/1"]
    write_steps(tmp_path, [2])
    assert names(tmp_path)[4:] == ["2/0", "2/1"]


def test_garbage_at_the_end_is_cut(tmp_path):
    write_steps(tmp_path, [0])
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\0" * 100)
    assert names(tmp_path) == ["0/0", "0/1"]
    write_steps(tmp_path, [1])
    assert names(tmp_path) == ["0/0", "0/1", "1/0", "1/1"]


def test_a_resumed_run_writes_its_steps_once(tmp_path):
    write_steps(tmp_path, [0, 1, 2], count=1)
    write_steps(tmp_path, [1, 2], count=1, resume_step=1)
    assert names(tmp_path) == ["0/0", "1/0", "2/0"]


def test_members_longer_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_writer, "CHUNK", 7)
    write_steps(tmp_path, range(3), size=50)
    assert len(names(tmp_path)) == 6


def test_the_cap_thins_every_step_and_keeps_the_whole_run(tmp_path, capsys):
    write_steps(tmp_path, range(8), count=4, size=200, max_bytes=30_000)
    assert (tmp_path / NAME).stat().st_size <= 30_000
    assert {name.split("/")[0] for name in names(tmp_path)} == set("01234567")
    assert len(names(tmp_path)) < 8 * 4
    assert capsys.readouterr().out == ""


def test_a_full_record_says_so_once_and_goes_on(tmp_path, capsys):
    writer = write_steps(tmp_path, range(12), size=200, max_bytes=5_000)
    assert (tmp_path / NAME).stat().st_size <= 5_000
    assert names(tmp_path) and writer.dropped
    assert capsys.readouterr().out.count("reached its 5000 bytes") == 1


def test_a_disk_that_fails_costs_trees_only(tmp_path, capsys):
    (tmp_path / NAME).mkdir()
    with pytest.raises(OSError):
        TreeWriter(tmp_path, PLENTY)
    (tmp_path / NAME).rmdir()
    writer = TreeWriter(tmp_path, PLENTY)
    (tmp_path / NAME).unlink(missing_ok=True)
    (tmp_path / NAME).mkdir()
    writer.write(0, "execution", [tree("a")])
    writer.close()
    assert writer.dropped == 1
    assert "IsADirectoryError" in capsys.readouterr().out


def test_write_never_waits_for_the_disk(tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(TreeWriter, "_append", lambda self, records: release.wait(10))
    writer = TreeWriter(tmp_path, PLENTY)
    for step in range(40):
        writer.write(step, "execution", [tree("a")])
    assert writer.dropped >= 40 - tree_writer.WAITING - 1
    release.set()
    writer.close()
