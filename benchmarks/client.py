"""What sampling costs the trainer's host: python -m benchmarks.client [--prompt_tokens=8000]

Plays TextWorld trees with the `full` prompts and rubrics, through the same rollout and client as in
training, against a server process that answers at once with canned responses: thoughts and actions,
now and then a delegation or a report. Prints requests a second and this process's CPU time a
request; what a run needs beside is the time of its servers. `--prompt_tokens` lengthens every
opening to that many tokens. `--profile` shows where the time goes.
"""

import asyncio
import cProfile
import itertools
import json
import pstats
import random
import subprocess
import sys
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("trees", ["1", "64", "512"], "Trees at the same time.")
flags.DEFINE_integer("requests", 5_000, "Requests to measure each of them with.")
flags.DEFINE_integer("prompt_tokens", 0, "Length of every opening at least.")
flags.DEFINE_bool("profile", False, "Print the functions that take longest.")
flags.DEFINE_bool("serve", False, "Be the server: canned responses come on stdin.")

VOCABULARY, CONTEXT, COMPLETION = 151_936, 16_384, 3_072
TASKS, TREES = 64, 8  # as many trees of a task, one after the other
THOUGHT = (
    "The list shows which ingredients are still missing, and the team has only a limited number of "
    "actions left, so I should not waste any of them. The best thing to do now is the next step."
)
RESPONSES = (  # (how many among all, what they say)
    (16, "<action>look around</action>"),
    (10, "<action>take carrot</action>"),
    (10, "<action>open door to the north</action>"),
    (2, '<delegate>{"goal": "get the carrot and slice it"}</delegate>'),
    (2, "<finish>Everything that the goal names is done.</finish>"),
)
SERVERS, EACH = 8, 40  # 4B servers of one H100 each, and requests a second of each


class Canned(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as little of it as aiohttp's client needs."""

    responses: itertools.cycle

    def connection_made(self, transport):
        self.transport, self.head, self.missing = transport, b"", 0

    def data_received(self, data):
        if self.missing:
            self.missing -= len(data)
        else:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = self.head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            self.missing, self.head = int(length) - (len(self.head) - end - 4), b""
        if not self.missing:
            self.transport.write(next(self.responses))


async def serve_canned() -> None:
    bodies = [body.encode() for body in json.load(sys.stdin)]
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    random.Random(0).shuffle(bodies)
    Canned.responses = itertools.cycle([head.format(len(b)).encode() + b for b in bodies])
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def canned(tokenizer) -> list[str]:
    """Answers of /generate, as many of each response as it says."""
    answers = []
    for count, text in RESPONSES:
        ids = tokenizer.encode(f"{THOUGHT}\n{text}", add_special_tokens=False)
        ids.append(tokenizer.eos_token_id)
        size = len(ids)
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "completion_tokens": size,
            "cached_tokens": 0,
            "weight_version": "0",
            "weight_versions": [{"version": "0", "start": 0, "end": size}],
            "input_token_logprobs": [],
            "output_token_logprobs": [[-0.123456789 * (i % 7), t, None] for i, t in enumerate(ids)],
        }
        body = {"text": f"{THOUGHT}\n{text}", "output_ids": ids, "meta_info": meta}
        answers += [json.dumps(body, separators=(",", ":"))] * count
    return answers


def make_prompts():
    """Prompts over a tokenizer of the kind that real ones are, with openings of the wanted size."""
    from sera_jax.rollout.prompts import TEMPLATES, Prompts
    from sera_jax.warmstart import tokenizer as small

    texts = [path.read_text() for path in (TEMPLATES / "textworld_sync").rglob("*.jinja")]
    draw = random.Random(0)
    filler = [draw.randrange(100_000, 150_000) for _ in range(FLAGS.prompt_tokens)]

    class Lengthened(Prompts):
        def opening(self, *args, **limits):
            ids = super().opening(*args, **limits)
            return filler[len(ids) :] + ids

        def decode(self, ids):
            return super().decode(ids[-512:])

    return Lengthened(small.train([*texts, THOUGHT] * 4, [], 2_048), "textworld_sync", "full")


async def measure(url: str, prompts, trees: int) -> dict[str, float]:
    """Plays `trees` at a time -> requests a second, CPU ms a request, nodes a tree."""
    from sera_jax.rollout import rubrics, tree
    from sera_jax.rollout.node import policy_responder
    from sera_jax.rollout.situation import RolloutConfig
    from sera_jax.serving.client import PolicyClient
    from sera_jax.worlds import textworld_sync as tws

    tasks = [
        tws.generate_task("train", "medium", "multi_dish_fork_join", seed, f"task-{seed}")
        for seed in range(TASKS)
    ]
    config = RolloutConfig(CONTEXT, COMPLETION)
    numbers, done = itertools.count(), []
    client = PolicyClient(
        url, vocab_size=VOCABULARY, context_length=CONTEXT, max_concurrency=SERVERS * 64
    )
    async with client:
        respond = policy_responder(client, stop_token_ids=prompts.stop_ids)
        graders = rubrics.policy_graders(respond, prompts, config)

        async def play() -> None:
            while True:
                number = next(numbers)
                task = tasks[number // TREES % TASKS]
                played = await tree.rollout(
                    task,
                    tws.World(task),
                    respond,
                    prompts,
                    None,
                    config,
                    tree_id=str(number),
                    seed=0,
                    graders=graders,
                )
                done.append(len(played.nodes))

        async def reach(requests: int) -> tuple[float, float, int]:
            while client.counters["requests"] < requests:
                await asyncio.sleep(0.01)
            return time.perf_counter(), time.process_time(), client.counters["requests"]

        work = [asyncio.ensure_future(play()) for _ in range(trees)]
        begin, used, before = await reach(2 * trees)  # all trees are under way
        end, cpu, requests = await reach(before + FLAGS.requests)
        took, cpu, requests = end - begin, cpu - used, requests - before
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return {
        "requests": requests / took,
        "cpu": 1000 * cpu / requests,
        "nodes": sum(done) / max(len(done), 1),
    }


def main(_) -> None:
    if FLAGS.serve:
        asyncio.run(serve_canned())
        return
    prompts = make_prompts()
    command = [sys.executable, "-m", "benchmarks.client", "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        try:
            server.stdin.write(json.dumps(canned(prompts.tokenizer)))
            server.stdin.close()
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            report(url, prompts)
        finally:
            server.terminate()


def report(url: str, prompts) -> None:
    print(f"openings of at least {FLAGS.prompt_tokens} tokens")
    for trees in map(int, FLAGS.trees):
        profile = cProfile.Profile(time.process_time) if FLAGS.profile else None
        if profile:
            profile.enable()
        found = asyncio.run(measure(url, prompts, trees))
        if profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(28)
        cores = SERVERS * EACH * found["cpu"] / 1000
        print(
            f"{trees:4} trees: {found['requests']:6.0f} requests/s, {found['cpu']:.2f} ms of CPU "
            f"each ({found['nodes']:.1f} nodes a tree); {SERVERS} servers at {EACH} requests/s "
            f"each take {cores:.2f} of this host's cores",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
