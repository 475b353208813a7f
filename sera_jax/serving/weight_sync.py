"""Puts the trainer's weights on the policy servers, by way of a checkpoint on disk."""

import pathlib
import shutil

import jax

from sera_jax.model import huggingface, qwen3
from sera_jax.serving.client import PolicyClient


async def sync(
    client: PolicyClient,
    params: qwen3.Params,
    config: qwen3.Config,
    folder: str | pathlib.Path,
    *,
    version: str,
    tokenizer_dir: str | pathlib.Path | None = None,
    dtype: str = "float32",
) -> pathlib.Path:
    """Exports, updates every server, checks the version, deletes older exports -> the new one.

    `folder` must be visible to the servers. The export is complete before it gets its name. Every
    process of a multi-host run calls this; the first one talks to the servers.
    """
    # Absolute: a server has a working directory of its own.
    path = pathlib.Path(folder).resolve() / f"version-{version}"
    huggingface.export(params, config, path, tokenizer_dir, dtype)
    if jax.process_index() == 0:
        await client.update_weights(str(path), version)
        for other in path.parent.glob("version-*"):
            if other != path:
                shutil.rmtree(other, ignore_errors=True)
    return path
