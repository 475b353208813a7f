import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax.model import attention, qwen3

CONFIG = qwen3.Config(64, 32, 48, 2, 4, 2, 8, 1e6)


@pytest.fixture(scope="module")
def params():
    params = qwen3.init(jax.random.key(0), CONFIG)
    # Norm weights of one would hide a norm that is left out or swapped.
    keys = iter(jax.random.split(jax.random.key(1), 20))
    return jax.tree.map(lambda p: p + 0.1 * jax.random.normal(next(keys), p.shape), params)


def row(*lengths, total):
    """tokens, segment ids and positions of one packed row."""
    random = np.random.default_rng(sum(lengths))
    segments, positions = np.zeros(total, np.int32), np.zeros(total, np.int32)
    start = 0
    for number, length in enumerate(lengths, 1):
        segments[start : start + length] = number
        positions[start : start + length] = np.arange(length)
        start += length
    return random.integers(1, 64, total), segments, positions


def run(params, tokens, segments, positions, **options):
    return qwen3.forward(params, tokens[None], segments[None], positions[None], CONFIG, **options)[
        0
    ]


def test_declared_shapes_are_the_initial_ones():
    untied = dataclasses.replace(CONFIG, tie_embeddings=False)
    declared = jax.tree.map(lambda p: p.shape, qwen3.parameters(untied), is_leaf=qwen3.is_parameter)
    drawn = qwen3.init(jax.random.key(0), untied)
    assert jax.tree.map(lambda x: x.shape, drawn) == declared
    assert "head" not in qwen3.parameters(CONFIG)


def test_packing_changes_nothing(params):
    tokens, segments, positions = row(7, 12, 4, total=30)
    packed = run(params, tokens, segments, positions)
    chex.assert_tree_all_finite(packed)
    for start, stop in ((0, 7), (7, 19), (19, 23)):
        size = stop - start
        alone = run(params, tokens[start:stop], np.ones(size, np.int32), np.arange(size))
        np.testing.assert_allclose(packed[start:stop], alone, atol=2e-5)


def test_no_token_sees_a_later_one(params):
    tokens, segments, positions = row(16, total=16)
    changed = tokens.copy()
    changed[9] = (changed[9] + 1) % 64
    before, after = (run(params, t, segments, positions) for t in (tokens, changed))
    np.testing.assert_allclose(before[:9], after[:9], atol=1e-6)
    assert np.abs(before[9:] - after[9:]).max(axis=1).min() > 1e-4


def test_attention_equals_a_loop():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(2, 9, n, 8)).astype(np.float32) for n in (4, 2, 2))
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0], [1] * 9])
    out = attention.attend(q, k, v, segments)
    for b, t, n in np.ndindex(2, 9, 4):
        seen = [s for s in range(t + 1) if segments[b, s] == segments[b, t]]
        scores = k[b, seen, n // 2] @ q[b, t, n] / np.sqrt(8)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ v[b, seen, n // 2]
        np.testing.assert_allclose(out[b, t, n], expected, atol=1e-5)


def test_rope_turns_by_relative_position():
    config = dataclasses.replace(CONFIG, rope_theta=100.0)
    x = jnp.ones((1, 6, 1, 8))
    turned = qwen3.rotate(x, qwen3.rope_table(jnp.arange(6)[None], config))[0, :, 0]
    np.testing.assert_allclose(turned[0], x[0, 0, 0])
    np.testing.assert_allclose(turned[1] @ turned[3], turned[2] @ turned[4], rtol=1e-5)
    # Feature 1 pairs with 5 at frequency base ** (-1 / 4).
    angle = 3 * 100.0**-0.25
    np.testing.assert_allclose(turned[3, 1], np.cos(angle) - np.sin(angle), rtol=1e-5)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_remat_leaves_gradients_alone(params, remat):
    inputs = row(5, 6, total=12)

    def loss(params, remat):
        return jnp.sum(run(params, *inputs, remat=remat) ** 2)

    expected = jax.grad(loss)(params, "none")
    chex.assert_trees_all_close(jax.grad(loss)(params, remat), expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_stays_near_float32(params):
    inputs = row(20, total=20)
    narrow = run(params, *inputs, dtype=jnp.bfloat16)
    assert narrow.dtype == jnp.bfloat16
    error = np.abs(narrow.astype(jnp.float32) - run(params, *inputs))
    assert error.max() < 0.2 and error.mean() < 0.03


def test_heads_must_divide():
    with pytest.raises(ValueError, match="num_heads 4"):
        dataclasses.replace(CONFIG, num_kv_heads=3)
