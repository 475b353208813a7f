"""The same step in tunix 0.1.7, which knows whole logits only: tunix_step.py FOLDER full STEPS."""

import jax
import jax.numpy as jnp
import measured
import tunix_model
from flax import nnx
from tunix.rl import common

folder, inputs, _, steps = measured.arguments()
model = tunix_model.load(folder)
graph, state = nnx.split(model)
del model
inputs = jax.tree.map(jnp.asarray, inputs)
positions, causal = tunix_model.causal(*inputs["mask"].shape)


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
