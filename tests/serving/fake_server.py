"""A policy server played by a script, for faults that a real one shows once in a blue moon."""

import asyncio
import json
import os
import subprocess
import sys

from aiohttp import web

from sera_jax.serving import embedded
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.control import Probe

PROBE = Probe((1, 2, 3), (-0.5, -0.5), 1e-3)  # as a fake scores
NEVER = 30.0  # seconds; what takes that long has failed


def answer(tokens=(5, 6), reason="stop", version="v", prompt=3, **meta):
    """An answer of /generate; `meta` replaces keys of meta_info, None removes them."""
    meta = {
        "finish_reason": {"type": reason},
        "prompt_tokens": prompt,
        "completion_tokens": len(tokens),
        "cached_tokens": 1,
        "weight_version": version,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
        "output_token_logprobs": [[-0.5, token, None] for token in tokens],
    } | meta
    meta = {key: value for key, value in meta.items() if value is not None}
    return web.json_response({"text": "", "output_ids": list(tokens), "meta_info": meta})


def sound(body, version, logprob=-0.5):
    """What a server in order answers to a request: two tokens, or the scores of the prompt."""
    ids, wanted = body["input_ids"], body["sampling_params"]["max_new_tokens"]
    scored = [[logprob if at else None, token, None] for at, token in enumerate(ids)]
    tokens = (5, 6)[:wanted]
    reason = "stop" if wanted else "length"
    return answer(tokens, reason, version, len(ids), input_token_logprobs=scored)


class Fake:
    """Answers /generate from a script, and in order once that is over.

    An entry is a function of nothing that makes the response, a coroutine function, or a response's
    text. `refusals` are statuses of the next updates.
    """

    def __init__(self, *script, version="v", logprob=-0.5, refusals=()):
        self.script, self.version, self.logprob = list(script), version, logprob
        self.refusals, self.paused, self.stuck = list(refusals), False, None
        self.bodies, self.calls, self.headers = [], [], []

    async def handle(self, request):
        self.calls.append(request.path)
        self.headers.append(request.headers.get("Authorization"))
        body = await request.json() if request.can_read_body else {}
        if request.path == "/generate":
            self.bodies.append(body)
            if not self.script:
                return sound(body, self.version, self.logprob)
            step = self.script.pop(0)
            if isinstance(step, str | bytes):
                return web.Response(body=step, content_type="application/json")
            return await step() if asyncio.iscoroutinefunction(step) else step()
        if request.path == "/model_info":
            return web.json_response({"weight_version": self.version})
        if request.path == "/update_weights_from_disk":
            if self.refusals:
                message = {"success": False, "message": "no such folder"}
                return web.json_response(message, status=self.refusals.pop(0))
            self.version = self.stuck or body["weight_version"]
        if request.path in ("/pause_generation", "/continue_generation"):
            self.paused = request.path == "/pause_generation"
        return web.json_response({"success": True})


async def serve(fake, port=0):
    """-> what to clean up, the URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def with_client(fakes, use, **options):
    """The result of use(client) with the fakes as its servers."""

    async def main():
        served = [await serve(fake) for fake in fakes]
        urls = options.pop("urls", [url for _, url in served])
        sizes = {"vocab_size": 10, "context_length": 8} | options
        async with PolicyClient(urls, **sizes) as policy:
            try:
                return await use(policy)
            finally:
                for runner, _ in served:
                    await runner.cleanup()

    return asyncio.run(main())


def generate(policy, ids=(1, 2, 3), new=4, **options):
    options = {"temperature": 1.0, "stop_token_ids": (9,), "seed": 3} | options
    return policy.generate(ids, max_new_tokens=new, **options)


async def answers(policy, count=12):
    """Versions of the answers to as many trees at once."""
    got = await asyncio.gather(*(generate(policy, sticky=f"tree{n}") for n in range(count)))
    assert all(one.token_ids == (5, 6) for one in got)
    return {version for one in got for version, _ in one.versions}


async def until(condition):
    async with asyncio.timeout(NEVER):
        while not condition():
            await asyncio.sleep(0.01)


def exports(folder):
    return sorted(path.name for path in folder.glob("version-*"))


def error(status, text="boom", **headers):
    return lambda: web.Response(
        status=status, text=json.dumps({"error": {"message": text}}), headers=headers
    )


def start_fake(model, version, port, log):
    """A fake in a process of its own, as the supervisor starts servers; ends where `model` says."""
    command = [sys.executable, __file__, str(model), version, str(port)]
    options = {"start_new_session": True, "env": os.environ | {"PYTHONPATH": str(embedded.ROOT)}}
    with open(log, "wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, **options)


async def run_forever(version, port):
    await serve(Fake(version=version), port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    model, version, port = sys.argv[1:]
    if model == "/missing":
        sys.exit(f"no checkpoint at {model}")
    asyncio.run(run_forever(version, int(port)))
