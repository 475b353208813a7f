"""Log-probabilities of given tokens, without ever holding the logits of a whole row.

At V = 151,936 the logits of 32k tokens would take 20 GB. Here they exist for a chunk of places at
a time, in the gradient too. Training takes a chunk's loss and its gradient while the logits are at
hand: a loss is a sum over tokens (losses.py), so nothing has to be computed twice.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from sera_jax.model import qwen3, sharding

Sums = dict[str, jax.Array]


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

    hidden [B, T, D], targets [B, T]. Logits exist for `chunk` places of every row at a time, in
    the backward pass too, which computes them again.
    """
    time = hidden.shape[1]
    matrix = qwen3.head(params).astype(hidden.dtype)

    @jax.checkpoint
    def piece(matrix, states, targets):
        return _Shard(matrix, temperature).logprobs(states, targets)[0]

    pieces = _split((hidden, targets), min(chunk, time))
    _, out = jax.lax.scan(lambda _, xs: (None, piece(matrix, *xs)), None, pieces)
    return _join(out, time)


def loss_gradients(
    params: qwen3.Params,
    hidden: jax.Array,
    batch: Any,
    objective: Callable[[jax.Array, Any], Sums],
    chunk: int,
    *,
    temperature: float = 1.0,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[Sums, jax.Array, jax.Array]:
    """objective(logprobs [B, t], batch [B, t]) over all chunks of time.

    Returns its sums, and the gradients of their "loss" in the output matrix, float32 [V, D], and
    in `hidden` [B, T, D]. `batch` has fields `targets` and `mask`; the objective's results are sums
    over places, to which those outside the mask add nothing. With several chunks a row's trained
    places are moved together, and chunks without any cost nothing. On a mesh the matrix is
    gathered over fsdp once, and its gradient is summed over rows once.
    """
    matrix = qwen3.head(params)
    whole, rows, split = PartitionSpec(None), PartitionSpec(), PartitionSpec(None, None)
    if mesh is not None:
        whole = sharding.spec(("vocab", None), matrix.shape, mesh)
        rows = sharding.spec(("batch", None), batch.targets.shape, mesh)
        split = sharding.spec(("vocab", "embed"), matrix.shape, mesh)
    vocab_axis = whole[0] if whole[0] and mesh.shape[whole[0]] > 1 else None

    def on_one_device(matrix, hidden, batch):
        shard = _Shard(matrix, temperature, vocab_axis)
        sums, d_matrix, d_hidden = _chunked(shard, hidden, batch, objective, chunk)
        for axis in rows[0] if rows else ():
            sums = jax.lax.psum(sums, axis)
            if axis == split[1]:
                d_matrix = jax.lax.psum_scatter(d_matrix, axis, scatter_dimension=0, tiled=True)
            else:
                d_matrix = jax.lax.psum(d_matrix, axis)
        return sums, d_matrix.T, d_hidden

    run = on_one_device
    if mesh is not None:
        run = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(whole, rows, rows),
            out_specs=(PartitionSpec(), split, rows),
            check_vma=False,
        )
    return run(matrix.astype(hidden.dtype), hidden, batch)


def _chunked(shard: "_Shard", hidden, batch, objective, chunk: int):
    """`loss_gradients` for the rows of one device and its part of the vocabulary.

    The matrix's gradient is [D, v]: summed up the other way round it would take a transposed copy
    of the logits' gradient, which is larger.
    """
    time = hidden.shape[1]
    several = chunk < time
    if several:  # a stable sort, so that equal batches give equal sums
        order = jnp.argsort(~batch.mask.astype(bool), axis=1, stable=True)
        hidden, batch = _reorder((hidden, batch), order)

    def work(carry, xs):
        total, d_matrix = carry
        states, part = xs
        sums, d_states, more = shard.gradients(states, part, objective)
        return (jax.tree.map(jnp.add, total, sums), d_matrix + more), d_states

    def step(carry, xs):
        def idle(carry, xs):
            return carry, jnp.zeros_like(xs[0])

        return jax.lax.cond(jnp.any(xs[1].mask), work, idle, carry, xs)

    sums = jax.eval_shape(objective, jnp.zeros(batch.targets.shape), batch)
    zeros = (_zeros(sums), jnp.zeros(shard.matrix.shape[::-1], jnp.float32))
    pieces = _split((hidden, batch), min(chunk, time))
    (sums, d_matrix), d_hidden = jax.lax.scan(step if several else work, zeros, pieces)
    d_hidden = _join(d_hidden, time)
    if several:
        d_hidden = _reorder(d_hidden, jnp.argsort(order, axis=1))
    return sums, d_matrix, d_hidden


