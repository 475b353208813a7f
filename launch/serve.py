"""The embedded policy server: python -m launch.serve --model=FOLDER --port=30000"""

import os

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Checkpoint folder in the Hugging Face layout.", required=True)
flags.DEFINE_string("host", "127.0.0.1", "Address to bind; keep it local unless keys are set.")
flags.DEFINE_integer("port", 30000, "0 picks a free port; the URL is printed.")
flags.DEFINE_integer("context_length", 768, "Longest prompt plus answer, in tokens.")
flags.DEFINE_integer("slots", 80, "Requests decoding together, over all replicas.")
flags.DEFINE_integer("parked", 64, "Further conversations a replica remembers between turns.")
flags.DEFINE_string("platform", "cpu", "JAX platform; it must offer as many devices as replicas.")
flags.DEFINE_integer("replicas", 2, "Devices that sample; on a CPU about one a core.")
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of weights and cache.")
flags.DEFINE_string("weight_version", "default", "Name of the weights at the start.")
flags.DEFINE_integer("random_seed", 0, "For requests without a sampling_seed.")
flags.DEFINE_integer("parent", 0, "Process to die with; 0: none.")


def main(_) -> None:
    from sera_jax.serving import embedded

    if FLAGS.parent:
        embedded.die_with_parent(FLAGS.parent)
    os.environ["JAX_PLATFORMS"] = FLAGS.platform
    # Before JAX starts: on a CPU each replica gets a device of its own.
    count = f"--xla_force_host_platform_device_count={FLAGS.replicas}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}".strip()

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{cache}/sera_jax/xla")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

    import asyncio

    from sera_jax.serving import server

    try:
        served = server.load(
            FLAGS.model,
            context=FLAGS.context_length,
            seed=FLAGS.random_seed,
            slots=FLAGS.slots,
            parked=FLAGS.parked,
            replicas=FLAGS.replicas,
            version=FLAGS.weight_version,
            dtype=FLAGS.dtype,
        )
        ready = lambda url: print(f"{embedded.READY}{url}", flush=True)  # noqa: E731
        asyncio.run(server.serve(served, FLAGS.host, FLAGS.port, ready))
    except (OSError, ValueError) as error:
        raise SystemExit(f"serve: {error}") from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    app.run(main)
