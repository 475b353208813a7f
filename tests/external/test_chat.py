"""The client of external models against an endpoint that misbehaves on purpose."""

import asyncio
import email.utils
import logging
import time

import pytest
from aiohttp import web
from external_fakes import KEY, Fake, completion, status, with_client

from sera_jax.external import answers, chat
from sera_jax.external.answers import AnswerCache, ExternalError, content_hash
from sera_jax.external.chat import Answer, ChatClient, Endpoint
from sera_jax.supervision import Counters


def read(text):
    return (text, "") if text in ("yes", "no") else (None, f"not clean: {text[:20]}")


class Asker:
    """Asks a client and keeps the counters."""

    def __init__(self, *questions):
        self.questions, self.counters = questions or ("?",), Counters()

    async def __call__(self, client):
        asked = (
            client.ask(question, read=read, counters=self.counters, purpose="test", temperature=0.0)
            for question in self.questions
        )
        got = await asyncio.gather(*asked)
        return got[0] if len(got) == 1 else got

    @property
    def counted(self):
        numbers = self.counters.to_json()["test"]
        return {name: number for name, number in numbers.items() if number}


CALLED = {"calls": 1, "input_tokens": 11, "output_tokens": 2}


def test_what_is_sent_and_what_comes_back():
    fake, ask = Fake("yes"), Asker("really?")
    options = {"parameters": {"max_tokens": 9, "temperature": None, "seed": 3}}
    assert with_client(fake, ask, **options) == Answer("yes", "yes", "")
    assert fake.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "really?"}],
            "max_tokens": 9,
            "seed": 3,
        }
    ]
    assert fake.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert ask.counted == CALLED


def cut(request):
    request.transport.close()
    return web.Response()


async def slow(request):
    await asyncio.sleep(5)