@dataclasses.dataclass(frozen=True)
class _Shard:
    """The output matrix [v, D], or the part of the vocabulary that a device of an axis holds."""

    matrix: jax.Array
    temperature: float
    vocab_axis: str | None = None

    def logprobs(self, hidden: jax.Array, targets: jax.Array):
        """hidden [B, t, D], targets [B, t] -> log-probs [B, t], and what their gradient needs.

        Inside, all places lie along one axis: that lets XLA keep one array of logits, which each
        step overwrites.
        """
        shape, hidden, targets = targets.shape, _flat(hidden), targets.reshape(-1)
        product = jnp.einsum("td,vd->tv", hidden, self.matrix, preferred_element_type=jnp.float32)
        logits = product / self.temperature
        if self.vocab_axis is not None:
            targets = targets - self.matrix.shape[0] * jax.lax.axis_index(self.vocab_axis)
        held = (targets >= 0) & (targets < self.matrix.shape[0])
        chosen = jnp.take_along_axis(logits, jnp.where(held, targets, 0)[:, None], axis=1)
        chosen = self._over(jax.lax.psum, jnp.where(held, chosen[:, 0], 0.0))
        largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        largest = self._over(jax.lax.pmax, largest)
        powers = jnp.exp(logits - largest)
        total = self._over(jax.lax.psum, jnp.sum(powers, axis=-1, keepdims=True))
        logprobs = chosen - (jnp.log(total) + largest)[:, 0]
        return logprobs.reshape(shape), (targets, powers, total)

    def gradients(self, hidden: jax.Array, part: Any, objective: Callable):
        """Sums of one chunk, and the gradients of their loss in `hidden` and in the matrix."""
        logprobs, (targets, powers, total) = self.logprobs(hidden, part.targets)
        sums, pull = jax.vjp(lambda values: objective(values, part), logprobs)
        (slope,) = pull(_zeros(sums) | {"loss": jnp.ones(())})
        slope = slope.reshape(-1, 1)
        wanted = jnp.arange(powers.shape[1]) == targets[:, None]
        d_logits = jnp.where(wanted, slope, 0.0) - powers * (slope / total)
        # In the type of the product that it is the gradient of; sums stay float32.
        d_logits = (d_logits / self.temperature).astype(hidden.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        d_hidden = self._over(jax.lax.psum, product("tv,vd->td", d_logits, self.matrix))
        d_hidden = d_hidden.astype(hidden.dtype).reshape(hidden.shape)
        return sums, d_hidden, product("td,tv->dv", _flat(hidden), d_logits)

    def _over(self, reduce: Callable, x: jax.Array) -> jax.Array:
        return x if self.vocab_axis is None else reduce(x, self.vocab_axis)


def _flat(hidden: jax.Array) -> jax.Array:
    return hidden.reshape(-1, hidden.shape[-1])


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _reorder(tree: Any, order: jax.Array) -> Any:
    """Every [B, T, ...] array with the places of its rows in the order [B, T]."""

    def one(x):
        return jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)

    return jax.tree.map(one, tree)


def _split(tree: Any, chunk: int) -> Any:
    """Every [B, T, ...] array as [pieces, B, chunk, ...], zeros at the end."""

    def one(x):
        rows, time, *rest = x.shape
        pieces = -(-time // chunk)
        x = jnp.pad(x, ((0, 0), (0, pieces * chunk - time), *((0, 0) for _ in rest)))
        return x.reshape(rows, pieces, chunk, *rest).swapaxes(0, 1)

    return jax.tree.map(one, tree)


def _join(pieces: jax.Array, time: int) -> jax.Array:
    """[pieces, B, chunk, ...] -> [B, time, ...], the inverse of _split."""
    pieces = pieces.swapaxes(0, 1)
    return pieces.reshape(pieces.shape[0], -1, *pieces.shape[3:])[:, :time]
