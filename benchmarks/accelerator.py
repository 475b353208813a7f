"""Tokens/s and share of the peak of the 4B training step, with random weights, on an accelerator.

    python -m benchmarks.accelerator                     # T = 4k and 8k, over all devices
    python -m benchmarks.accelerator --toy --lengths 256 --chunks 64   # any CPU, seconds

Sweeps row length, attention kernel and chunk of the head: one row a device, half of its tokens
trained, in two sequences. The time is of the gradient of a micro-batch and, apart, of the update.
MFU counts 6 FLOPs a parameter and token and causal attention, not what is computed again.
Unmeasured: no accelerator has run it yet.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from sera_jax import batching, train_step
from sera_jax.model import attention, qwen3, sharding

PAPER = qwen3.Config(151_936, 2560, 9728, 36, 32, 8, 128, 5e6, max_position_embeddings=262_144)
TOY = qwen3.Config(1024, 64, 128, 2, 4, 2, 16, 1e6)
# Dense bfloat16 FLOPs a second, by a part of the device's name.
PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "B200": 2250e12,
    "v5 lite": 197e12,
    "v5": 459e12,
    "v6": 918e12,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--lengths", default="4096,8192")
    parser.add_argument("--kernels", default="best,plain")
    parser.add_argument("--chunks", default="512,1024,2048")
    parser.add_argument("--steps", type=int, default=5)
    flags = parser.parse_args()
    config = TOY if flags.toy else PAPER
    device = jax.devices()[0]
    peak = next((flops for name, flops in PEAKS.items() if name in device.device_kind), None)
    print(f"{len(jax.devices())} x {device.device_kind}")
    columns = ("T", "kernel", "chunk", "gradient s", "update s", "tokens/s", "MFU", "peak GiB")
    print("".join(f"{column:>11}" for column in columns))
    best = attention.best_kernel
    for kernel in flags.kernels.split(","):
        attention.best_kernel = best if kernel == "best" else lambda q, device, name=kernel: name
        jax.clear_caches()  # the kernel is chosen while tracing
        for length in map(int, flags.lengths.split(",")):
            for chunk in map(int, flags.chunks.split(",")):
                try:
                    gradient, update = measure(config, length, chunk, flags.steps)
                except jax.errors.JaxRuntimeError as error:  # most of all: out of memory
                    print(f"{length:11}{kernel:>11}{chunk:11}  {str(error).splitlines()[0][:70]}")
                    continue
                tokens = length * len(jax.devices())
                used = flops(config, length) * tokens / gradient / len(jax.devices())
                share = f"{used / peak:.3f}" if peak else "-"
                high = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
                print(
                    f"{length:11}{kernel:>11}{chunk:11}{gradient:11.3f}{update:11.3f}"
                    f"{tokens / gradient:11.0f}{share:>11}{high:11.1f}",
                    flush=True,
                )


def flops(config: qwen3.Config, length: int) -> float:
    """Of a training step, a token; its two sequences have half a row each."""
    shapes = jax.tree.leaves(qwen3.parameters(config), is_leaf=qwen3.is_parameter)
    parameters = sum(np.prod(leaf.shape) for leaf in shapes)  # tied: the head's use of them
    seen = length / 4  # earlier tokens a token attends to, on average
    scores = 4 * seen * config.num_heads * config.head_dim * config.num_layers
    return 6 * parameters + 3 * scores


def measure(config: qwen3.Config, length: int, chunk: int, steps: int) -> tuple[float, float]:
    """Seconds of a micro-batch's gradient and of the update, without compilation."""
    count = len(jax.devices())
    mesh = sharding.make_mesh(fsdp=count)
    optimizer = train_step.make_optimizer()
    setup = train_step.Setup(config, optimizer, "bfloat16", "full", chunk, mesh=mesh)
    targets = train_step.state_shardings(setup)
    params = functools.partial(qwen3.init, config=config)
    params = jax.jit(params, out_shardings=targets.params)(jax.random.key(0))
    opt_state = jax.jit(optimizer.init, out_shardings=targets.opt_state)(params)
    step = jax.device_put(jnp.zeros((), jnp.int32), targets.step)
    state = train_step.TrainState(params, opt_state, step)
    random = np.random.default_rng(0)

    def sequence():
        size = length // 2 + 1
        tokens = random.integers(0, config.vocab_size, size, dtype=np.int32)
        ones = np.ones(size, np.float32)
        return batching.Sequence(tokens, random.random(size) < 0.5, -12 * ones, ones)

    sequences = [sequence() for _ in range(2 * count)]
    (batch,) = batching.pack(sequences, row_length=[length], rows=count)
    batch = train_step.place_batch(batch, mesh)
    gradient, update = [], []
    for _ in range(steps + 1):
        sums = train_step._zeros(state.params, train_step._metric_names("cispo"), setup)
        jax.block_until_ready(sums)
        start = time.perf_counter()
        sums = jax.block_until_ready(
            train_step._accumulate(sums, state.params, batch, "cispo", setup)
        )
        middle = time.perf_counter()
        state, _ = jax.block_until_ready(train_step._apply(state, sums, 0.0, setup))
        gradient.append(middle - start)
        update.append(time.perf_counter() - middle)
    return float(np.median(gradient[1:])), float(np.median(update[1:]))


if __name__ == "__main__":
    main()
