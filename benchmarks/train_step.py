"""Tokens a second of a full update of the embedded default's model.

    JAX_PLATFORMS=cpu python benchmarks/train_step.py --rows 8,16 --lengths 512 --devices 1,2

Layouts take turns, round after round, so that other load on the machine hits all alike; the
median and the best round are printed. Tokens counted are all places of the rows, all filled.
"""

import argparse
import itertools
import os
import statistics
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="8,16")
    parser.add_argument("--lengths", default="512")
    parser.add_argument("--devices", default="1,2")
    parser.add_argument("--remat", default="none")
    parser.add_argument("--chunk", default="512")
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--batches", type=int, default=1, help="micro-batches an update")
    parser.add_argument("--rounds", type=int, default=8)
    flags = parser.parse_args()
    split = {name: getattr(flags, name).split(",") for name in ("rows", "lengths", "devices")}
    split |= {"remat": flags.remat.split(","), "chunk": flags.chunk.split(",")}
    most = max(map(int, split["devices"]))
    # Read when JAX starts its backend, hence before the import in `prepare`.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={most}"
    )
    runs = {
        layout: prepare(*map(int, layout[:3]), layout[3], int(layout[4]), flags)
        for layout in itertools.product(*split.values())
    }
    times = {layout: [] for layout in runs}
    for _ in range(flags.rounds):
        for layout, run in runs.items():
            begin = time.perf_counter()
            run()
            times[layout].append(time.perf_counter() - begin)
    for layout, seconds in times.items():
        tokens = int(layout[0]) * int(layout[1]) * flags.batches
        median, best = tokens / statistics.median(seconds), tokens / min(seconds)
        named = "  ".join(f"{k} {v:>4}" for k, v in zip(split, layout, strict=True))
        print(f"{named}   median {median:7.0f}  best {best:7.0f} tokens/s")


def prepare(rows: int, length: int, devices: int, remat: str, chunk: int, flags):
    """A function that runs one update and waits for it; compiled and warm."""
    import jax
    import numpy as np

    from sera_jax import batching, train_step
    from sera_jax.model import qwen3, sharding

    config = qwen3.Config(512, 128, 256, 3, 2, flags.kv_heads, 64, 1e6)
    mesh = sharding.make_mesh(devices=jax.devices()[:devices]) if devices > 1 else None
    setup = train_step.Setup(
        config, train_step.make_optimizer(3e-4), mesh=mesh, remat=remat, chunk=chunk
    )
    state = train_step.init_state(qwen3.init(jax.random.key(0), config), setup)
    random = np.random.default_rng(0)
    size = length // 4 + 1

    def sequence(depth):
        return batching.Sequence(
            random.integers(0, 512, size, dtype=np.int32),
            random.random(size) < 0.5,
            np.full(size, -6.0, np.float32),
            np.ones(size, np.float32),
            depth,
        )

    sequences = [sequence(i % 3) for i in range(4 * rows * flags.batches)]
    batches = batching.pack(sequences, row_length=(length,), rows=rows)

    def run():
        nonlocal state
        state, metrics = train_step.update(state, batches, "cispo", setup)
        jax.block_until_ready((state, metrics))

    run()
    run()
    return run


if __name__ == "__main__":
    main()
