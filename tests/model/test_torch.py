"""Exports, read by transformers and computed by torch; skipped where torch is not installed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax.model import huggingface, qwen3
from sera_jax.model.logprobs import token_logprobs

torch = pytest.importorskip("torch", reason="no torch; runs where it is installed")

CONFIG = qwen3.Config(96, 32, 48, 2, 4, 2, 8, 5e6)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_gives_the_logprobs_of_an_export(tied, dtype, tmp_path):
    from transformers import AutoModelForCausalLM

    config = dataclasses.replace(CONFIG, tie_embeddings=tied)
    params = qwen3.init(jax.random.key(0), config)
    huggingface.export(params, config, tmp_path / "m", dtype=dtype, max_shard_bytes=10_000)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    theirs, told = AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values())
    ours, _ = huggingface.load(tmp_path / "m")
    tokens = np.random.default_rng(0).integers(0, 96, (2, 41))
    with torch.no_grad():
        scores = theirs(torch.from_numpy(tokens[:, :-1])).logits.log_softmax(-1)
    expected = np.take_along_axis(scores.numpy(), tokens[:, 1:, None], axis=-1)[..., 0]
    ones = jnp.ones((2, 40), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(40), ones.shape)
    hidden = qwen3.forward(ours, tokens[:, :-1], ones, positions, config)
    found = token_logprobs(ours, hidden, tokens[:, 1:], config, 16)
    np.testing.assert_allclose(found, expected, atol=2e-5)
