import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sera_jax import batching, train_step
from sera_jax.model import qwen3

CONFIG = qwen3.Config(40, 16, 24, 2, 2, 1, 8, 1e6)


def ragged(count=9, seed=0):
    """Sequences of 3 to 14 tokens with uneven numbers of trained ones, at depths 0 to 2."""
    random = np.random.default_rng(seed)

    def one(length):
        return batching.Sequence(
            random.integers(0, 40, length, dtype=np.int32),
            random.random(length) < random.uniform(0.2, 1.0),
            random.uniform(-6, -2, length).astype(np.float32),
            np.full(length, random.normal(), np.float32),
            int(random.integers(3)),
        )

    return [one(int(n)) for n in random.integers(3, 15, count)]


def sgd(**options):
    """Plain gradient descent of rate 1 without clipping: the update is the gradient."""
    return train_step.Setup(CONFIG, optax.sgd(1.0), chunk=8, **options)


SGD = sgd()


def fresh(setup):
    return train_step.init_state(qwen3.init(jax.random.key(0), CONFIG), setup)


def gradient(batches, objective="cispo", setup=SGD):
    state = fresh(setup)
    before = jax.tree.map(np.array, state.params)
    after, metrics = train_step.update(state, batches, objective, setup)
    return jax.tree.map(lambda a, b: a - b, before, after.params), metrics


def direct(sequences):
    """METHOD 4's loss, one sequence a row and all logits at once."""
    kept = [s for s in sequences if s.trained]
    depths = [s.depth for s in kept]
    weight = [len(kept) / (len(set(depths)) * depths.count(depth)) for depth in depths]
    full = [[np.pad(getattr(s, name), (0, 14 - len(s.tokens))) for s in kept] for name in FIELDS]
    tokens, mask, behavior, advantages = map(np.stack, full)
    positions = np.broadcast_to(np.arange(13), mask[:, 1:].shape)

    def loss(params):
        hidden = qwen3.forward(params, tokens[:, :-1], positions * 0 + 1, positions, CONFIG)
        out = jax.nn.log_softmax(qwen3.logits(params, hidden))
        logprobs = jnp.take_along_axis(out, tokens[:, 1:, None], axis=-1)[..., 0]
        ratio = jnp.exp(jax.lax.stop_gradient(logprobs) - behavior[:, 1:])
        terms = jnp.clip(ratio, 0, 5) * advantages[:, 1:] * logprobs * mask[:, 1:]
        return -jnp.sum(np.array(weight)[:, None] * terms) / mask[:, 1:].sum()

    return jax.jit(jax.value_and_grad(loss))(qwen3.init(jax.random.key(0), CONFIG))


FIELDS = ("tokens", "mask", "behavior_logprobs", "advantages")
LAYOUTS = [((14,), 2), ((24,), 3), ((8, 16), 1)]


def test_any_packing_gives_the_gradient_of_the_formula():
    sequences = ragged()
    loss, expected = direct(sequences)
    for lengths, rows in LAYOUTS:
        batches = batching.pack(sequences, row_length=lengths, rows=rows)
        ours, metrics = gradient(batches)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        chex.assert_trees_all_close(ours, expected, rtol=1e-3, atol=1e-6)


def test_shared_prefixes_give_the_gradient_of_the_plain_layout():
    random = np.random.default_rng(0)
    starts = [random.integers(0, 40, n, dtype=np.int32) for n in (9, 7)]
    sequences = []
    for number, sequence in enumerate(ragged(8)):
        start = starts[number % 2]
        padded = [np.r_[np.zeros(len(start)), getattr(sequence, name)] for name in FIELDS[1:3]]
        sequences.append(
            batching.Sequence(
                np.r_[start, sequence.tokens],
                padded[0].astype(bool),
                padded[1].astype(np.float32),
                np.full(len(padded[0]), sequence.advantages[0]),
                sequence.depth,
            )
        )
    plain, shared = (
        batching.pack(sequences, row_length=[48], rows=2, share_prefixes=share)
        for share in (False, True)
    )
    assert sum((b.segment_ids > 0).sum() for b in plain) > 1.5 * sum(
        (b.segment_ids > 0).sum() for b in shared
    )
    (expected, one), (ours, other) = gradient(plain), gradient(shared)
    np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(b) + 1e-7


def test_an_empty_micro_batch_changes_nothing():
    batches = batching.pack(ragged(), row_length=[16], rows=2)
    empty = jax.tree.map(np.zeros_like, batches[0])
    expected, _ = gradient(batches)
    chex.assert_trees_all_close(gradient([empty, *batches])[0], expected, rtol=1e-5, atol=1e-8)


