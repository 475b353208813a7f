"""A checkpoint folder as tunix's model."""

import json
import pathlib

import jax.numpy as jnp
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params


def load(folder: pathlib.Path) -> qwen3.Qwen3:
    described = json.loads((folder / "config.json").read_text())
    base = described.get("rope_theta") or described["rope_parameters"]["rope_theta"]
    config = qwen3.ModelConfig(
        num_layers=described["num_hidden_layers"],
        vocab_size=described["vocab_size"],
        embed_dim=described["hidden_size"],
        hidden_dim=described["intermediate_size"],
        num_heads=described["num_attention_heads"],
        head_dim=described["head_dim"],
        num_kv_heads=described["num_key_value_heads"],
        rope_theta=int(base),
        norm_eps=described["rms_norm_eps"],
        use_tied_embedding=described["tie_word_embeddings"],
    )
    return params.create_model_from_safe_tensors(str(folder), config, dtype=jnp.float32)


def causal(rows: int, time: int):
    """Positions [B, T] and the mask [B, T, T]."""
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), bool)), (rows, time, time))
    return jnp.broadcast_to(jnp.arange(time), (rows, time)), mask
