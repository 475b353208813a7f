import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax.model import qwen3
from sera_jax.model.logprobs import token_logprobs

CONFIG = qwen3.Config(50, 16, 16, 1, 2, 1, 8, 1e6)


def inputs(config, time=23):
    params = qwen3.init(jax.random.key(0), config)
    hidden = 20 * jax.random.normal(jax.random.key(1), (3, time, 16))
    return params, hidden, jax.random.randint(jax.random.key(2), (3, time), 0, 50)


def plain(params, hidden, targets, temperature=1.0):
    out = jax.nn.log_softmax(qwen3.logits(params, hidden) / temperature)
    return jnp.take_along_axis(out, targets[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("chunk", [1, 8, 23, 64])
@pytest.mark.parametrize("tied", [True, False])
def test_any_chunk_equals_log_softmax_with_its_gradients(chunk, tied):
    config = dataclasses.replace(CONFIG, tie_embeddings=tied)
    params, hidden, targets = inputs(config)

    def chunked(params, hidden):
        return token_logprobs(params, hidden, targets, config, chunk, temperature=0.7)

    np.testing.assert_allclose(
        chunked(params, hidden), plain(params, hidden, targets, 0.7), rtol=1e-4, atol=1e-4
    )
    ours = jax.grad(lambda *a: chunked(*a).sum(), (0, 1))(params, hidden)
    theirs = jax.grad(lambda *a: plain(*a, targets, 0.7).sum(), (0, 1))(params, hidden)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, theirs)


def test_bfloat16_hidden_states_give_float32_logprobs():
    params, hidden, targets = inputs(CONFIG)
    out = token_logprobs(params, hidden.astype(jnp.bfloat16), targets, CONFIG, 8)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, plain(params, hidden, targets), atol=0.1)


def test_logits_of_a_whole_row_never_exist():
    """The largest value of the compiled gradient is far below [B, T, V]."""
    config = dataclasses.replace(CONFIG, vocab_size=5000)
    params = qwen3.init(jax.random.key(0), config)
    hidden, targets = jnp.ones((2, 512, 16)), jnp.ones((2, 512), jnp.int32)

    def loss(params, hidden):
        return token_logprobs(params, hidden, targets, config, 16).sum()

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, hidden).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * 512 * 5000 * 4 / 4