def test_idle_sequences_left_out_leave_the_step_as_it_is():
    sequences = ragged()
    zeros = np.zeros_like(sequences[0].advantages)
    sequences[0] = dataclasses.replace(sequences[0], advantages=zeros)
    setup, steps = sgd(), []
    for keep, idle in ((True, 0), (False, sequences[0].trained)):
        batches = batching.pack(sequences, row_length=[16], rows=2, keep_idle=keep)
        state = train_step.init_state(qwen3.init(jax.random.key(0), CONFIG), setup)
        state, metrics = train_step.update(state, batches, "cispo", setup, idle)
        steps.append((state.params, metrics["tokens"], metrics["gradient_norm"]))
    chex.assert_trees_all_close(steps[0], steps[1], rtol=1e-5, atol=1e-7)


def test_bfloat16_and_remat_stay_near():
    batches = batching.pack(ragged(), row_length=[16], rows=8)
    expected, _ = gradient(batches)
    norm = optax.tree.norm(expected)
    for options, bound in (({"remat": "full"}, 1e-5), ({"dtype": "bfloat16"}, 0.03)):
        ours, _ = gradient(batches, setup=sgd(**options))
        error = optax.tree.norm(jax.tree.map(lambda a, b: a - b, ours, expected))
        assert error / norm < bound
        assert jax.tree.leaves(ours)[0].dtype == jnp.float32


def test_one_compilation_per_row_length_whatever_the_batch():
    setup = sgd()
    state, before = fresh(setup), train_step._accumulate._cache_size()
    shapes = set()
    for seed in range(5):
        batches = batching.pack(ragged(10 + 7 * seed, seed), row_length=[10, 16], rows=2)
        shapes |= {batch.tokens.shape for batch in batches}
        state, _ = train_step.update(state, batches, "cispo", setup)
    assert shapes == {(2, 10), (2, 16)}
    assert train_step._accumulate._cache_size() - before == 2


def test_the_old_state_is_given_up():
    state = fresh(SGD)
    batches = batching.pack(ragged(), row_length=[16], rows=8)
    new, _ = train_step.update(state, batches, "cispo", SGD)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    assert new.step == 1


def test_metrics_are_token_means():
    sequences = ragged()
    batches = batching.pack(sequences, row_length=[16], rows=2)
    _, metrics = gradient(batches)
    tokens = sum(s.trained for s in sequences)
    assert metrics["tokens"] == tokens
    assert 0 < metrics["logprob_gap"] < 10
    setup = train_step.Setup(CONFIG, train_step.make_optimizer(1e-2))
    state, first = train_step.update(fresh(setup), batches, "cross_entropy", setup)
    for _ in range(20):
        state, last = train_step.update(state, batches, "cross_entropy", setup)
    np.testing.assert_allclose(first["loss"], np.log(40), rtol=0.05)
    assert last["loss"] < first["loss"] - 0.5


def test_on_policy_scores_have_ratio_one():
    batch = train_step.place_batch(batching.pack(ragged(), row_length=[16], rows=8)[0], None)
    state = fresh(SGD)
    own = dataclasses.replace(batch, behavior_logprobs=train_step.score(state.params, batch, SGD))
    _, metrics = train_step.update(state, [own], "grpo", SGD)
    np.testing.assert_allclose(metrics["ratio"], 1.0, rtol=1e-5)
    assert metrics["clip_fraction"] == 0


def test_no_batches_is_an_error():
    with pytest.raises(ValueError, match="no micro-batch"):
        train_step.update(fresh(SGD), [], "cispo", SGD)


def rates(steps, **options):
    """What each step takes off a parameter under a constant gradient; AdamW's unit is the rate."""
    optimizer = train_step.make_optimizer(1.0, weight_decay=0.0, clip_norm=1e9, **options)
    params, out = jnp.zeros(1), []
    state = optimizer.init(params)
    for _ in range(steps):
        updates, state = optimizer.update(jnp.ones(1), state, params)
        out.append(-float(updates[0]))
    return out


def test_schedules():
    np.testing.assert_allclose(rates(3), [1, 1, 1], rtol=1e-4)
    np.testing.assert_allclose(rates(4, warmup_steps=3), [0.25, 0.5, 0.75, 1], rtol=1e-4)
    cosine = rates(5, warmup_steps=1, cosine_steps=5)
    expected = [0.5, *(0.5 + 0.5 * np.cos(np.pi * np.arange(4) / 4))]
    np.testing.assert_allclose(cosine, expected, rtol=1e-4)


def test_adamw_by_hand():
    optimizer = train_step.make_optimizer(0.1, weight_decay=0.5, clip_norm=1.0)
    params = jnp.array([2.0, -1.0])
    state = optimizer.init(params)
    updates, _ = optimizer.update(jnp.array([30.0, 40.0]), state, params)
    # First step: m / sqrt(v) = 1 whatever the gradient; decay adds 0.5 times the parameter.
    np.testing.assert_allclose(updates, [-0.1 * (1 + 1.0), -0.1 * (1 - 0.5)], rtol=1e-5)
    clipped = optax.tree.get(optimizer.update(jnp.array([30.0, 40.0]), state, params)[1], "mu")
    np.testing.assert_allclose(clipped, [0.1 * 0.6, 0.1 * 0.8], rtol=1e-5)
