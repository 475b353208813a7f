"""Log-probabilities of given tokens, without ever holding the logits of a whole row."""

import functools

import jax
import jax.numpy as jnp

from sera_jax.model import qwen3


def token_logprobs(
    params: qwen3.Params,
    hidden: jax.Array,
    targets: jax.Array,
    config: qwen3.Config,
    chunk: int = 512,
    *,
    temperature: float = 1.0,
) -> jax.Array:
    """log p(targets[b, t] | hidden[b, t]) at the sampling temperature, float32 [B, T].

    hidden [B, T, D], targets [B, T]. Logits exist for `chunk` positions of a row at a time, in
    the backward pass too, which computes them again: at V = 151,936 the logits of 32k tokens
    would take 20 GB.
    """
    rows, time, size = hidden.shape
    chunk = min(chunk, time)
    pieces = -(-time // chunk)
    tail = pieces * chunk - time
    hidden = jnp.pad(hidden, ((0, 0), (0, tail), (0, 0))).reshape(rows, pieces, chunk, size)
    padded = jnp.pad(targets, ((0, 0), (0, tail))).reshape(rows, pieces, chunk)
    matrix = qwen3.head(params).astype(hidden.dtype)
    piece = jax.checkpoint(functools.partial(_piece, temperature=temperature))
    _, out = jax.lax.scan(
        lambda _, xs: (None, piece(matrix, *xs)),
        None,
        (hidden.swapaxes(0, 1), padded.swapaxes(0, 1)),
    )
    return out.swapaxes(0, 1).reshape(rows, pieces * chunk)[:, :time]


def _piece(matrix: jax.Array, hidden: jax.Array, targets: jax.Array, temperature: float):
    logits = jnp.einsum("bcd,vd->bcv", hidden, matrix, preferred_element_type=jnp.float32)
    logits = logits / temperature
    # A masked sum in place of a gather: it stays local where the vocabulary is sharded.
    wanted = jnp.arange(logits.shape[-1]) == targets[..., None]
    chosen = jnp.sum(jnp.where(wanted, logits, 0.0), axis=-1)
    return chosen - jax.nn.logsumexp(logits, axis=-1)
