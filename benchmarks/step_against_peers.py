"""One training step (loss and gradients) beside tunix and torch + transformers, on one machine.

    python3 -m venv .peers/tunix
    .peers/tunix/bin/pip install -r benchmarks/peers/requirements-tunix.txt
    python3 -m venv .peers/torch
    .peers/torch/bin/pip install -r benchmarks/peers/requirements-torch.txt
    python -m benchmarks.step_against_peers --tunix .peers/tunix/bin/python \\
        --torch .peers/torch/bin/python

A Qwen3 of 8 layers x 512 and V = 151,936 in float32; the loss is CISPO. `full` holds all logits at
once, `chunked` 128 places at a time. Ours keeps of a layer the matrix products (`remat` "dots").
All take turns, each in a process of its own; the median round is printed. CPU seconds are those of
all threads, the peak that of the whole process in its steps, heap left by compilation given back
before. Loss and gradient norms must agree to 1e-4, else the run ends with an error.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).parent
BARS = {"cpu": 0.77, "peak": 0.6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tunix", help="the python of tunix's environment")
    parser.add_argument("--torch", help="the python of torch's environment")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--trained", type=float, default=1.0, help="share of places with a loss")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="a round")
    flags = parser.parse_args()
    pythons = {"ours": sys.executable, "tunix": flags.tunix, "torch": flags.torch}
    contenders = [
        (name, kind)
        for name, kind in (
            ("ours", "full"),
            ("tunix", "full"),
            ("torch", "full"),
            ("ours", "chunked"),
            ("torch", "chunked"),
        )
        if pythons[name]
    ]
    found = {contender: [] for contender in contenders}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder, flags)
        for _ in range(flags.rounds):
            for name, kind in contenders:
                command = [pythons[name], HERE / "peers" / f"{name}_step.py", folder, kind]
                found[name, kind].append(run([*map(str, command), str(flags.steps)]))
    check_equal(found)
    table(found)


def write_checkpoint(folder: str, flags) -> None:
    """Random weights and inputs, the same for all."""
    import jax

    from sera_jax.model import huggingface, qwen3

    config = qwen3.Config(151_936, 512, 1536, 8, 8, 4, 64, 1e6)
    folder = pathlib.Path(folder)
    huggingface.export(qwen3.init(jax.random.key(0), config), config, folder)
    random, shape = np.random.default_rng(0), (flags.rows, flags.length)
    np.savez(
        folder / "inputs.npz",
        tokens=random.integers(0, config.vocab_size, (shape[0], shape[1] + 1), dtype=np.int32),
        mask=random.random(shape) < flags.trained,
        behavior_logprobs=random.uniform(-13, -11, shape).astype(np.float32),
        advantages=random.normal(size=shape).astype(np.float32),
    )


def run(command: list[str]) -> dict:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def check_equal(found: dict) -> None:
    expected = found["ours", "full"][0]
    for (name, kind), rounds in found.items():
        for key, value in expected["norms"].items() | {("loss", expected["loss"])}:
            other = rounds[0]["loss"] if key == "loss" else rounds[0]["norms"][key]
            if abs(other - value) > 1e-4 * abs(value):
                sys.exit(f"{name} {kind}: {key} is {other}, ours is {value}")


def table(found: dict) -> None:
    """Medians, and ours over the better peer of the same kind."""
    print(f"{'':18}{'wall s':>8}{'CPU s':>8}{'peak GB':>9}")
    middle = {}
    for (name, kind), rounds in found.items():
        median = {key: statistics.median(r[key] for r in rounds) for key in ("wall", "cpu", "peak")}
        middle[name, kind] = median
        print(
            f"{name + ' ' + kind:18}{median['wall']:8.2f}{median['cpu']:8.2f}"
            f"{median['peak'] / 1e9:9.2f}"
        )
    for kind in ("full", "chunked"):
        peers = [m for (name, k), m in middle.items() if k == kind and name != "ours"]
        for key, bar in BARS.items() if peers else ():
            ratio = middle["ours", kind][key] / min(peer[key] for peer in peers)
            print(f"{kind}: {key} {ratio:.2f} of the better peer (goal {bar})")


if __name__ == "__main__":
    main()
