"""One step of this project: python ours_step.py FOLDER full|chunked STEPS."""

import functools

import jax
import jax.numpy as jnp
import measured
import numpy as np

from sera_jax import batching, train_step
from sera_jax.model import huggingface

folder, inputs, kind, steps = measured.arguments()
params, config = huggingface.load(folder)
rows, time = inputs["mask"].shape
chunk = time if kind == "full" else 128
setup = train_step.Setup(config, None, chunk=chunk, remat="dots")
ones = np.ones((rows, time), np.int32)
batch = batching.Batch(
    tokens=inputs["tokens"][:, :-1],
    targets=inputs["tokens"][:, 1:],
    segment_ids=ones,
    positions=np.broadcast_to(np.arange(time), ones.shape),
    mask=inputs["mask"],
    behavior_logprobs=inputs["behavior_logprobs"],
    advantages=inputs["advantages"],
    weights=ones.astype(np.float32),
)
batch = jax.tree.map(jnp.asarray, batch)
gradients = jax.jit(functools.partial(train_step.gradients, objective="cispo", setup=setup))


def step():
    found, sums = jax.block_until_ready(gradients(params, batch))
    layers = found["layers"]
    return sums["loss"], {
        "model.embed_tokens.weight": found["embed"],
        "model.norm.weight": found["final_norm"],
        "model.layers.0.self_attn.q_proj.weight": layers["q"][0],
        "model.layers.7.mlp.down_proj.weight": layers["down"][7],
    }


measured.report(step, steps)
