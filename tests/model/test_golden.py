"""Agreement with recorded log-probs and gradient norms of transformers + PyTorch, in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax.model import huggingface, qwen3
from sera_jax.model.logprobs import token_logprobs


def golden_folders(recordings):
    folders = sorted((recordings / "qwen3_golden").iterdir())
    if not folders:
        pytest.skip("no golden checkpoints; runs where the recordings hold them")
    return folders


def shifted(params, config, tokens, lengths):
    """[B, T] log p of token t given those before it; 0 at t = 0 and past the length."""
    time = tokens.shape[1]
    real = jnp.arange(time) < lengths[:, None]
    positions = jnp.broadcast_to(jnp.arange(time), tokens.shape)
    hidden = qwen3.forward(params, tokens, real.astype(jnp.int32), positions, config)
    out = token_logprobs(params, hidden, jnp.roll(tokens, -1, axis=1), config, chunk=40)
    return jnp.where(real & (positions > 0), jnp.roll(out, 1, axis=1), 0.0)


def test_logprobs_and_gradient_norms_match_the_recordings(recordings):
    for folder in golden_folders(recordings):
        expected = np.load(folder / "expected.npz")
        params, config = huggingface.load(folder)
        tokens, lengths = jnp.asarray(expected["tokens"]), jnp.asarray(expected["lengths"])
        out = shifted(params, config, tokens, lengths)
        np.testing.assert_allclose(out, expected["logprobs"], rtol=0, atol=1e-4)

        total = lambda p: shifted(p, config, tokens, lengths).sum()  # noqa: B023, E731
        gradients = dict(huggingface.named_tensors(jax.grad(total)(params), config))
        for name, norm in zip(expected["grad_names"], expected["grad_norms"], strict=True):
            ours = np.linalg.norm(gradients[str(name)].astype(np.float64))
            np.testing.assert_allclose(ours, norm, rtol=1e-3, err_msg=f"{folder.name} {name}")


def test_golden_checkpoints_survive_export(recordings, tmp_path):
    for folder in golden_folders(recordings):
        params, config = huggingface.load(folder)
        huggingface.export(params, config, tmp_path / folder.name, max_shard_bytes=100_000)
        again, same = huggingface.load(tmp_path / folder.name)
        assert same == config
        jax.tree.map(np.testing.assert_array_equal, again, params)
