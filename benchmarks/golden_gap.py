"""Gap to log-probs recorded from transformers + torch, of this project and of tunix 0.1.7.

    python -m benchmarks.golden_gap FOLDER [--tunix .peers/tunix/bin/python]

FOLDER holds checkpoints, each with an expected.npz: tokens [B, T], lengths [B], logprobs [B, T].
How to make tunix's environment: benchmarks/step_against_peers.py. Its attention calls apply_rope
without the base of its own config, hence always with the function's default, 1e6.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tunix", help="the python of tunix's environment")
    flags = parser.parse_args()
    print(f"{'checkpoint':32}{'RoPE base':>10}{'':>8}{'mean gap':>11}{'largest':>10} nats a token")
    for folder in sorted(path.parent for path in flags.folder.glob("*/expected.npz")):
        described = json.loads((folder / "config.json").read_text())
        base = described.get("rope_theta") or described["rope_parameters"]["rope_theta"]
        found = {"ours": ours(folder)}
        if flags.tunix:
            found["tunix"] = tunix(flags.tunix, folder)
        expected = np.load(folder / "expected.npz")
        real = np.arange(expected["tokens"].shape[1]) < expected["lengths"][:, None]
        real[:, 0] = False
        for name, logprobs in found.items():
            gap = np.abs(logprobs - expected["logprobs"])[real]
            print(f"{folder.name:32}{base:10.0e}{name:>8}{gap.mean():11.2e}{gap.max():10.2e}")


def ours(folder: pathlib.Path) -> np.ndarray:
    """log p of token t given those before it, [B, T]; 0 at t = 0."""
    import jax.numpy as jnp

    from sera_jax.model import huggingface, qwen3
    from sera_jax.model.logprobs import token_logprobs

    params, config = huggingface.load(folder)
    tokens = np.load(folder / "expected.npz")["tokens"]
    ones = jnp.ones((len(tokens), tokens.shape[1] - 1), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(ones.shape[1]), ones.shape)
    hidden = qwen3.forward(params, tokens[:, :-1], ones, positions, config)
    found = token_logprobs(params, hidden, tokens[:, 1:], config)
    return np.pad(np.asarray(found), ((0, 0), (1, 0)))


def tunix(python: str, folder: pathlib.Path) -> np.ndarray:
    command = [python, str(HERE / "peers" / "tunix_logprobs.py"), str(folder)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return np.array(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
