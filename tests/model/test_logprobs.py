import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax import batching, train_step
from sera_jax.model import qwen3
from sera_jax.model.logprobs import loss_gradients, token_logprobs

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


def half_trained(targets):
    """A batch of these targets with the mask on half the places, in one row on none."""
    mask = jax.random.bernoulli(jax.random.key(3), 0.5, targets.shape).at[1].set(False)
    ones = jnp.ones(targets.shape)
    return batching.Batch(*(targets,) * 4, mask, -ones, 2 * ones, ones)


def squares(logprobs, batch):
    """A loss whose slope depends on the log-prob."""
    masked = jnp.where(batch.mask, logprobs, 0.0)
    return {"loss": jnp.sum(batch.advantages * masked**2), "tokens": jnp.sum(batch.mask)}


@pytest.mark.parametrize("chunk", [1, 8, 23])
def test_loss_gradients_are_those_of_the_formula(chunk):
    params, hidden, targets = inputs(CONFIG)
    batch = half_trained(targets)

    def direct(params, hidden):
        return squares(plain(params, hidden, targets, 0.7), batch)["loss"]

    sums, d_matrix, d_hidden = loss_gradients(
        params, hidden, batch, squares, chunk, temperature=0.7
    )
    loss, expected = jax.value_and_grad(direct, (0, 1))(params, hidden)
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-5)
    assert sums["tokens"] == batch.mask.sum()
    np.testing.assert_allclose(d_matrix, expected[0]["embed"], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(d_hidden, expected[1], rtol=1e-4, atol=1e-3)


def test_places_without_loss_cost_no_head():
    """With one trained place only its own chunk is computed: the others hold what is no number."""
    params, hidden, targets = inputs(CONFIG)
    batch = half_trained(targets)
    lone = dataclasses.replace(batch, mask=jnp.zeros(targets.shape, bool).at[:, 20].set(True))
    poisoned = jnp.full_like(hidden, jnp.nan).at[:, 20].set(hidden[:, 20])
    sums, d_matrix, d_hidden = loss_gradients(params, poisoned, lone, squares, 1)
    assert np.isfinite(sums["loss"]) and np.isfinite(d_matrix).all()
    assert np.flatnonzero(np.abs(d_hidden).sum((0, 2))).tolist() == [20]


def shapes(jaxpr):
    """Shapes of all values of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield from (out.aval.shape for out in equation.outvars)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


def test_no_value_of_a_step_is_time_by_vocabulary():
    time, vocabulary = 512, 5000
    config = dataclasses.replace(CONFIG, vocab_size=vocabulary)
    setup = train_step.Setup(config, None, chunk=64)
    batch = half_trained(jnp.ones((2, time), jnp.int32))
    params = jax.eval_shape(lambda key: qwen3.init(key, config), jax.random.key(0))
    whole = jax.make_jaxpr(lambda p: train_step.gradients(p, batch, "cispo", setup))(params)
    score = jax.make_jaxpr(lambda p: train_step.score(p, batch, setup))(params)
    for jaxpr in (whole.jaxpr, score.jaxpr):
        found = [s for s in shapes(jaxpr) if vocabulary in s and math.prod(s) >= time * vocabulary]
        assert found == []
        # The walk does reach the chunks.
        assert (2 * 64, vocabulary) in set(shapes(jaxpr))


def test_a_step_without_chunks_holds_one_array_of_logits():
    time, vocabulary = 256, 20_000
    config = dataclasses.replace(CONFIG, vocab_size=vocabulary)
    setup = train_step.Setup(config, None, chunk=time)
    batch = half_trained(jnp.ones((1, time), jnp.int32))
    params = jax.eval_shape(lambda key: qwen3.init(key, config), jax.random.key(0))
    step = jax.jit(lambda p: train_step.gradients(p, batch, "cispo", setup))
    temporaries = step.lower(params).compile().memory_analysis().temp_size_in_bytes
    assert 1.0 <= temporaries / (4 * time * vocabulary) < 1.5
