"""The same step in tunix 0.1.7, which knows whole logits only: tunix_step.py FOLDER full STEPS."""

import json

import jax
import jax.numpy as jnp
import measured
from flax import nnx
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params
from tunix.rl import common

folder, inputs, _, steps = measured.arguments()
described = json.loads((folder / "config.json").read_text())
config = qwen3.ModelConfig(
    num_layers=described["num_hidden_layers"],
    vocab_size=described["vocab_size"],
    embed_dim=described["hidden_size"],
    hidden_dim=described["intermediate_size"],
    num_heads=described["num_attention_heads"],
    head_dim=described["head_dim"],
    num_kv_heads=described["num_key_value_heads"],
    rope_theta=described["rope_theta"],
    norm_eps=described["rms_norm_eps"],
    use_tied_embedding=described["tie_word_embeddings"],
)
model = qwen3_params.create_model_from_safe_tensors(str(folder), config, dtype=jnp.float32)
graph, state = nnx.split(model)
del model
inputs = jax.tree.map(jnp.asarray, inputs)
rows, time = inputs["mask"].shape
positions = jnp.broadcast_to(jnp.arange(time), (rows, time))
causal = jnp.broadcast_to(jnp.tril(jnp.ones((time, time), bool)), (rows, time, time))


def loss(state):
    logits, _ = nnx.merge(graph, state)(inputs["tokens"][:, :-1], positions, None, causal)
    logprobs = common.selective_log_softmax(logits, inputs["tokens"][:, 1:])
    gap = jax.lax.stop_gradient(logprobs) - inputs["behavior_logprobs"]
    ratio = jnp.clip(jnp.exp(gap), 0.0, 5.0)
    return -jnp.sum(inputs["mask"] * ratio * inputs["advantages"] * logprobs)


gradients = jax.jit(jax.value_and_grad(loss))


def step():
    value, found = jax.block_until_ready(gradients(state))
    found = nnx.to_pure_dict(found)
    return value, {
        "model.embed_tokens.weight": found["embedder"]["input_embedding"],
        "model.norm.weight": found["final_norm"]["w"],
        "model.layers.0.self_attn.q_proj.weight": found["layers"][0]["attn"]["q_proj"]["w"],
        "model.layers.7.mlp.down_proj.weight": found["layers"][7]["mlp"]["down_proj"]["kernel"],
    }


measured.report(step, steps)
