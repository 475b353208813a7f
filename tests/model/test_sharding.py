"""Meshes of fake devices give the update of one device."""

import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import PartitionSpec as P

from sera_jax.model import qwen3, sharding

EIGHT_DEVICES = r"""
import dataclasses, re, sys
import jax, numpy as np, optax
sys.path.insert(0, "tests")
from sera_jax import batching, train_step
from sera_jax.model import huggingface, qwen3, sharding
from test_train_step import CONFIG, ragged

batches = batching.pack(ragged(40), row_length=[16, 24], rows=8)
assert len(batches) > 1
config = dataclasses.replace(CONFIG, tie_embeddings=False)
# Plain descent: Adam's first step would divide rounding noise by itself.
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0, momentum=0.9))


def run(mesh):
    setup = train_step.Setup(config, optimizer, chunk=8, mesh=mesh)
    params = qwen3.init(jax.random.key(0), config)
    state = train_step.init_state(params, setup)
    for _ in range(2):
        state, metrics = train_step.update(state, batches, "cispo", setup)
    if mesh is not None:
        wanted = train_step.state_shardings(setup)
        jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim) or 1 / 0, state, wanted)
    return jax.tree.map(np.asarray, (state, metrics))


# Momentum carries the gradients of both steps. The parameters' difference before and after would
# not do: for a norm weight of 1 that moved by 0.004 its rounding alone is 1e-5.
one, worst = run(None), 0.0
for sizes in ((8, 1, 1), (4, 2, 1), (2, 2, 2)):
    many = run(sharding.make_mesh(*sizes))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        worst = max(worst, np.linalg.norm(a - b) / np.linalg.norm(a))

# The head is gathered over fsdp once and its gradient summed over rows once: neither in a loop.
mesh = sharding.make_mesh(2, 2, 2)
setup = train_step.Setup(config, optimizer, chunk=8, mesh=mesh)
state = train_step.init_state(qwen3.init(jax.random.key(0), config), setup)
sums = train_step._zeros(state.params, train_step._metric_names("cispo"), setup)
batch = train_step.place_batch(batches[0], mesh)
program = train_step._accumulate.lower(sums, state.params, batch, "cispo", setup).compile()
loops, entry = program.as_text().split("\nENTRY ")
for kind, shape in (("all-gather", "20,16"), ("reduce-scatter", "8,20")):
    head = re.compile(rf"f32\[{shape}\]\S* {kind}\(.*shard_map")
    assert len(head.findall(entry)) == 1 and not head.findall(loops), kind

read = []
plain = huggingface._Reader.__call__
huggingface._Reader.__call__ = lambda *a: read.append(plain(*a)) or read[-1]
huggingface.export(one[0].params, config, sys.argv[1])
loaded, _ = huggingface.load(sys.argv[1], mesh=mesh)
# Each matrix was read in quarters, one for each place that fsdp x tensor gives it.
quarter = config.vocab_size * config.hidden_size // 4
assert max(part.size for part in read) == quarter
assert sum(part.size == quarter for part in read) == 2 * 4  # embedding and head
huggingface.export(loaded, config, sys.argv[1] + "-again")
again, _ = huggingface.load(sys.argv[1] + "-again")
jax.tree.map(np.testing.assert_array_equal, again, one[0].params)
assert len(loaded["layers"]["q"].sharding.device_set) == 8
print("worst", worst)
"""


def test_the_mesh_uses_all_devices():
    assert sharding.make_mesh(devices=jax.devices()[:1]).shape == {
        "data": 1,
        "fsdp": 1,
        "tensor": 1,
    }
    with pytest.raises(ValueError, match="data=3 x fsdp=1 x tensor=1 does not use up the 1"):
        sharding.make_mesh(3, devices=jax.devices()[:1])


SPLASH = """
import functools
import jax, jax.numpy as jnp, numpy as np
from sera_jax.model import attention, flash, sharding

attention.KERNELS["splash"] = functools.partial(flash.splash, interpret=True)
random = np.random.default_rng(0)
q, k, v = (jnp.asarray(random.normal(size=(4, 128, n, 128)), jnp.float32) for n in (4, 2, 2))
segment_ids = jnp.asarray(np.repeat([[1] * 50 + [2] * 78, [1] * 128], 2, axis=0))


def run(mesh):
    loss = lambda *qkv: jnp.sum(attention.attend(*qkv, segment_ids, mesh) ** 2)
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)


expected = run(None)
attention.best_kernel = lambda q, device: "splash"
for sizes in ((4, 1, 2), (1, 2, 4)):  # the second has more devices than kv heads
    found = run(sharding.make_mesh(*sizes))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), found, expected)
"""


def on_eight_devices(script, *arguments):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_three_meshes_equal_one_device(tmp_path):
    assert float(on_eight_devices(EIGHT_DEVICES, tmp_path / "checkpoint").split()[-1]) < 1e-5


def test_kernels_run_on_each_devices_rows_and_heads():
    on_eight_devices(SPLASH)


class Mesh222:
    shape = {"data": 2, "fsdp": 2, "tensor": 2}


def test_what_the_mesh_does_not_divide_is_replicated():
    for axes, shape, expected in (
        (("embed", "kv_heads", None), (16, 1, 8), P("fsdp", None, None)),
        (("embed", "heads", None), (16, 2, 8), P("fsdp", "tensor", None)),
        (("batch", None), (8, 5), P(("data", "fsdp"), None)),
    ):
        assert sharding.spec(axes, shape, Mesh222) == expected


def test_every_axis_of_a_parameter_is_in_the_table():
    declared = jax.tree.leaves(
        qwen3.parameters(qwen3.Config(8, 8, 8, 1, 1, 1, 8, 1e6)), is_leaf=qwen3.is_parameter
    )
    assert {axis for leaf in declared for axis in leaf.axes} - {None} <= sharding.RULES.keys()
