"""The same step in torch and transformers: python torch_step.py FOLDER full|chunked STEPS.

`chunked` is the usual recipe for long rows: the head under torch.utils.checkpoint, 128 places at a
time.
"""

import measured
import torch
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3ForCausalLM

CHUNK = 128

folder, inputs, kind, steps = measured.arguments()
model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
inputs = {name: torch.from_numpy(value) for name, value in inputs.items()}
tokens = inputs["tokens"].long()


def logprobs(hidden, targets):
    logits = model.lm_head(hidden)
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return chosen - logits.logsumexp(-1)


def loss():
    hidden, targets = model.model(tokens[:, :-1]).last_hidden_state, tokens[:, 1:]
    if kind == "full":
        found = logprobs(hidden, targets)
    else:
        pieces = zip(hidden.split(CHUNK, 1), targets.split(CHUNK, 1), strict=True)
        found = torch.cat([checkpoint(logprobs, *p, use_reentrant=False) for p in pieces], 1)
    ratio = (found.detach() - inputs["behavior_logprobs"]).exp().clip(0.0, 5.0)
    return -(inputs["mask"] * ratio * inputs["advantages"] * found).sum()


WANTED = {
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.7.mlp.down_proj.weight",
}


def step():
    model.zero_grad(set_to_none=True)
    value = loss()
    value.backward()
    return value.detach(), {n: p.grad for n, p in model.named_parameters() if n in WANTED}


measured.report(step, steps)
