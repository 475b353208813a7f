"""How the contract tests ask a server, and what the training model says of the same tokens."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
from conftest import SERVED_CONTEXT

from sera_jax.model import huggingface, qwen3
from sera_jax.model.logprobs import token_logprobs


def generate(endpoint, ids, expect=200, body=None, **sampling):
    sampling = {"max_new_tokens": 6, "ignore_eos": True} | sampling
    request = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
    status, answer = endpoint.call("/generate", request | (body or {}))
    assert status == expect, answer
    return answer


def in_background(endpoint, ids, body=None, **sampling):
    """Starts a request -> a function that waits for its answer."""
    box = []
    thread = threading.Thread(
        target=lambda: box.append(generate(endpoint, ids, body=body, **sampling))
    )
    thread.start()

    def wait():
        thread.join(60)
        return box[0]

    return wait


def outputs(answer):
    return [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]]


def trained_logprobs(folder, ids, temperature=1.0):
    """log p of `ids[1:]` as training computes it, at most 1e-4 away from any server's."""
    params, config = huggingface.load(folder)
    hidden, tokens = _forward(params, ids, config)
    targets = jnp.roll(tokens, -1, axis=1)
    scores = token_logprobs(params, hidden, targets, config, temperature=temperature)
    return np.asarray(scores)[0, : len(ids) - 1]


def greedy(folder, prompt, count):
    """The best tokens one after another, by the training model."""
    params, config = huggingface.load(folder)
    ids = list(prompt)
    for _ in range(count):
        hidden, _ = _forward(params, ids, config)
        ids.append(int(qwen3.logits(params, hidden[:, len(ids) - 1])[0].argmax()))
    return ids[len(prompt) :]


@functools.partial(jax.jit, static_argnames="config")
def _compiled(params, tokens, config):
    positions = jnp.arange(tokens.shape[1])[None]
    return qwen3.forward(params, tokens, jnp.ones_like(tokens), positions, config)


def _forward(params, ids, config):
    """-> hidden [1, T, D], tokens [1, T]; of one length, to compile once."""
    tokens = jnp.array([list(ids) + [0] * (SERVED_CONTEXT - len(ids))])
    return _compiled(params, tokens, config), tokens


def check_logprobs(endpoint, prompt, answer, temperature, folder=None):
    tokens = outputs(answer)
    assert tokens == answer["output_ids"]
    wanted = trained_logprobs(folder or endpoint.checkpoint, prompt + tokens, temperature)
    got = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    np.testing.assert_allclose(got, wanted[len(prompt) - 1 :], atol=1e-4)


def prompt_of(seed, size=20):
    return np.random.default_rng(seed).integers(0, 60, size).tolist()
