"""Qwen3 as free functions over a pytree of parameters whose layers are stacked on a leading axis.

Shape letters: B rows, T time, D model, F feed-forward, N query heads, K key/value heads, H head
size, V vocabulary, L layers. `parameters(config)` is the one declaration of every parameter:
its shape, the logical axes it is sharded by, and its initial scale.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from sera_jax import prefixes
from sera_jax.model import attention, sharding

Params = dict[str, Any]

# What the backward pass keeps of a layer, by name; the rest is computed again.
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}

# Up to so many layers the loop over them is written out: 15 % faster on a CPU.
UNROLLED = 4


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    max_position_embeddings: int = 4096

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )

    @classmethod
    def from_huggingface(cls, obj: dict[str, Any]) -> "Config":
        """Reads a `config.json`; refuses what this file does not compute, by name."""
        _refuse_unsupported(obj)
        return cls(
            vocab_size=obj["vocab_size"],
            hidden_size=obj["hidden_size"],
            intermediate_size=obj["intermediate_size"],
            num_layers=obj["num_hidden_layers"],
            num_heads=obj["num_attention_heads"],
            num_kv_heads=obj.get("num_key_value_heads") or obj["num_attention_heads"],
            head_dim=obj.get("head_dim") or 128,  # Qwen3's default, not hidden_size / heads
            rope_theta=_rope_theta(obj),
            rms_norm_eps=obj.get("rms_norm_eps", 1e-6),
            tie_embeddings=obj.get("tie_word_embeddings", False),
            max_position_embeddings=obj.get("max_position_embeddings", 32768),
        )


def _refuse_unsupported(obj: dict[str, Any]) -> None:
    rope = obj.get("rope_parameters") or obj.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    wanted = {
        "model_type": (obj.get("model_type", "qwen3"), "qwen3"),
        "hidden_act": (obj.get("hidden_act", "silu"), "silu"),
        "attention_bias": (bool(obj.get("attention_bias")), False),
        "use_sliding_window": (bool(obj.get("use_sliding_window")), False),
        "rope_type": (rope_type, "default"),
    }
    wrong = [f"{key} = {got!r} (only {ok!r})" for key, (got, ok) in wanted.items() if got != ok]
    if wrong:
        raise ValueError(f"this checkpoint's config is not supported: {', '.join(wrong)}")


def _rope_theta(obj: dict[str, Any]) -> float:
    # transformers 5 writes rope_parameters, 4 wrote rope_theta. No default: 1e6 where the
    # checkpoint says 5e6 costs several nats a token and nothing fails.
    theta = (obj.get("rope_parameters") or {}).get("rope_theta", obj.get("rope_theta"))
    if theta is None:
        raise ValueError("config.json has neither rope_parameters.rope_theta nor rope_theta")
    return float(theta)


@dataclasses.dataclass(frozen=True)
class Parameter:
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    scale: float | None = None  # standard deviation at the start; None: ones


def parameters(config: Config) -> Params:
    """The tree of all parameters, as declarations."""
    c, layers = config, (config.num_layers,)
    d, f, h = c.hidden_size, c.intermediate_size, c.head_dim
    into = d**-0.5
    # Each layer adds twice to the residual stream; its sum should not grow with depth.
    out = (2 * c.num_layers) ** -0.5

    def layer(shape, axes, scale=None):
        return Parameter(layers + shape, ("layers", *axes), scale)

    tree = {
        "embed": Parameter((c.vocab_size, d), ("vocab", "embed"), 0.02),
        "layers": {
            "attention_norm": layer((d,), (None,)),
            "q": layer((d, c.num_heads, h), ("embed", "heads", None), into),
            "k": layer((d, c.num_kv_heads, h), ("embed", "kv_heads", None), into),
            "v": layer((d, c.num_kv_heads, h), ("embed", "kv_heads", None), into),
            "q_norm": layer((h,), (None,)),
            "k_norm": layer((h,), (None,)),
            "o": layer(
                (c.num_heads, h, d), ("heads", None, "embed"), out * (c.num_heads * h) ** -0.5
            ),
            "mlp_norm": layer((d,), (None,)),
            "gate": layer((d, f), ("embed", "mlp"), into),
            "up": layer((d, f), ("embed", "mlp"), into),
            "down": layer((f, d), ("mlp", "embed"), out * f**-0.5),
        },
        "final_norm": Parameter((d,), (None,)),
    }
    if not c.tie_embeddings:
        tree["head"] = Parameter((c.vocab_size, d), ("vocab", "embed"), 0.02)
    return tree


def is_parameter(node: Any) -> bool:
    return isinstance(node, Parameter)


@functools.partial(jax.jit, static_argnames=("config",))
def init(key: jax.Array, config: Config) -> Params:
    """Random float32 parameters."""
    leaves, structure = jax.tree.flatten(parameters(config), is_leaf=is_parameter)
    keys = jax.random.split(key, len(leaves))

    def draw(key, leaf):
        if leaf.scale is None:
            return jnp.ones(leaf.shape)
        return leaf.scale * jax.random.normal(key, leaf.shape)

    return structure.unflatten([draw(k, leaf) for k, leaf in zip(keys, leaves, strict=True)])


def forward(
    params: Params,
    tokens: jax.Array,
    segment_ids: jax.Array,
    positions: jax.Array,
    config: Config,
    *,
    dtype: Any = jnp.float32,
    remat: str = "none",
    mesh: jax.sharding.Mesh | None = None,
    shared: prefixes.Shared | None = None,
) -> jax.Array:
    """Hidden states [B, T, D] after the final norm, of packed rows [B, T].

    A token sees itself and earlier tokens of its own segment; segment 0 is padding. Matrix
    products run in `dtype`; norms, rotations and the softmax are always float32. With `shared`,
    attention has a layout of its own, in which segments may repeat tokens of the row.
    """
    constrain = functools.partial(sharding.constrain, mesh=mesh, axes=("batch", None, None))
    rope = rope_table(positions, config)

    def one_layer(x, layer):
        q, k, v = attention_inputs(layer, x, rope, config)
        if shared is None:
            attended = attention.attend(q, k, v, segment_ids, mesh)
        else:
            q, k, v = (_at(x, shared.places) for x in (q, k, v))
            attended = _at(attention.attend(q, k, v, shared.segment_ids, mesh), shared.homes)
        x = x + attention_output(layer, attended)
        x = x + mlp(layer, x, config)
        return constrain(x), None

    if remat != "none":
        one_layer = jax.checkpoint(one_layer, policy=REMAT[remat])
    # Gathered whole along the width first: rows split over the same axis could not be looked up.
    table = sharding.constrain(params["embed"], mesh, ("vocab", None))
    x = constrain(embed({"embed": table}, tokens, dtype))
    unroll = config.num_layers if config.num_layers <= UNROLLED else 1
    x, _ = jax.lax.scan(one_layer, x, params["layers"], unroll=unroll)
    return final_norm(params, x, config)


def _at(x: jax.Array, places: jax.Array) -> jax.Array:
    """x [B, T, N, H] at places [B, A] of each row -> [B, A, N, H]."""
    return jnp.take_along_axis(x, places[..., None, None], axis=1)


def embed(params: Params, tokens: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    """Token ids [...] -> [..., D]."""
    # Looked up before the cast: the gradient of a frequent token is a sum of thousands, which
    # bfloat16 would not hold.
    return params["embed"][tokens].astype(dtype)


def rope_table(positions: jax.Array, config: Config) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine [..., 1, H/2] of every position, shared by all layers and heads."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def attention_inputs(
    layer: Params, x: jax.Array, rope: tuple[jax.Array, jax.Array], config: Config
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [B, T, D] -> rotated queries [B, T, N, H], rotated keys and plain values [B, T, K, H]."""
    x = rms_norm(x, layer["attention_norm"], config.rms_norm_eps)
    q, k, v = (
        jnp.einsum("btd,dnh->btnh", x, layer[name].astype(x.dtype)) for name in ("q", "k", "v")
    )
    q = rotate(rms_norm(q, layer["q_norm"], config.rms_norm_eps), rope)
    k = rotate(rms_norm(k, layer["k_norm"], config.rms_norm_eps), rope)
    return q, k, v


