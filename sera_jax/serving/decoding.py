"""The device half of the engine: a KV cache and the jitted steps that read and write it.

Shape letters as in model/qwen3.py, and: B slots, R rows of a prefill, T tokens of a row, S steps
of one decode call, C positions of a cache block. A slot's context is cut into blocks that are
separate arrays, so that a call works on the first few of them only: nothing is sliced (a slice of
an operand is a copy), and short conversations are cheap. Keys lie as [B, K, H, C]: the product
with the queries then runs along C, several times faster on a CPU than along H.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sera_jax.model import qwen3

Layers = list[dict[str, jax.Array]]


class Cache(NamedTuple):
    """keys[layer][block] is [B, K, H, C], values[layer][block] is [B, K, C, H]."""

    keys: list[list[jax.Array]]
    values: list[list[jax.Array]]


class Weights(NamedTuple):
    """Parameters with the layers unstacked, and what is outside the layers."""

    layers: Layers
    outer: dict[str, jax.Array]


class Sampling(NamedTuple):
    """How the rows of a call sample."""

    temperature: jax.Array  # [B] float32; 0 is greedy
    seed: jax.Array  # [B] int32


def unstack(params: qwen3.Params, config: qwen3.Config, dtype: Any = jnp.float32) -> Weights:
    """Layers as a list: the steps unroll them, since slicing a stacked weight copies it."""
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    layers = [
        {name: leaf[index] for name, leaf in cast["layers"].items()}
        for index in range(config.num_layers)
    ]
    return Weights(layers, {name: leaf for name, leaf in cast.items() if name != "layers"})


def empty_cache(config: qwen3.Config, slots: int, blocks: int, width: int, dtype) -> Cache:
    k, h = config.num_kv_heads, config.head_dim

    def arrays(shape):
        return [[jnp.zeros(shape, dtype) for _ in range(blocks)] for _ in range(config.num_layers)]

    return Cache(arrays((slots, k, h, width)), arrays((slots, k, width, h)))


def sample(logits: jax.Array, sampling: Sampling, positions: jax.Array):
    """Tokens [B] and their log-probs [B] from float32 logits [B, V].

    The draw depends on the request's seed and the token's position alone, not on the slot or on
    who else is in the batch. The log-prob is of logits / temperature, of the raw logits at 0.
    """
    greedy = sampling.temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, sampling.temperature)[:, None]

    def noise(seed, position):
        key = jax.random.fold_in(jax.random.key(seed), position)
        return jax.random.gumbel(key, logits.shape[-1:])

    noisy = scaled + jnp.where(greedy[:, None], 0.0, jax.vmap(noise)(sampling.seed, positions))
    # Without the barrier XLA draws the noise inside of the reduction, number by number; and its
    # argmax is not vectorised, while max and min are. Together four times slower on a CPU.
    noisy = jax.lax.optimization_barrier(noisy)
    size = logits.shape[-1]
    best = noisy >= noisy.max(axis=-1, keepdims=True)
    tokens = jnp.where(best, jnp.arange(size, dtype=jnp.int32), size - 1).min(axis=-1)
    return tokens, _logprob(scaled, tokens)


def _logprob(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _attend(q, keys, values, visible) -> jax.Array:
    """q [B, T, N, H] over pieces of context -> [B, T, N, H]; a piece is keys [B, K, H, C], values
    [B, K, C, H] and the mask [B, T, C] of what each query sees."""
    rows, time, heads, size = q.shape
    kv_heads = keys[0].shape[1]
    grouped = q.reshape(rows, time, kv_heads, heads // kv_heads, size) * size**-0.5
    flat = grouped.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, size)  # [B, K, G * T, H]
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = jnp.concatenate([product("bkqh,bkhc->bkqc", flat, k) for k in keys], axis=-1)
    mask = jnp.concatenate(visible, axis=-1)
    mask = jnp.tile(mask, (1, heads // kv_heads, 1))[:, None]
    scores = jnp.where(mask, scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights.astype(values[0].dtype)
    attended, begin = 0.0, 0
    for v in values:
        piece = weights[..., begin : begin + v.shape[2]]
        attended += product("bkqc,bkch->bkqh", piece, v)
        begin += v.shape[2]
    attended = (attended / total).reshape(rows, kv_heads, -1, time, size)
    return attended.transpose(0, 3, 1, 2, 4).reshape(q.shape).astype(q.dtype)


def _write(cache: Cache, index: int, k, v, slots, positions, valid) -> None:
    """Puts k and v [R, T, K, H] of layer `index` at (slot, position); invalid ones are dropped."""
    slot = jnp.broadcast_to(slots[:, None], positions.shape).reshape(-1)
    new_k, new_v = k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:])
    keys, values = cache.keys[index], cache.values[index]
    width = keys[0].shape[-1]
    for block in range(len(keys)):
        place = positions.reshape(-1) - block * width
        inside = valid.reshape(-1) & (place >= 0) & (place < width)
        place = jnp.where(inside, place, width)  # one past the end: dropped
        keys[block] = keys[block].at[slot, :, :, place].set(new_k, mode="drop")
        values[block] = values[block].at[slot, :, place, :].set(new_v, mode="drop")


def _first_blocks(cache: Cache, blocks: int) -> tuple[Cache, Cache]:
    first = Cache(*([layer[:blocks] for layer in part] for part in cache))
    return first, Cache(*([layer[blocks:] for layer in part] for part in cache))


def _join(first: Cache, rest: Cache) -> Cache:
    return Cache(
        *([a + b for a, b in zip(*parts, strict=True)] for parts in zip(first, rest, strict=True))
    )


@functools.partial(
    jax.jit, static_argnames=("config", "blocks", "score"), donate_argnames=("cache",)
)
def prefill(weights, cache, tokens, rows, temperature, *, config, blocks, score=False):
    """Runs rows of prompt tokens and samples the token after each row.

    tokens [R, T + 1]: T to run, and the successor of the last (for scores alone). rows [R, 4]
    holds slot, position of the first token, number of tokens, seed. A slot may have several rows
    in one call: a layer writes all keys before it reads any.
    -> cache, tokens [R], log-probs [R], and with `score` log p of each token's successor [R, T]
    at temperature 1
    """
    tokens, successors = tokens[:, :-1], tokens[:, 1:]
    slots, starts, counts, seeds = rows.T
    offsets = jnp.arange(tokens.shape[1])
    positions = starts[:, None] + offsets
    valid = offsets < counts[:, None]
    cache, rest = _first_blocks(cache, blocks)
    x = qwen3.embed(weights.outer, tokens, weights.outer["embed"].dtype)
    rope = qwen3.rope_table(positions, config)
    width = cache.keys[0][0].shape[-1]
    columns = [jnp.arange(width) + block * width for block in range(blocks)]
    visible = [c <= positions[:, :, None] for c in columns]
    for index, layer in enumerate(weights.layers):
        q, k, v = qwen3.attention_inputs(layer, x, rope, config)
        _write(cache, index, k, v, slots, positions, valid)
        keys = [block[slots] for block in cache.keys[index]]
        values = [block[slots] for block in cache.values[index]]
        x = x + qwen3.attention_output(layer, _attend(q, keys, values, visible))
        x = x + qwen3.mlp(layer, x, config)
    hidden = qwen3.final_norm(weights.outer, x, config)
    last = jnp.take_along_axis(hidden, jnp.maximum(counts - 1, 0)[:, None, None], axis=1)[:, 0]
    sampled = sample(
        qwen3.logits(weights.outer, last), Sampling(temperature, seeds), starts + counts
    )
    scores = None
    if score:
        scores = _logprob(qwen3.logits(weights.outer, hidden), successors)
    return _join(cache, rest), *sampled, scores


class _Carry(NamedTuple):
    step: jax.Array
    tokens: jax.Array  # [B] fed to this step
    running: jax.Array  # [B]
    recent: Cache  # the steps' own keys and values: one block of S positions a layer
    out_tokens: jax.Array  # [S, B], -1 where the slot did not run
    out_logprobs: jax.Array


@functools.partial(
    jax.jit, static_argnames=("config", "blocks", "steps"), donate_argnames=("cache",)
)
def decode(weights, cache, state, temperature, slots=None, *, config, blocks, steps):
    """Up to `steps` tokens for every active slot -> cache, tokens [B, S] and log-probs [B, S].

    `slots` names the slots of the rows B; none: all of them in order. Few slots are copied out
    first, which is much cheaper than to decode all when most rest.
    state [B, 4 + stops] holds the token to feed, its position, the seed, how many tokens are
    wanted (0: the slot rests) and stop tokens (-1: none). The cache stays unchanged while the
    steps run, so that nothing copies it: their keys go to a small buffer, merged at the end.
    The call ends early when a quarter of its slots has finished, to let others take their place.
    """
    fed, starts, seeds, wanted = state[:, :4].T
    stops = state[:, 4:]
    cache, rest = _first_blocks(cache, blocks)
    count, width = fed.shape[0], cache.keys[0][0].shape[-1]
    seen = cache if slots is None else jax.tree.map(lambda leaf: leaf[slots], cache)
    columns = [jnp.arange(width) + block * width for block in range(blocks)]
    visible = [(c < starts[:, None])[:, None, :] for c in columns]
    started = (wanted > 0).sum()

    def step(carry: _Carry) -> _Carry:
        position = starts + carry.step
        own = jnp.broadcast_to(jnp.arange(steps) <= carry.step, (count, 1, steps))
        hidden, recent = _decode_layers(
            weights, seen, carry, position[:, None], [*visible, own], config
        )
        logits = qwen3.logits(weights.outer, hidden)
        tokens, logprobs = sample(logits, Sampling(temperature, seeds), position + 1)
        done = (tokens[:, None] == stops).any(axis=-1) | (carry.step + 1 >= wanted)
        return _Carry(
            carry.step + 1,
            tokens,
            carry.running & ~done,
            recent,
            carry.out_tokens.at[carry.step].set(jnp.where(carry.running, tokens, -1)),
            carry.out_logprobs.at[carry.step].set(logprobs),
        )

    def go_on(carry: _Carry) -> jax.Array:
        finished = started - carry.running.sum()
        return (carry.step < steps) & (4 * finished < started)

    recent = empty_cache(config, count, 1, steps, weights.outer["embed"].dtype)
    shape = (steps, count)
    carry = _Carry(
        0, fed, wanted > 0, recent, jnp.full(shape, -1, jnp.int32), jnp.zeros(shape, jnp.float32)
    )
    carry = jax.lax.while_loop(go_on, step, carry)
    positions = starts[:, None] + jnp.arange(steps)
    valid = carry.out_tokens.T >= 0
    slots = jnp.arange(count) if slots is None else slots
    for index in range(config.num_layers):
        k = carry.recent.keys[index][0].transpose(0, 3, 1, 2)
        v = carry.recent.values[index][0].transpose(0, 2, 1, 3)
        _write(cache, index, k, v, slots, positions, valid)
    return _join(cache, rest), carry.out_tokens.T, carry.out_logprobs.T


def _decode_layers(weights, cache, carry, positions, visible, config):
    """One token of every slot through the layers -> hidden [B, D], the recent keys and values."""
    x = qwen3.embed(weights.outer, carry.tokens[:, None], weights.outer["embed"].dtype)
    rope = qwen3.rope_table(positions, config)
    recent = Cache([], [])
    for index, layer in enumerate(weights.layers):
        q, k, v = qwen3.attention_inputs(layer, x, rope, config)
        keys, values = carry.recent.keys[index][0], carry.recent.values[index][0]
        put = jax.lax.dynamic_update_slice
        keys = put(keys, k.transpose(0, 2, 3, 1), (0, 0, 0, carry.step))
        values = put(values, v.transpose(0, 2, 1, 3), (0, 0, carry.step, 0))
        attended = _attend(q, [*cache.keys[index], keys], [*cache.values[index], values], visible)
        x = x + qwen3.attention_output(layer, attended)
        x = x + qwen3.mlp(layer, x, config)
        recent.keys.append([keys])
        recent.values.append([values])
    return qwen3.final_norm(weights.outer, x[:, 0], config), recent


@functools.partial(jax.jit, static_argnames=("blocks",))
def read_rows(cache, rows, *, blocks):
    """The first blocks of rows [R]."""
    first, _ = _first_blocks(cache, blocks)
    return jax.tree.map(lambda leaf: leaf[rows], first)


@functools.partial(jax.jit, donate_argnames=("cache",))
def write_rows(cache, new, rows):
    """Puts what read_rows gave into rows [R]; those past the last row are dropped.

    A call of its own: reading and writing in one makes XLA copy the whole cache.
    """
    first, rest = _first_blocks(cache, len(new.keys[0]))
    first = jax.tree.map(lambda leaf, part: leaf.at[rows].set(part, mode="drop"), first, new)
    return _join(first, rest)
