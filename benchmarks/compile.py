"""Ahead-of-time compilation of the 4B training step of configs/textworld.py:paper, without weights.

    python -m benchmarks.compile                    # for 1 and 8 fake CPU devices
    pip install "jax[tpu]" && python -m benchmarks.compile --topologies v5p:2x2x1,v6e:2x4

Prints seconds to trace and compile, and the bytes that each device needs: those of the arguments,
those held all the time (weights, moments and gradient sums, float32, which the update takes as
arguments), temporaries, and what a device must have: held and temporaries. A micro-batch has one
row a device. CPUs have no flash attention, so their temporaries hold a block of scores; those of a
TPU, for which libtpu compiles without one at hand, are the real ones.
"""

import argparse
import os
import time

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="1,8", help="fake CPU devices")
    parser.add_argument("--topologies", default="", help="of TPUs, as libtpu names them")
    parser.add_argument("--lengths", default="16384", help="row lengths")
    flags = parser.parse_args()
    counts = [int(count) for count in flags.devices.split(",") if count]
    # Read when JAX starts its backend, hence before the imports below.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} "
        f"--xla_force_host_platform_device_count={max(counts, default=1)}"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu looks for a TPU's host otherwise
    import jax
    from jax.experimental import topologies

    sets = [(f"{count} CPU", jax.devices()[:count]) for count in counts]
    for name in filter(None, flags.topologies.split(",")):
        sets.append((name, topologies.get_topology_desc(name, platform="tpu").devices))
    columns = ("seconds", "arguments", "held", "temporaries", "GiB in all")
    print(f"{'':28}" + "".join(f"{column:>13}" for column in columns))
    for name, devices in sets:
        for length in map(int, flags.lengths.split(",")):
            parts = compiled(list(devices), length)
            held = parts["update"][1].argument_size_in_bytes / GIB
            for part, (seconds, memory) in parts.items():
                arguments = memory.argument_size_in_bytes / GIB
                temporaries = memory.temp_size_in_bytes / GIB
                print(
                    f"{f'{name} T={length} {part}':28}{seconds:13.1f}{arguments:13.2f}{held:13.2f}"
                    f"{temporaries:13.2f}{held + temporaries:13.2f}",
                    flush=True,
                )


def compiled(devices: list, length: int) -> dict:
    """Part of the step -> seconds, and bytes per device."""
    import jax
    import jax.numpy as jnp

    from configs import textworld
    from sera_jax import batching, train_step
    from sera_jax.model import qwen3, sharding

    settings = textworld.paper().train
    model = qwen3.Config(151_936, 2560, 9728, 36, 32, 8, 128, 5e6, max_position_embeddings=262_144)
    mesh = sharding.make_mesh(fsdp=len(devices), devices=devices)
    setup = train_step.Setup(
        model,
        train_step.make_optimizer(),
        dtype="bfloat16",
        remat=settings.remat,
        chunk=settings.logprob_chunk,
        mesh=mesh,
    )
    state = jax.eval_shape(
        lambda key: train_step.TrainState(
            params := qwen3.init(key, model), setup.optimizer.init(params), jnp.zeros((), int)
        ),
        jax.random.key(0),
    )
    placed = train_step.state_shardings(setup)
    state = jax.tree.map(_described, state, placed)
    names = train_step._metric_names("cispo")
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding.replicated(mesh))
    sums = (state.params, dict.fromkeys(names, scalar))
    rows = (len(devices), length)
    target = jax.sharding.NamedSharding(mesh, sharding.spec(("batch", None), rows, mesh))
    empty = batching._Rows(1, 1).finish()
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(rows, x.dtype, sharding=target), empty)
    lower = {
        "gradients": lambda: train_step._accumulate.lower(
            sums, state.params, batch, "cispo", setup
        ),
        "update": lambda: train_step._apply.lower(state, sums, 0.0, setup),
    }
    found = {}
    for part, function in lower.items():
        start = time.monotonic()
        program = function().compile()
        found[part] = time.monotonic() - start, program.memory_analysis()
    return found


def _described(shape, sharding):
    import jax

    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


if __name__ == "__main__":
    main()