def attention_output(layer: Params, attended: jax.Array) -> jax.Array:
    """[B, T, N, H] -> what the attention half adds to the residual stream, [B, T, D]."""
    return jnp.einsum("btnh,nhd->btd", attended, layer["o"].astype(attended.dtype))


def mlp(layer: Params, x: jax.Array, config: Config) -> jax.Array:
    """What the feed-forward half adds to the residual stream, its norm included."""
    x = rms_norm(x, layer["mlp_norm"], config.rms_norm_eps)
    gate, up = x @ layer["gate"].astype(x.dtype), x @ layer["up"].astype(x.dtype)
    return (jax.nn.silu(gate) * up) @ layer["down"].astype(x.dtype)


def final_norm(params: Params, x: jax.Array, config: Config) -> jax.Array:
    return rms_norm(x, params["final_norm"], config.rms_norm_eps)


def head(params: Params) -> jax.Array:
    """The output matrix [V, D]: its own, or the embedding where the two are tied."""
    return params.get("head", params["embed"])


def logits(params: Params, hidden: jax.Array) -> jax.Array:
    """Float32 logits [..., V]; for decoding. Training uses logprobs.token_logprobs."""
    matrix = head(params).astype(hidden.dtype)
    return jnp.einsum("...d,vd->...v", hidden, matrix, preferred_element_type=jnp.float32)


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Over the last axis, in float32; the result has the type of `x`."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)


def rotate(x: jax.Array, rope: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotary embedding of [..., heads, H], pairing feature i with i + H/2."""
    cos, sin = rope
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
