"""Causal attention inside the segments of packed rows."""

import jax
import jax.numpy as jnp


def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segment_ids [B, T] -> [B, T, N, H].

    Each token attends to itself and the earlier tokens of its segment. Padding (segment 0) sees
    padding only, so that its rows stay finite. Scores and softmax are float32.
    """
    rows, time, heads, size = q.shape
    kv_heads = k.shape[2]
    grouped = q.reshape(rows, time, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32)
    order = jnp.arange(time)
    visible = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (order[:, None] >= order)
    scores = jnp.where(visible[:, None, None], scores * size**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(q.shape)
