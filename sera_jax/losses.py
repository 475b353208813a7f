"""Losses as sums: arrays in, (loss_sum, token_count, metrics) out; no model, no config.

The caller adds the three over micro-batches and devices and divides once by the total token
count, so that packing, padding, accumulation and sharding leave the gradient unchanged
(METHOD 4). Metrics are sums over trained tokens, to be divided by the same count. All array
arguments are [B, T]; `mask` is true on trained tokens.
"""

import chex
import jax
import jax.numpy as jnp

Loss = tuple[jax.Array, jax.Array, dict[str, jax.Array]]


def cispo(
    logprobs: chex.Array,
    behavior_logprobs: chex.Array,
    advantages: chex.Array,
    weights: chex.Array,
    mask: chex.Array,
    clip_low: float = 0.0,
    clip_high: float = 5.0,
) -> Loss:
    """CISPO: REINFORCE under a clipped importance ratio that carries no gradient (METHOD 4).

    `clip_low` and `clip_high` bound the ratio itself; they are no offsets from 1.
    """
    logprobs, gap, mask = _checked(logprobs, behavior_logprobs, advantages, weights, mask)
    ratio = jnp.exp(gap)
    # Without the stop_gradient the derivative is ratio * (1 + log p): its sign flips where
    # log p < -1.
    clipped = jax.lax.stop_gradient(jnp.clip(ratio, clip_low, clip_high))
    loss = -mask * clipped * weights * advantages * logprobs
    outside = (ratio < clip_low) | (ratio > clip_high)
    return loss.sum(), mask.sum(), _ratio_metrics(gap, outside, mask)


def grpo(
    logprobs: chex.Array,
    behavior_logprobs: chex.Array,
    advantages: chex.Array,
    weights: chex.Array,
    mask: chex.Array,
    clip_low: float = 0.8,
    clip_high: float = 1.2,
) -> Loss:
    """GRPO's surrogate, min(r A, clip(r) A), as a token sum (arXiv 2402.03300; no KL term).

    The bounds are absolute here too. Group normalisation is the advantages' business.
    """
    _, gap, mask = _checked(logprobs, behavior_logprobs, advantages, weights, mask)
    ratio = jnp.exp(gap)
    bounded = jnp.clip(ratio, clip_low, clip_high)
    loss = -mask * weights * jnp.minimum(ratio * advantages, bounded * advantages)
    # Only where the bound is the smaller term does it stop the gradient.
    active = bounded * advantages < ratio * advantages
    return loss.sum(), mask.sum(), _ratio_metrics(gap, active, mask)


def cross_entropy(logprobs: chex.Array, mask: chex.Array) -> Loss:
    """Negative log-likelihood of the trained tokens, for the supervised warm start."""
    chex.assert_rank([logprobs, mask], 2)
    chex.assert_equal_shape([logprobs, mask])
    chex.assert_type(logprobs, float)
    trained = mask.astype(bool)
    return -jnp.where(trained, logprobs, 0.0).sum(), trained.sum(dtype=jnp.float32), {}


def _checked(logprobs, behavior_logprobs, advantages, weights, mask):
    """Log-probs and their gap to the behavior policy's, zero where untrained; a float mask."""
    arrays = [logprobs, behavior_logprobs, advantages, weights, mask]
    chex.assert_rank(arrays, 2)
    chex.assert_equal_shape(arrays)
    chex.assert_type([logprobs, behavior_logprobs], float)
    trained = mask.astype(bool)
    # Padding may hold anything, infinities included: 0 * inf would poison the sum.
    gap = jnp.where(trained, logprobs - behavior_logprobs, 0.0)
    return jnp.where(trained, logprobs, 0.0), gap, trained.astype(jnp.float32)


def _ratio_metrics(gap: jax.Array, clipped: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    # The gap is what trainer and server disagree by on fresh samples; its tail shows a fault
    # (a stale prefix, other weights) long before its mean does.
    gap = jax.lax.stop_gradient(gap)
    return {
        "ratio": jnp.sum(jnp.exp(gap) * mask),
        "clip_fraction": jnp.sum(clipped * mask),
        "logprob_gap": jnp.sum(jnp.abs(gap) * mask),
        "logprob_gap_above_0.1": jnp.sum((jnp.abs(gap) > 0.1) * mask),
    }
