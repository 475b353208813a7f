import functools
import gc
import logging
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sera_jax import checkpoints
from sera_jax.checkpoints import CheckpointError, Checkpoints

# Orbax abandons its other reads when one fails; Python complains when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning"),
]

EXTRAS = {"seed": 7, "cursor": 24, "version": "3", "counters": {"judge_calls": 12}}


@pytest.fixture(autouse=True)
def collect_abandoned_reads():
    yield
    gc.collect()


def make_state(seed=0):
    key = jax.random.key(seed)
    params = {"w": jax.random.normal(key, (64, 48)), "b": jnp.arange(7, dtype=jnp.bfloat16) / 3}
    optimizer = optax.adamw(1e-3).init(params)
    return {"params": params, "optimizer": optimizer, "step": jnp.int32(seed)}


def assert_same_bits(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


def save_steps(folder, steps, keep=3):
    with Checkpoints(folder, keep) as saved:
        for step in steps:
            saved.save(step, make_state(step), {**EXTRAS, "cursor": step})


def largest_file(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def cut(folder):
    path = largest_file(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_one_bit(folder):
    path = largest_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def lose_a_file(folder):
    largest_file(folder).unlink()


def test_restores_every_bit_and_the_extras(tmp_path):
    state = make_state()
    with Checkpoints(tmp_path) as saved:
        assert saved.restore_latest(state) is None
        saved.save(5, state, EXTRAS)
        saved.wait()
    with Checkpoints(tmp_path) as reopened:
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
        for template in (make_state(1), abstract):
            restored = reopened.restore_latest(template)
            assert restored.step == 5 and restored.extras == EXTRAS
            assert_same_bits(restored.state, state)


def test_a_checkpoint_without_its_list_of_files_is_read(tmp_path):
    save_steps(tmp_path, (1,))
    (tmp_path / "1" / checkpoints.SIZES).unlink()
    with Checkpoints(tmp_path) as saved:
        assert_same_bits(saved.restore_latest(make_state()).state, make_state(1))


def test_special_values_survive(tmp_path):
    state = {"x": jnp.asarray([jnp.nan, -0.0, jnp.inf, 1e-42]), "flag": jnp.asarray([True, False])}
    with Checkpoints(tmp_path) as saved:
        saved.save(0, state, {})
        saved.wait()
        assert_same_bits(saved.restore_latest(state).state, state)


def test_a_state_may_be_donated_while_it_is_written(tmp_path):
    @functools.partial(jax.jit, donate_argnums=0)
    def overwrite(state):
        return jax.tree.map(lambda x: x * 0 + 1, state)

    state, expected = make_state(), make_state()
    with Checkpoints(tmp_path) as saved:
        saved.save(1, state, EXTRAS)
        jax.block_until_ready(overwrite(state))
        saved.wait()
        assert_same_bits(saved.restore_latest(expected).state, expected)


def test_keeps_the_newest(tmp_path):
    save_steps(tmp_path, range(1, 5), keep=2)
    with Checkpoints(tmp_path, keep=2) as saved:
        assert saved.steps == [3, 4] and saved.latest_step == 4


def test_keeps_every_nth_step_beside_the_newest(tmp_path):
    with Checkpoints(tmp_path, keep=1, keep_every=4) as saved:
        for step in range(2, 12, 2):
            saved.save(step, make_state(step), EXTRAS)
        saved.wait()
        assert saved.steps == [4, 8, 10]


@pytest.mark.parametrize("damage", [cut, flip_one_bit, lose_a_file])
def test_a_damaged_newest_one_is_named_and_the_one_before_is_used(tmp_path, caplog, damage):
    save_steps(tmp_path, (1, 2))
    damage(tmp_path / "2")
    with Checkpoints(tmp_path) as saved, caplog.at_level(logging.WARNING, "sera_jax"):
        restored = saved.restore_latest(make_state())
        assert restored.step == 1 and restored.extras["cursor"] == 1
        assert_same_bits(restored.state, make_state(1))
        (warning,) = [r.message for r in caplog.records if r.name == "sera_jax.checkpoints"]
        assert f"{tmp_path}/2 is damaged" in warning and "using 1" in warning
        # The resumed run reaches the damaged step again and must be able to save it.
        saved.save(2, make_state(2), EXTRAS)
        saved.wait()
        assert saved.restore_latest(make_state()).step == 2
    assert (tmp_path / "damaged-2").is_dir()


def test_an_interrupted_save_leaves_no_checkpoint(tmp_path):
    save_steps(tmp_path, (1, 2))
    (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    with Checkpoints(tmp_path) as saved:
        assert saved.restore_latest(make_state()).step == 1
        saved.save(2, make_state(2), EXTRAS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_extras_may_change_while_they_are_written(tmp_path):
    extras = {"seconds": {"training": 1.0}}
    with Checkpoints(tmp_path) as saved:
        saved.save(1, make_state(), extras)
        extras["seconds"]["training"] = 2.0
        saved.wait()
        assert saved.restore_latest(make_state()).extras == {"seconds": {"training": 1.0}}


def test_changed_extras_are_damage(tmp_path):
    save_steps(tmp_path, (1, 2))
    path = tmp_path / "2" / "extras" / "metadata"
    path.write_text(path.read_text().replace('"judge_calls": 12', '"judge_calls": 13'))
    with Checkpoints(tmp_path) as saved:
        assert saved.restore_latest(make_state()).step == 1


OTHER_MESHES = """
import sys
import jax, numpy as np
sys.path.insert(0, "tests")
from sera_jax import batching, checkpoints, train_step
from sera_jax.model import qwen3, sharding
from test_train_step import CONFIG, ragged

batches = batching.pack(ragged(), row_length=[16], rows=8)
optimizer = train_step.make_optimizer(1e-2)


def fresh(mesh, seed):
    setup = train_step.Setup(CONFIG, optimizer, chunk=8, mesh=mesh)
    return setup, train_step.init_state(qwen3.init(jax.random.key(seed), CONFIG), setup)


setup, state = fresh(sharding.make_mesh(8), 0)
state, _ = train_step.update(state, batches, "cispo", setup)
with checkpoints.Checkpoints(sys.argv[1]) as saved:
    saved.save(1, state, {})
    saved.wait()
    for sizes in ((4, 2, 1), (1, 1, 1)):
        mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: np.prod(sizes)])
        setup, template = fresh(mesh, 1)
        restored = saved.restore_latest(template).state
        for a, b, c in zip(*map(jax.tree.leaves, (state, restored, template)), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
            assert b.sharding == c.sharding, (sizes, b.sharding)
"""


def test_restores_onto_another_mesh(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OTHER_MESHES, str(tmp_path)],
        cwd=pathlib.Path(__file__).parents[1],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_state_of_another_shape_is_refused_and_nothing_is_moved(tmp_path):
    save_steps(tmp_path, (1, 2))
    other = make_state()
    other["params"]["w"] = jnp.zeros((3, 3))
    with Checkpoints(tmp_path) as saved:
        with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
            saved.restore_latest(other)
        assert saved.steps == [1, 2]


def test_steps_that_are_not_newer_are_refused(tmp_path):
    save_steps(tmp_path, (4,))
    with Checkpoints(tmp_path) as saved, pytest.raises(CheckpointError, match="already has"):
        saved.save(4, make_state(), EXTRAS)


def test_extras_must_be_json(tmp_path):
    with Checkpoints(tmp_path) as saved, pytest.raises(CheckpointError, match="not JSON"):
        saved.save(1, make_state(), {"cursor": np.int64(3)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_checksums_show_a_change_and_a_swap(dtype):
    x = jnp.arange(24, dtype=dtype).reshape(4, 6)
    expected = checkpoints.checksums({"x": x})
    assert checkpoints.checksums({"x": x.at[2, 3].add(1)}) != expected
    assert checkpoints.checksums({"x": x.at[0].set(x[1]).at[1].set(x[0])}) != expected
    assert checkpoints.checksums({"x": x + 0}) == expected
