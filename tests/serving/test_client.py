"""The client against servers that misbehave on purpose; whole outages are in test_faults.py."""

import asyncio
import json

import pytest
from aiohttp import web
from fake_server import Fake, answer, error, generate, with_client

from sera_jax.serving import client as client_module
from sera_jax.serving import fleet
from sera_jax.serving.answers import Generation
from sera_jax.serving.errors import RequestRejected, ServersLost, ServerUnreachable, UpdateRefused


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(client_module, "BACKOFF", 0.001)
    monkeypatch.setattr(fleet, "AGAIN", 0.01)


def counted(policy):
    return {name: count for name, count in policy.counters.items() if count}


def test_what_is_sent_and_what_comes_back():
    fake = Fake()

    async def use(policy):
        return await generate(policy, new=50), counted(policy)

    got, counters = with_client([fake], use)
    assert got == Generation((5, 6), (-0.5, -0.5), "stop", (("v", 2),))
    tokens = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}
    assert counters == {"requests": 1, **tokens}
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


def test_failures_are_retried_under_fresh_ids_of_one_width():
    async def late():
        await asyncio.sleep(1.0)
        return answer()

    fake = Fake(error(500), late)

    async def use(policy):
        return await generate(policy), counted(policy)

    got, counters = with_client([fake], use, timeout=0.3)
    assert got.finish_reason == "stop"
    assert (counters["retries"], counters["failures"], counters["timeouts"]) == (2, 2, 1)
    rids = [body["rid"] for body in fake.bodies if "rid" in body]
    assert len(set(rids)) == 3 and len({len(rid) for rid in rids}) == 1


def test_a_request_ends_with_its_total_timeout():
    async def never():
        await asyncio.sleep(5)

    with pytest.raises(ServerUnreachable, match=r"given up after 0\.2 s"):
        with_client([Fake(*[never] * 9)], generate, total_timeout=0.2, timeout=3.0)


NOT_A_NUMBER = '{"meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 3, '
NOT_A_NUMBER += '"completion_tokens": 1, "output_token_logprobs": [[NaN, 5, null]]}}'
VERSIONS = [{"version": "v", "start": 0, "end": 1}]


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "[]",
        '{"meta_info": null}',
        "<html>502</html>",
        b"\xff\xfe",
        "[" * 100_000,
        NOT_A_NUMBER,
        NOT_A_NUMBER[:60],
        NOT_A_NUMBER.replace("NaN", '"-0.5"'),
        NOT_A_NUMBER.replace("NaN", "true"),
        NOT_A_NUMBER.replace("NaN", "0.5"),
        NOT_A_NUMBER.replace("NaN", "null"),
        NOT_A_NUMBER.replace("NaN, 5", "-0.5, 5.0"),
        NOT_A_NUMBER.replace("[[NaN, 5, null]]", "{}"),
        lambda: answer((5, 10)),
        lambda: answer((5, -1)),
        lambda: answer((5, 6, 7, 8, 5)),
        lambda: answer(()),
        lambda: answer(prompt=2),
        lambda: answer(reason="later"),
        lambda: answer(finish_reason=None),
        lambda: answer(finish_reason="stop"),
        lambda: answer(output_token_logprobs=None),
        lambda: answer(output_token_logprobs=[[-0.5]]),
        lambda: answer(completion_tokens=3),
        lambda: answer(weight_versions=VERSIONS),
        lambda: answer(weight_versions=[{"version": 3, "start": 0, "end": 2}]),
        lambda: answer(weight_versions=[{"version": "v"}]),
        lambda: answer(weight_versions=[{"version": "v", "start": 0, "end": "2"}]),
    ],
)
def test_a_malformed_answer_is_counted_and_asked_again(malformed):
    fake = Fake(malformed)

    async def use(policy):
        return await generate(policy), counted(policy)

    got, counters = with_client([fake], use)
    assert got.token_ids == (5, 6)
    assert (counters["malformed"], counters["retries"], counters["requests"]) == (1, 1, 1)


def test_one_weight_version_for_all_tokens_will_do():
    fake = Fake(lambda: answer(weight_versions=None))
    assert with_client([fake], generate).versions == (("v", 2),)


def test_a_busy_server_is_waited_for_as_it_says_and_no_attempt_is_lost():
    busy = [error(429, **{"Retry-After": "0.05"}), error(503), error(429, **{"Retry-After": "?"})]
    fake = Fake(*busy * 3)

    async def use(policy):
        loop = asyncio.get_running_loop()
        begin = loop.time()
        got = await generate(policy)
        return got, counted(policy), loop.time() - begin

    got, counters, took = with_client([fake], use, retries=0)
    assert got.token_ids == (5, 6)
    assert counters["busy"] == counters["retries"] == 9 and "failures" not in counters
    assert 0.15 <= took < 5.0


def test_a_server_that_stays_busy_is_given_up_by_patience():
    fake = Fake(*[error(503, **{"Retry-After": "0.1"})] * 50)
    with pytest.raises(ServerUnreachable, match="busy"):
        with_client([fake], generate, patience=0.25)
    assert len(fake.bodies) == 3


