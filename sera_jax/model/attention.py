"""Causal attention inside the segments of packed rows."""

import jax
import jax.numpy as jnp

# Finite, so that a masked score minus a row's maximum is never inf - inf.
MASKED = -1e30
# Queries are taken in this many blocks, each against the keys up to its own end: nearly half of
# the causal square is never computed. Small rows keep blocks of SMALLEST, large ones few blocks.
BLOCKS = 8
SMALLEST = 64


def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segment_ids [B, T] -> [B, T, N, H].

    Each token attends to itself and the earlier tokens of its segment. Padding (segment 0) sees
    padding only, so that its rows stay finite. Scores and softmax are float32.
    """
    rows, time, heads, size = q.shape
    groups = heads // k.shape[2]
    # Heads before time: plain batched matrix products, three times faster on a CPU.
    q = (q * size**-0.5).reshape(rows, time, -1, groups, size).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    block = max(SMALLEST, -(-time // BLOCKS))
    out = []
    for start in range(0, time, block):
        stop = min(start + block, time)
        visible = segment_ids[:, start:stop, None] == segment_ids[:, None, :stop]
        visible &= jnp.arange(start, stop)[:, None] >= jnp.arange(stop)
        queries = q[:, :, :, start:stop]
        out.append(_attend_block(queries, k[:, :, :stop], v[:, :, :stop], visible))
    out = jnp.concatenate(out, axis=3)
    return out.transpose(0, 3, 1, 2, 4).reshape(rows, time, heads, size)


def _attend_block(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array) -> jax.Array:
    """Scaled q [B, K, N/K, t, H], k and v [B, K, s, H], visible [B, t, s] -> like q."""
    rows, kv_heads, groups, time, size = q.shape
    stacked = q.reshape(rows, kv_heads, groups * time, size)
    scores = jnp.einsum("bkth,bksh->bkts", stacked, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, kv_heads, groups, time, -1)
    scores += jnp.where(visible, 0.0, MASKED)[:, None, None]
    # Divided by the sum after the product with v: fewer passes over the scores. The maximum
    # cancels, so no gradient goes through it.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights.astype(v.dtype).reshape(rows, kv_heads, groups * time, -1)
    out = jnp.einsum("bkts,bksh->bkth", weights, v, preferred_element_type=jnp.float32)
    return (out.reshape(q.shape) / total).astype(v.dtype)
