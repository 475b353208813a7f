"""The client against a server that misbehaves on purpose."""

import asyncio
import json

import pytest
from aiohttp import web

from sera_jax.serving import client as client_module
from sera_jax.serving.client import (
    Generation,
    PolicyClient,
    PolicyServerError,
    RequestRejected,
    ServerUnreachable,
)


def answer(tokens=(5, 6), reason="stop", version="v"):
    meta = {
        "finish_reason": {"type": reason},
        "prompt_tokens": 3,
        "completion_tokens": len(tokens),
        "cached_tokens": 1,
        "weight_version": version,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
        "output_token_logprobs": [[-0.5, token, None] for token in tokens],
    }
    return web.json_response({"text": "", "output_ids": list(tokens), "meta_info": meta})


class Fake:
    """Answers /generate from a script; a callable entry makes the response."""

    def __init__(self, *script, version="v"):
        self.script, self.version = list(script), version
        self.bodies, self.calls, self.headers = [], [], []

    async def handle(self, request):
        self.calls.append(request.path)
        self.headers.append(request.headers.get("Authorization"))
        if request.path == "/generate":
            self.bodies.append(await request.json())
            step = self.script.pop(0) if self.script else answer
            return await step() if asyncio.iscoroutinefunction(step) else step()
        if request.path == "/model_info":
            return web.json_response({"weight_version": self.version})
        return web.json_response({"success": True})


def with_client(fakes, use, **options):
    async def main():
        runners, urls = [], []
        for fake in fakes:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", fake.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runners.append(runner)
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with PolicyClient(
            options.pop("urls", urls), vocab_size=10, context_length=8, **options
        ) as policy:
            try:
                return await use(policy)
            finally:
                for runner in runners:
                    await runner.cleanup()

    return asyncio.run(main())


def generate(policy, ids=(1, 2, 3), new=4, **options):
    options = {"temperature": 1.0, "stop_token_ids": (9,), "seed": 3} | options
    return policy.generate(ids, max_new_tokens=new, **options)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(client_module, "BACKOFF", 0.001)


def test_what_is_sent_and_what_comes_back():
    fake = Fake()

    async def use(policy):
        return await generate(policy, new=50), policy.counters

    got, counters = with_client([fake], use)
    assert got == Generation((5, 6), (-0.5, -0.5), "stop", (("v", 2),))
    assert counters == {
        "requests": 1,
        "retries": 0,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
    }
    body = fake.bodies[0]
    assert body["input_ids"] == [1, 2, 3] and body["return_logprob"] is True
    assert body["sampling_params"]["max_new_tokens"] == 5  # the rest of the context
    assert body["sampling_params"]["sampling_seed"] == 3


@pytest.mark.parametrize("ids", [[], [1, 10], [-1], [1] * 8])
def test_prompts_that_would_harm_a_server_are_never_sent(ids):
    fake = Fake()
    with pytest.raises(RequestRejected):
        with_client([fake], lambda policy: generate(policy, ids))
    assert fake.calls == []


def test_failures_and_aborts_are_retried_under_fresh_ids_of_one_width():
    async def late():
        await asyncio.sleep(1.0)
        return answer()

    fake = Fake(lambda: web.Response(status=500), lambda: answer((5,), "abort"), late)

    async def use(policy):
        return await generate(policy), policy.counters["retries"]

    got, retries = with_client([fake], use, timeout=0.3)
    assert got.finish_reason == "stop" and retries == 3
    rids = [body["rid"] for body in fake.bodies]
    assert len(set(rids)) == 4 and len({len(rid) for rid in rids}) == 1


def test_an_answer_that_is_always_aborted_is_given_as_it_is():
    fake = Fake(*[lambda: answer((5,), "abort")] * 2)
    got = with_client([fake], generate, retries=1)
    assert got.finish_reason == "abort" and got.token_ids == (5,)


def test_a_refusal_is_not_retried_and_keeps_the_servers_words():
    fake = Fake(lambda: web.json_response({"error": {"message": "too long"}}, status=400))
    with pytest.raises(RequestRejected, match="answered 400: too long"):
        with_client([fake], generate)
    assert len(fake.bodies) == 1


def test_nobody_there_is_one_line():
    with pytest.raises(ServerUnreachable) as error:
        with_client([], generate, urls="http://127.0.0.1:9", retries=1)
    assert "http://127.0.0.1:9" in str(error.value) and "\n" not in str(error.value)
    assert with_client([], lambda policy: policy.health(), urls="http://127.0.0.1:9") is False


def test_a_tree_sticks_to_its_server():
    fakes = [Fake(), Fake(), Fake()]

    async def use(policy):
        for tree in range(12):
            await asyncio.gather(*(generate(policy, sticky=f"tree{tree}") for _ in range(3)))

    with_client(fakes, use)
    counts = [len(fake.bodies) for fake in fakes]
    assert sum(counts) == 36 and all(count and count % 3 == 0 for count in counts)


def test_an_update_goes_to_all_in_order_and_continues_even_when_it_fails():
    order = ["/pause_generation", "/flush_cache", "/update_weights_from_disk"]
    order += ["/model_info", "/continue_generation"]
    good = [Fake(version="7"), Fake(version="7")]
    with_client(good, lambda policy: policy.update_weights("/x", "7"))
    assert [fake.calls for fake in good] == [order, order]
    stale = Fake(version="6")
    with pytest.raises(PolicyServerError, match="serves weights '6' after an update to '7'"):
        with_client([stale], lambda policy: policy.update_weights("/x", "7"))
    assert stale.calls == order


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KEY", "k1")
    monkeypatch.setenv("ADMIN", "k2")
    fake = Fake()

    async def use(policy):
        await generate(policy)
        await policy.flush_cache()

    with_client([fake], use, api_key_env="KEY", admin_key_env="ADMIN")
    assert fake.headers == ["Bearer k1", "Bearer k2"]
    assert "k1" not in json.dumps(fake.bodies)
