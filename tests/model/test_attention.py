"""Every kernel against plain matrix products; kernels of absent devices interpreted or lowered."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax.model import attention, flash, qwen3

CONFIG = qwen3.Config(64, 32, 48, 1, 2, 1, 128, 1e6)


@pytest.fixture(scope="module")
def inputs():
    """q, k, v of two rows of 256 places: two segments and padding, and one segment that fills."""
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.normal(size=(2, 256, n, 128)), jnp.float32) for n in (4, 2, 2))
    segment_ids = np.zeros((2, 256), np.int32)
    segment_ids[0, :100], segment_ids[0, 100:180], segment_ids[1] = 1, 2, 1
    return q, k, v, jnp.asarray(segment_ids)


def squares(kernel, segment_ids):
    real = (segment_ids > 0)[..., None, None]
    return lambda *qkv: jnp.sum(jnp.where(real, kernel(*qkv, segment_ids), 0.0) ** 2)


def test_splash_equals_plain_forward_and_backward(inputs):
    *qkv, segment_ids = inputs
    splash = functools.partial(flash.splash, interpret=True)
    ours, theirs = (
        jax.jit(jax.value_and_grad(squares(kernel, segment_ids), (0, 1, 2)))(*qkv)
        for kernel in (splash, attention.plain)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_cudnn_is_told_where_segments_lie(inputs):
    lengths, starts = flash.segments(inputs[3])
    assert lengths[:, :3].tolist() == [[100, 80, -1], [256, -1, -1]]
    assert starts[:, :3].tolist() == [[0, 100, -1], [0, -1, -1]]
    assert lengths.shape == (2, 64) and starts.shape == (2, 65)


@dataclasses.dataclass
class Device:
    platform: str
    compute_capability: str = ""


HOPPER, AMPERE, AMD = Device("gpu", "9.0"), Device("gpu", "8.0"), Device("gpu", "gfx942")


@pytest.mark.parametrize(
    ("device", "time", "size", "dtype", "kernel"),
    [
        (Device("cpu"), 256, 128, jnp.bfloat16, "plain"),
        (Device("tpu"), 256, 128, jnp.bfloat16, "splash"),
        (Device("tpu"), 200, 128, jnp.bfloat16, "plain"),
        (Device("tpu"), 256, 64, jnp.bfloat16, "plain"),
        (HOPPER, 200, 128, jnp.bfloat16, "cudnn"),
        (HOPPER, 200, 128, jnp.float32, "plain"),
        (AMPERE, 200, 128, jnp.bfloat16, "plain"),
        (AMD, 200, 128, jnp.bfloat16, "plain"),
    ],
)
def test_the_device_decides(device, time, size, dtype, kernel):
    q = jax.ShapeDtypeStruct((1, time, 2, size), dtype)
    assert attention.best_kernel(q, device) == kernel


def lowered(platform, monkeypatch, device):
    """The model's gradient as a program for a platform that is not here."""
    monkeypatch.setattr(attention, "device_of", lambda mesh: device)
    params = qwen3.init(jax.random.key(0), CONFIG)
    tokens = jnp.ones((1, 256), jnp.int32)

    def loss(params):
        out = qwen3.forward(params, tokens, tokens, tokens, CONFIG, dtype=jnp.bfloat16)
        return jnp.sum(out.astype(jnp.float32))

    unchecked = [
        jax.export.DisabledSafetyCheck.custom_call(f"__cudnn$fmhaSoftmax{way}")
        for way in ("", "Backward")
    ]
    exported = jax.export.export(
        jax.jit(jax.grad(loss)), platforms=[platform], disabled_checks=unchecked
    )
    return exported(params).mlir_module()


def test_the_model_lowers_for_tpus_with_splash(monkeypatch):
    program = lowered("tpu", monkeypatch, Device("tpu"))
    # Forward, and backward for queries and for keys and values.
    assert program.count("tpu_custom_call") >= 3


def test_the_model_lowers_for_gpus_with_cudnn(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo as fused

    # What only a machine with cuDNN can answer.
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91_100)
    monkeypatch.setattr(fused, "check_compute_capability", lambda wanted: True)
    program = lowered("cuda", monkeypatch, HOPPER)
    assert "@__cudnn$fmhaSoftmax(" in program and "@__cudnn$fmhaSoftmaxBackward(" in program
    assert "PADDING_CAUSAL" in program
