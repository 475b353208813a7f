"""Tokens a second of the embedded server and of SGLang, side by side: python -m benchmarks.servers

Both serve the same float32 checkpoint on this machine's CPU and get the same load in turns, round
by round: conversations that append 15 tokens and sample 8 a turn, as training does, through the
client that training uses. CPU seconds are of each server's processes; the client's stand beside.
SGLang's environment is made first if it is missing (third_party/sglang/install.sh cpu).
"""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

from absl import app, flags

from benchmarks.engine import random_model
from sera_jax.serving import client, embedded, sglang

FLAGS = flags.FLAGS
flags.DEFINE_string("checkpoint", None, "Folder to serve; none: random weights, preset's size.")
flags.DEFINE_list("requests", ["1", "8", "32"], "Concurrent requests.")
flags.DEFINE_integer("rounds", 3, "Times that both servers are measured, in turns.")
flags.DEFINE_integer("tokens", 3000, "Sampled tokens a measurement, at most.")

CONTEXT, OPENING, APPENDED, SAMPLED, LONGEST = 512, 60, 15, 8, 300


async def conversation(policy: client.PolicyClient, seed: int, turns: int) -> None:
    draw, ids = random.Random(seed), []
    for _ in range(turns):
        ids = ids if len(ids) < LONGEST else []
        size = APPENDED if ids else OPENING
        ids = ids + [draw.randrange(policy.vocab_size) for _ in range(size)]
        answer = await policy.generate(
            ids,
            temperature=1.0,
            max_new_tokens=SAMPLED,
            stop_token_ids=(),
            seed=draw.getrandbits(31),
            sticky=str(seed),
        )
        ids = ids + list(answer.token_ids)


async def play(url: str, vocab_size: int, concurrency: int, seed: int) -> tuple[float, int]:
    """Seconds and sampled tokens of so many conversations at once, of the same lengths."""
    turns = max(1, min(60, FLAGS.tokens // (SAMPLED * concurrency)))
    async with client.PolicyClient(url, vocab_size=vocab_size, context_length=CONTEXT) as policy:
        begin = time.perf_counter()
        seeds = range(seed * concurrency, (seed + 1) * concurrency)
        await asyncio.gather(*(conversation(policy, s, turns) for s in seeds))
        return time.perf_counter() - begin, policy.counters["completion_tokens"]


def cpu_seconds(session: int) -> float:
    """CPU time of all processes in the session that the server leads."""
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(") ")[2].split()
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(
    process: subprocess.Popen, url: str, vocab_size: int, concurrency: int, seed: int
) -> dict[str, float]:
    """Tokens a second, and CPU milliseconds a token of server and client."""
    server, own = cpu_seconds(process.pid), time.process_time()
    took, tokens = asyncio.run(play(url, vocab_size, concurrency, seed))
    return {
        "tokens": tokens / took,
        "server": 1000 * (cpu_seconds(process.pid) - server) / tokens,
        "client": 1000 * (time.process_time() - own) / tokens,
    }


def servers(model: pathlib.Path, logs: pathlib.Path, stack: contextlib.ExitStack) -> dict:
    """Both servers, ready, by name: (process, URL)."""
    slots = max(map(int, FLAGS.requests))
    flags_of_embedded = (f"--slots={slots}", "--replicas=2", f"--context_length={CONTEXT}")
    processes = {
        "embedded": embedded.start(model, logs / "embedded.log", *flags_of_embedded),
        "sglang": sglang.start(model, logs / "sglang.log", context_length=CONTEXT, slots=slots),
    }
    for process in processes.values():
        stack.callback(embedded.stop, process)
    return {
        name: (process, embedded.wait_until_healthy(process, logs / f"{name}.log", 600.0))
        for name, process in processes.items()
    }


def main(_) -> None:
    subprocess.run([sglang.FOLDER / "install.sh", sglang.hardware()], check=True)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = pathlib.Path(FLAGS.checkpoint or folder / "model")
        if not FLAGS.checkpoint:
            random_model(model)
        vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
        running = servers(model, folder, stack)
        for process, url in running.values():  # nothing measured is a first time
            measure(process, url, vocab_size, max(map(int, FLAGS.requests)), 0)
        print(f"{'requests':>8} {'server':>9} {'tokens/s':>9} {'CPU ms/token: server':>21} client")
        for concurrency in map(int, FLAGS.requests):
            seen = {name: [] for name in running}
            for turn in range(1, FLAGS.rounds + 1):
                for name, (process, url) in running.items():
                    seen[name].append(measure(process, url, vocab_size, concurrency, turn))
            report(concurrency, seen)


def report(concurrency: int, seen: dict[str, list[dict]]) -> None:
    for name, rounds in seen.items():
        middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        speeds = [r["tokens"] for r in rounds]
        print(
            f"{concurrency:8} {name:>9} {middle['tokens']:9.0f} {middle['server']:21.3f} "
            f"{middle['client']:6.3f}  ({min(speeds):.0f} to {max(speeds):.0f})",
            flush=True,
        )
    rates = [a["tokens"] / b["tokens"] for a, b in zip(*seen.values(), strict=True)]
    print(f"{'':8} embedded / sglang: {statistics.median(rates):.2f} times", flush=True)


if __name__ == "__main__":
    app.run(main)
