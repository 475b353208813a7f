"""An endpoint on this machine that answers from a script, well or badly."""

import asyncio
import time

from aiohttp import web

from sera_jax.external.chat import ChatClient, Endpoint

KEY = "sk-very-secret-key-0123456789"


def completion(text, **usage):
    usage = {"prompt_tokens": 11, "completion_tokens": 2} | usage
    message = {"role": "assistant", "content": text}
    return web.json_response({"choices": [{"message": message}], "usage": usage})


def status(code, text="no", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response({"error": {"message": text}}, status=code, headers=headers)


class Fake:
    """Script entries are a text, a response, or a function of the request; the last one stays."""

    def __init__(self, *script):
        self.script = list(script) or ["yes"]
        self.requests, self.bodies, self.times = [], [], []
        self.at_once = self.most_at_once = 0

    async def handle(self, request):
        self.requests.append(request)
        self.bodies.append(await request.json())
        self.times.append(time.monotonic())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            answer = step(request) if callable(step) else step
            answer = await answer if asyncio.iscoroutine(answer) else answer
            return completion(answer) if isinstance(answer, str) else answer
        finally:
            self.at_once -= 1


def with_client(fake, use, **options):
    """The result of `use(client)` with `fake` behind the client."""

    async def main():
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/chat/completions", fake.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        endpoint = {"url": url, "model": "m", "key_env": "TEST_KEY", **options}
        try:
            async with ChatClient(Endpoint(**endpoint)) as client:
                return await use(client)
        finally:
            await runner.cleanup()

    return asyncio.run(main())
