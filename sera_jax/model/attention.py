"""Causal attention inside the segments of packed rows, by the fastest means a device has."""

import jax
import jax.numpy as jnp

from sera_jax.model import flash, sharding

# Finite, so that a masked score minus a row's maximum is never inf - inf.
MASKED = -1e30
# Queries are taken in this many blocks, each against the keys up to its own end: nearly half of
# the causal square is never computed. Small rows keep blocks of SMALLEST, large ones few blocks.
BLOCKS = 8
SMALLEST = 64


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    mesh: jax.sharding.Mesh | None = None,
) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segment_ids [B, T] -> [B, T, N, H].

    Each token attends to itself and the earlier tokens of its segment; what padding (segment 0)
    gets is finite and means nothing. Scores and softmax are float32.
    """
    kernel = KERNELS[best_kernel(q, device_of(mesh))]
    if mesh is None or kernel is plain:
        return kernel(q, k, v, segment_ids)
    if k.shape[2] % mesh.shape["tensor"]:  # heads of a device must find their own keys
        k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    # The compiler cannot split a kernel; rows and heads are independent, so we can.
    places = [sharding.spec(("batch", None, "heads", None), x.shape, mesh) for x in (q, k, v)]
    rows = sharding.spec(("batch", None), segment_ids.shape, mesh)
    mapped = jax.shard_map(
        kernel, mesh=mesh, in_specs=(*places, rows), out_specs=places[0], check_vma=False
    )
    return mapped(q, k, v, segment_ids)


def device_of(mesh: jax.sharding.Mesh | None) -> jax.Device:
    return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def best_kernel(q: jax.Array, device: jax.Device) -> str:
    """Name of the kernel for queries of this shape and type on this device."""
    time, size = q.shape[1], q.shape[3]
    half = q.dtype in (jnp.bfloat16, jnp.float16)
    if device.platform == "tpu" and time % flash.TILES[-1] == 0 and size % 128 == 0:
        return "splash"
    if device.platform == "gpu" and half and size % 8 == 0 and size <= 256:
        # Packed rows want Hopper; AMD's devices name no such number.
        capability = str(getattr(device, "compute_capability", ""))
        if capability.replace(".", "").isdigit() and float(capability) >= 9:
            return "cudnn"
    return "plain"


def plain(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Matrix products, on any device; holds the scores of one block of queries at a time."""
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


KERNELS = {"plain": plain, "cudnn": flash.cudnn, "splash": flash.splash}