def test_aborted_answers_are_continued_where_they_ended():
    parts = [lambda: answer((5,), "abort"), lambda: answer((), "abort", prompt=4)]
    rest = lambda: answer((7, 9), "stop", "w", 4)  # noqa: E731
    fake = Fake(*parts, rest)

    async def use(policy):
        return await generate(policy), counted(policy)

    got, counters = with_client([fake], use)
    assert got == Generation((5, 7, 9), (-0.5,) * 3, "stop", (("v", 1), ("w", 2)))
    assert (counters["aborted"], counters["resumed"], counters["requests"]) == (2, 1, 1)
    assert [body["input_ids"] for body in fake.bodies] == [[1, 2, 3], [1, 2, 3, 5], [1, 2, 3, 5]]
    asked = [body["sampling_params"] for body in fake.bodies]
    assert [params["max_new_tokens"] for params in asked] == [4, 3, 3]
    assert asked[0]["sampling_seed"] != asked[1]["sampling_seed"]


def test_a_request_that_is_always_aborted_fails():
    fake = Fake(*[lambda: answer((), "abort")] * 2)
    with pytest.raises(ServerUnreachable, match="aborted the request; 2 failed attempts"):
        with_client([fake], generate, retries=1)


def test_a_refusal_is_not_retried_and_keeps_the_servers_words():
    fake = Fake(error(400, "too long"))
    with pytest.raises(RequestRejected, match="answered 400: too long"):
        with_client([fake], generate)
    assert len(fake.bodies) == 1


def test_nobody_there_is_one_line(capsys):
    nowhere = {"urls": "http://127.0.0.1:9", "patience": 0.05}
    with pytest.raises(ServersLost) as caught:
        with_client([], generate, **nowhere)
    assert "http://127.0.0.1:9" in str(caught.value) and "\n" not in str(caught.value)
    assert capsys.readouterr().out.count("waiting up to 0.05 s for it") == 1
    assert with_client([], lambda policy: policy.health(), **nowhere) is False


def test_trees_stick_to_their_servers_and_use_all_of_them():
    fakes = [Fake() for _ in range(4)]

    async def use(policy):
        for tree in range(40):
            await asyncio.gather(*(generate(policy, sticky=f"tree{tree}") for _ in range(3)))

    with_client(fakes, use)
    counts = [len(fake.bodies) for fake in fakes]
    assert sum(counts) == 120 and all(count and count % 3 == 0 for count in counts)


def test_a_request_that_one_server_cannot_answer_goes_to_another():
    fakes = [Fake(*[error(500)] * 99) for _ in range(2)]

    async def use(policy):
        home = (await policy.fleet.route("tree")).url
        bad = policy.urls.index(home)
        fakes[1 - bad].script = []
        got = [await generate(policy, sticky="tree") for _ in range(2)]
        return got, len(fakes[bad].bodies), counted(policy)

    got, failures, counters = with_client(fakes, use)
    assert [one.token_ids for one in got] == [(5, 6)] * 2
    assert failures == counters["failures"] == counters["retries"] == 2


def test_no_more_requests_at_a_time_than_allowed():
    running, most = 0, 0

    async def slow():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return answer()

    async def use(policy):
        await asyncio.gather(*(generate(policy) for _ in range(12)))

    with_client([Fake(*[slow] * 12)], use, max_concurrency=3)
    assert most == 3


ORDER = ["/pause_generation", "/flush_cache", "/update_weights_from_disk"]
ORDER += ["/model_info", "/continue_generation", "/generate"]


def test_an_update_goes_to_all_in_order_and_continues_even_when_it_fails():
    good = [Fake(), Fake()]
    with_client(good, lambda policy: policy.update_weights("/x", "7"))
    assert [fake.calls for fake in good] == [ORDER, ORDER]
    stale = Fake()
    stale.stuck = "6"
    with pytest.raises(UpdateRefused, match="serves weights '6' after an update to '7'"):
        with_client([stale], lambda policy: policy.update_weights("/x", "7"))
    assert stale.calls == ORDER[:-1] * 3 and not stale.paused


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KEY", "k1")
    monkeypatch.setenv("ADMIN", "k2")
    fake = Fake()

    async def use(policy):
        await generate(policy)
        await policy.health()
        await policy.abort_all()

    with_client([fake], use, api_key_env="KEY", admin_key_env="ADMIN")
    assert fake.headers == ["Bearer k1", "Bearer k1", "Bearer k2"]
    assert "k1" not in json.dumps(fake.bodies)


def test_a_key_that_is_refused_is_no_reason_to_ask_again():
    fake = Fake(lambda: web.json_response({"error": {"message": "Unauthorized"}}, status=401))
    with pytest.raises(RequestRejected, match="401: Unauthorized"):
        with_client([fake], generate)
    assert len(fake.bodies) == 1
