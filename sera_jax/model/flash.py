"""Fused attention kernels of accelerators, for packed rows; attention.py chooses between them.

Nothing of a device is imported until its kernel is asked for.
"""

import jax
import jax.numpy as jnp

from sera_jax.batching import MAX_SEGMENTS

# Splash works in square tiles; the largest that divides the row is taken.
TILES = (1024, 512, 256, 128)


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """cuDNN's packed layout: each segment is a sequence of its own, other tokens cost nothing.

    q [B, T, N, H], k and v [B, T, K, H] in bfloat16 or float16, segment_ids [B, T] as
    batching.pack numbers them -> [B, T, N, H], zero on padding. Hopper or newer. The public
    jax.nn.dot_product_attention would want a [T, T] bias per row for segments; the offsets that
    cuDNN itself takes are one level below it.
    """
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    # cuDNN leaves padding unwritten, in gradients too: both are cut off here.
    real = (segment_ids > 0)[..., None, None]
    q, k, v = (jnp.where(real, x, 0) for x in (q, k, v))
    # JAX before the middle of 2026 scales the offsets of keys by the number of query heads, which
    # reads other tokens' keys where there are fewer kv heads. With as many, all versions agree.
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    lengths, starts = segments(segment_ids)
    out = dot_product_attention(
        q,
        k,
        v,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=starts,
        kv_offsets=starts,
        scale=q.shape[-1] ** -0.5,
        mask_type=MaskType.PADDING_CAUSAL,
    )
    return jnp.where(real, out, 0)


def segments(segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Lengths [B, M] and first places [B, M + 1] of a row's segments, -1 where there is none."""
    numbers = jnp.arange(1, MAX_SEGMENTS + 1)
    lengths = jnp.sum(segment_ids[:, None, :] == numbers[:, None], axis=-1, dtype=jnp.int32)
    starts = jnp.cumsum(lengths, axis=-1, dtype=jnp.int32) - lengths
    absent = lengths == 0
    starts = jnp.pad(jnp.where(absent, -1, starts), ((0, 0), (0, 1)), constant_values=-1)
    return jnp.where(absent, -1, lengths), starts


def splash(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, interpret: bool = False
) -> jax.Array:
    """The TPU's splash kernel; shapes as in `cudnn`, T a multiple of the smallest tile.

    `interpret` runs the kernel's own program on any device, slowly.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernels,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    time, heads, size = q.shape[1:]
    tile = next(tile for tile in TILES if time % tile == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    attention = kernels.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((time, time))] * heads),
        block_sizes=kernels.BlockSizes(**{f"block_{name}": tile for name in names}),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    q, k, v = (x.swapaxes(1, 2) for x in (q * size**-0.5, k, v))
    out = jax.vmap(attention)(q, k, v, kernels.SegmentIds(segment_ids, segment_ids))
    return out.swapaxes(1, 2).astype(v.dtype)
