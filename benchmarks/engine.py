"""How fast the embedded policy server samples: python -m benchmarks.engine [--model=FOLDER]

The load is that of training: every conversation appends about 15 tokens a turn and asks for about
8 new ones, up to 300 tokens, then begins anew. Prints requests and sampled tokens a second over
HTTP (a server process of its own, as in training) and straight from the engine in this process.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Checkpoint folder; none: random weights of the small preset.")
flags.DEFINE_list("concurrency", ["1", "8", "32", "64"], "Conversations at the same time.")
flags.DEFINE_float("seconds", 5.0, "How long to measure each of them.")
flags.DEFINE_enum("via", "both", ["http", "direct", "both"], "Way to the engine.")
flags.DEFINE_integer("slots", 80, "Slots of the engine.")
flags.DEFINE_integer("replicas", 2, "Replicas of the engine.")

OPENING, LONGEST, CONTEXT = 40, 300, 768


async def conversation(ask, vocab_size: int, seed: int, deadline: float) -> tuple[int, int]:
    """Plays until the deadline -> requests, sampled tokens."""
    draw = random.Random(seed)
    ids, requests, tokens = [], 0, 0
    while time.perf_counter() < deadline:
        fresh = not ids or len(ids) > LONGEST
        size = OPENING if fresh else draw.randint(10, 20)
        ids = [] if fresh else ids
        ids = ids + [draw.randrange(vocab_size) for _ in range(size)]
        new = await ask(ids, draw.randint(4, 12), draw.getrandbits(31), str(seed))
        ids, requests, tokens = ids + new, requests + 1, tokens + len(new)
    return requests, tokens


async def measure(name: str, ask, vocab_size: int) -> None:
    for concurrency in map(int, FLAGS.concurrency):
        begin = time.perf_counter()
        work = [
            conversation(ask, vocab_size, seed, begin + FLAGS.seconds)
            for seed in range(concurrency)
        ]
        requests, tokens = map(sum, zip(*await asyncio.gather(*work), strict=True))
        took = time.perf_counter() - begin
        print(
            f"{name:7}{concurrency:4} conversations: {requests / took:7.0f} requests/s "
            f"{tokens / took:8.0f} tokens/s",
            flush=True,
        )


def over_http(model: pathlib.Path, vocab_size: int) -> None:
    from sera_jax.serving import client, embedded

    async def play(url: str) -> None:
        async with client.PolicyClient(
            url, vocab_size=vocab_size, context_length=CONTEXT
        ) as policy:

            async def ask(ids, size, seed, sticky):
                answer = await policy.generate(
                    ids,
                    temperature=1.0,
                    max_new_tokens=size,
                    stop_token_ids=(),
                    seed=seed,
                    sticky=sticky,
                )
                return list(answer.token_ids)

            await measure("http", ask, vocab_size)
            print({k: v for k, v in policy.counters.items()})

    flag = (f"--slots={FLAGS.slots}", f"--replicas={FLAGS.replicas}")
    with embedded.embedded_server(model, model.parent / "server.log", *flag) as url:
        asyncio.run(play(url))


def direct(model: pathlib.Path, vocab_size: int) -> None:
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={FLAGS.replicas}"
    )
    import numpy as np

    from sera_jax.serving import server
    from sera_jax.serving.requests import Request

    served = server.load(model, context=CONTEXT, slots=FLAGS.slots, replicas=FLAGS.replicas)
    count = 0

    async def ask(ids, size, seed, sticky):
        nonlocal count
        count += 1
        request = Request(str(count), np.array(ids, np.int32), size, seed=seed)
        return (await served.engine.generate(request)).output_ids

    asyncio.run(measure("direct", ask, vocab_size))


def main(_) -> None:
    with contextlib.ExitStack() as stack:
        if FLAGS.model:
            model = pathlib.Path(FLAGS.model)
        else:
            model = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
            random_model(model)
        vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
        if FLAGS.via != "direct":
            over_http(model, vocab_size)
        if FLAGS.via != "http":
            direct(model, vocab_size)


def random_model(path: pathlib.Path) -> None:
    """Written by a process of its own: this one must not start JAX yet."""
    import subprocess
    import sys

    code = (
        "import jax; from sera_jax.model import huggingface, qwen3; "
        f"config = qwen3.Config(512, 128, 256, 3, 2, 1, 64, 1e6, 1e-6, True, {CONTEXT}); "
        f"huggingface.export(qwen3.init(jax.random.key(0), config), config, {str(path)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    app.run(main)