async def cut_within(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    request.transport.close()
    return response


TROUBLES = {
    "500": status(500),
    "502 html": web.Response(status=502, text="<html>bad gateway</html>"),
    "429": status(429, Retry_After="0"),
    "cut": cut,
    "cut within": cut_within,
    "slow": slow,
    "html": web.Response(text="<html>fine</html>"),
    "binary": web.Response(body=bytes(range(256))),
    "not http": lambda request: request.transport.write(b"\x00\x01\r\n\r\n") or cut(request),
    "empty": web.Response(),
    "nested": web.Response(text="[" * 200_000),
    "no choices": web.json_response({"choices": []}),
    "list": web.json_response([1]),
    "error in 200": web.json_response({"error": {"message": "overloaded"}}),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_trouble_that_passes_is_retried_and_counted(trouble):
    once = trouble if callable(trouble) else lambda request: trouble.__class__(
        status=trouble.status, body=trouble.body, headers=trouble.headers
    )  # fmt: skip
    fake, ask = Fake(once, "yes"), Asker()
    assert with_client(fake, ask, timeout=0.3).value == "yes"
    assert ask.counted == {**CALLED, "retries": 1}
    assert fake.bodies[0] == fake.bodies[1]


def test_trouble_that_stays_is_no_answer():
    fake, ask = Fake(lambda request: status(503, "busy\nnow")), Asker()
    answer = with_client(fake, ask, retries=2)
    assert answer.value is None and "answered 503: busy now; 3 attempts" in answer.reason
    assert ask.counted == {"calls": 1, "retries": 2, "failures": 1}


@pytest.mark.parametrize("code", [400, 403, 413, 422])
def test_what_one_question_is_refused_for_is_not_retried(code):
    fake, ask = Fake(lambda request: status(code, "too long")), Asker()
    answer = with_client(fake, ask)
    assert answer.value is None and "too long" in answer.reason
    assert ask.counted == {"calls": 1, "failures": 1}


def test_huge_answers_are_cut_off():
    sent = 0

    async def huge(request):
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1_000):
            await response.write(b" " * 100_000)
            sent += 100_000
        return response

    fake, ask = Fake(huge), Asker()
    answer = with_client(fake, ask, max_answer_bytes=50_000)
    assert answer.reason == "external model answered more than 50000 bytes"
    assert ask.counted == {"calls": 1, "failures": 1} and sent < 20_000_000


@pytest.mark.parametrize("text", ["", "Yes!", "yes and no", "y" * 50_000, None, ["yes"], 7])
def test_answers_that_are_not_clean_are_invalid_and_never_kept(text, tmp_path):
    fake, ask = Fake(lambda request: completion(text)), Asker()
    answer = with_client(fake, ask, cache=str(tmp_path))
    assert answer.value is None and answer.reason.startswith("not clean")
    assert ask.counted == {**CALLED, "invalid": 1}
    assert not list(tmp_path.rglob("*.json"))


def test_usage_that_makes_no_sense_counts_nothing():
    fake, ask = Fake(lambda request: completion("yes", prompt_tokens="many")), Asker()
    with_client(fake, ask)
    assert ask.counted == {"calls": 1, "output_tokens": 2}


def test_retry_after_holds_back_every_request():
    fake = Fake(lambda request: status(429, Retry_After="0.3"), "yes")
    ask = Asker(*map(str, range(4)))
    got = with_client(fake, ask, max_concurrency=1)
    assert [answer.value for answer in got] == ["yes"] * 4 and len(fake.times) == 5
    assert min(fake.times[1:]) - fake.times[0] >= 0.29


def test_retry_after_is_read_in_seconds_and_as_a_date():
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert answers.pause_seconds("1.5") == 1.5 and 57 < answers.pause_seconds(date) < 61
    for header in (None, "", "-3", "soon", "nan", "Wed, 99 Foo"):
        assert answers.pause_seconds(header) == 0.0
    fake, ask = Fake(lambda request: status(429, Retry_After="3600")), Asker()
    assert "asks to wait 3600 s" in with_client(fake, ask).reason and len(fake.bodies) == 1


def test_rate_and_concurrency_are_limited():
    async def brief(request):
        await asyncio.sleep(0.02)
        return "yes"

    fake = Fake(brief)
    with_client(fake, Asker(*map(str, range(8))), requests_per_second=40.0)
    gaps = [b - a for a, b in zip(fake.times, fake.times[1:], strict=False)]
    assert sum(gaps) >= 0.17 and max(gaps) < 0.2
    with_client(fake, Asker(*map(str, range(20))), max_concurrency=3)
    assert fake.most_at_once == 3


def test_equal_questions_are_paid_once_also_at_once_and_in_the_next_run(tmp_path):
    fake, ask = Fake("yes"), Asker("a", "a", "a", "b")
    with_client(fake, ask, cache=str(tmp_path))
    assert len(fake.bodies) == 2
    assert ask.counted == {"calls": 2, "input_tokens": 22, "output_tokens": 4, "cached": 2}
    again = Asker("b", "a")
    with_client(fake, again, cache=str(tmp_path))
    assert len(fake.bodies) == 2 and again.counted == {"cached": 2}
    with_client(fake, Asker("a"), cache=str(tmp_path), model="other")
    with_client(fake, Asker("a"), cache=str(tmp_path), parameters={"seed": 1})
    assert len(fake.bodies) == 4


def test_a_torn_or_foreign_cache_file_is_asked_again_and_replaced(tmp_path):
    cache, name = AnswerCache(tmp_path), content_hash({"b": 1, "a": [2]})
    assert name == content_hash({"a": [2], "b": 1})
    cache.save(name, "half a surrogate \ud800")
    assert cache.load(name) == "half a surrogate \ud800"
    (path,) = tmp_path.rglob("*.json")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    for garbage in ("", '{"te', "[]", '{"text": 3}', "[" * 100_000):
        path.write_text(garbage)
        assert cache.load(name) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(ExternalError, match="no folder for cached answers"):
        AnswerCache(tmp_path / "file" / "cache")


def fails(fake, use, match, **options):
    with pytest.raises(ExternalError, match=match) as error:
        with_client(fake, use, **options)
    assert "\n" not in str(error.value) and KEY not in repr(error.value)
    assert error.value.__context__ is None  # whose traceback could show a request
    return str(error.value)


@pytest.mark.parametrize(
    "code, match",
    [
        (401, "refused the key in TEST_KEY"),
        (404, "has no model 'm', or the URL is wrong"),
        (307, "set the URL it redirects to"),
    ],
)
def test_settings_that_cannot_work_stop_the_run(code, match):
    fails(Fake(lambda request: status(code, "x", Location="http://127.0.0.1:9/")), Asker(), match)


def test_check_finds_any_trouble_before_the_run():
    def check(client):
        return client.check()

    assert with_client(Fake("whatever"), check) is None
    fails(Fake(lambda request: status(400, "m is no model")), check, "answered 400: m is no model")
    fails(Fake(lambda request: status(403)), check, "refused the key in TEST_KEY")
    unreachable = fails(Fake(), check, "gave no answer", url="http://127.0.0.1:9/v1")
    assert "http://127.0.0.1:9/v1/chat/completions" in unreachable and len(unreachable) < 250


def test_an_endpoint_that_is_gone_stops_the_run(monkeypatch):
    monkeypatch.setattr(chat, "GIVE_UP", 3)
    gone = Fake(lambda request: status(500, "gone"))
    with_client(gone, Asker("1", "2"), retries=0)
    fails(gone, Asker("1", "2", "3"), "3 calls in a row failed, the last: .*gone", retries=0)


@pytest.mark.parametrize(
    "url", ["", "host/v1", "ftp://host", "http://", "http://a:b:c", "http://["]
)
def test_addresses_that_are_none(url):
    with pytest.raises(ExternalError, match="like https://HOST/v1"):
        ChatClient(Endpoint(url, "m", key_env=""))
    with pytest.raises(ExternalError, match="has to be named"):
        ChatClient(Endpoint("http://host/v1", "", key_env=""))


def test_keys_come_from_the_environment_alone(monkeypatch):
    for url in ("https://user:hunter2@host/v1", "https://host/v1?key=hunter2"):
        with pytest.raises(ExternalError, match="environment variable") as error:
            ChatClient(Endpoint(url, "m"))
        assert "hunter2" not in str(error.value)
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(ExternalError, match="expected in TEST_KEY, which is not set"):
        ChatClient(Endpoint("http://host/v1", "m", key_env="TEST_KEY"))
    fake = Fake("yes")
    with_client(fake, Asker(), key_env="")
    assert "Authorization" not in fake.requests[0].headers
    monkeypatch.setenv("TEST_KEY", "key with\ttab")
    with pytest.raises(ExternalError, match="no HTTP header can carry"):
        ChatClient(Endpoint("http://host/v1", "m", key_env="TEST_KEY"))


def test_the_key_is_nowhere_even_if_the_endpoint_repeats_it(tmp_path, caplog, capsys):
    caplog.set_level(logging.DEBUG)

    def echo(request):
        return completion(f"yes {request.headers['Authorization']}")

    def kept(text):
        return text, ""

    async def use(client):
        options = {"counters": Counters(), "purpose": "test"}
        answer = await client.ask("?", read=kept, **options)
        return answer, f"{vars(client)} {client.endpoint}"

    answer, inside = with_client(Fake(echo), use, cache=str(tmp_path))
    assert answer.value == "yes Bearer [hidden]" and KEY not in inside
    refused = Fake(lambda request: status(401, f"bad key {KEY}"))
    assert "bad key [hidden]" in fails(refused, Asker(), "refused")
    files = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "yes Bearer" in files and KEY not in files
    assert KEY not in caplog.text and KEY not in "".join(capsys.readouterr())
