"""A client of an external model: any endpoint that speaks OpenAI's chat completions over HTTP.

It asks one question at a time and reads the answer strictly: an answer that its reader does not
accept is no answer. What fails for one question alone is reported in the `Answer` and counted;
what would fail for all of them raises ExternalError, so that a run without labels does not go on.

The key is read from the environment when a request is sent; it is in no attribute, and whatever
the endpoint says is stripped of it. Accepted answers are kept on disk by content.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import yarl

from sera_jax.external.answers import (
    AnswerCache,
    Completion,
    ExternalError,
    content_hash,
    error_text,
    pause_seconds,
    read_completion,
)
from sera_jax.redaction import HIDDEN
from sera_jax.supervision import Counters

BACKOFF = 0.5  # seconds before the first retry; doubles each time, with jitter
LONGEST_BACKOFF = 30.0
LONGEST_WAIT = 120.0  # seconds; an endpoint that asks for a longer pause has failed
GIVE_UP = 25  # calls failed in a row, after which the endpoint is taken to be gone
SHORTEST_SECRET = 8  # characters; shorter keys are stand-ins such as "none", and words besides
_RETRIED = frozenset({408, 409, 425, 429})


class _CallFailed(Exception):
    """This call got no usable answer; others may."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where an external model answers, and how hard it may be pressed. Holds no secret.

    `url` ends before "/chat/completions". `parameters` go into every request and win over those of
    the call; None removes one (some models want `max_completion_tokens` for `max_tokens`).
    """

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"  # "": an endpoint without a key
    timeout: float = 60.0  # seconds a request
    retries: int = 8
    requests_per_second: float = 0.0  # 0: no limit
    max_concurrency: int = 16
    max_answer_bytes: int = 1 << 20
    cache: str = ""  # folder; "": nothing is kept
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Answer:
    """`value` is None where there is no usable answer; `reason` then says why."""

    value: Any
    text: str = ""
    reason: str = ""


# Text of an answer -> (what it means or None, why not).
Read = Callable[[str], tuple[Any, str]]


class ChatClient:
    """Async context manager; `check` before a long run finds a wrong setting at once."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self._url = _address(endpoint.url)
        if not endpoint.model:
            raise ExternalError(f"the external model at {self._url} has to be named (model)")
        self._cache = AnswerCache(endpoint.cache) if endpoint.cache else None
        self._timeout = aiohttp.ClientTimeout(total=endpoint.timeout, connect=10.0)
        self._slots = asyncio.Semaphore(endpoint.max_concurrency)
        self._same: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._jitter = random.Random()  # its own: it must not move anyone else's sequence
        self._free_at = 0.0  # when the next request may start, by the event loop's clock
        self._failed_in_a_row = 0
        self._session: aiohttp.ClientSession | None = None
        self._key()

    async def __aenter__(self) -> "ChatClient":
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self

    async def __aexit__(self, *_) -> None:
        await self._session.close()

    async def check(self) -> None:
        """One short question; raises ExternalError when it gets no answer."""
        body = self._body("Answer with the word yes.", {"temperature": 0.0, "max_tokens": 16})
        problem = ""
        try:
            await self._complete(body, Counters(), "check", retries=2)
        except _CallFailed as error:
            problem = str(error)
        if problem:
            raise ExternalError(problem)

    async def ask(
        self, question: str, *, read: Read, counters: Counters, purpose: str, **parameters: Any
    ) -> Answer:
        """The answer to `question` as `read` understands it. The same question is paid once."""
        body = self._body(question, parameters)
        name = content_hash(body)
        async with self._one_at_a_time(name):
            text = self._cache.load(name) if self._cache else None
            if text is not None and (value := read(text)[0]) is not None:
                counters.add(purpose, calls=0, cached=1)
                return Answer(value, text)
            counters.add(purpose)
            try:
                completion = await self._complete(body, counters, purpose, self.endpoint.retries)
            except _CallFailed as error:
                problem = str(error)
            else:
                self._failed_in_a_row = 0
                return self._answer(completion, name, read, counters, purpose)
            counters.add(purpose, calls=0, failures=1)
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= GIVE_UP:
                raise ExternalError(f"{GIVE_UP} calls in a row failed, the last: {problem}")
            return Answer(None, "", problem)

    def _answer(
        self, completion: Completion, name: str, read: Read, counters: Counters, purpose: str
    ) -> Answer:
        value, reason = read(completion.text)
        counters.add(
            purpose,
            calls=0,
            input_tokens=completion.input_tokens,
            output_tokens=completion.output_tokens,
            invalid=value is None,
        )
        if value is None:
            return Answer(None, completion.text, reason or "the answer cannot be used")
        if self._cache:
            self._cache.save(name, completion.text)
        return Answer(value, completion.text)

    def _body(self, question: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}]
        merged = {**parameters, **self.endpoint.parameters}
        kept = {key: value for key, value in merged.items() if value is not None}
        return {"model": self.endpoint.model, "messages": messages, **kept}

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, name: str):
        """Of equal questions asked at once, the later ones find the first one's answer kept."""
        if not self._cache:
            yield
            return
        lock = self._same.setdefault(name, asyncio.Lock())
        async with lock:
            yield

    # ---- one question on the wire --------------------------------------------------------------

    async def _complete(
        self, body: dict, counters: Counters, purpose: str, retries: int
    ) -> Completion:
        data, problem = json.dumps(body).encode(), ""
        for attempt in range(retries + 1):
            if attempt:
                counters.add(purpose, calls=0, retries=1)
                await asyncio.sleep(self._backoff(attempt))
            try:
                async with self._slots:
                    await self._turn()
                    status, retry_after, answer = await self._post(data)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = _one_line(str(error)) or f"nothing came in {self._timeout.total:g} s"
                continue
            said = _one_line(error_text(answer))
            if 200 <= status < 300:
                completion = read_completion(answer)
                if completion:
                    return completion
                problem = f"answered {status}, but with no chat completion: {said}"
            elif status in _RETRIED or status >= 500:
                self._pause(retry_after)
                problem = f"answered {status}: {said}"
            else:
                raise self._refusal(status, said)
        raise _CallFailed(
            f"external model at {self._url} gave no answer ({problem}; {retries + 1} attempts): "
            "is the URL right, and is it running?"
        )

    async def _post(self, data: bytes) -> tuple[int, str | None, bytes]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        limit = self.endpoint.max_answer_bytes
        async with self._session.post(
            self._url, data=data, headers=headers, timeout=self._timeout, allow_redirects=False
        ) as response:
            answer = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                answer += chunk
                if len(answer) > limit:
                    response.close()
                    raise _CallFailed(f"external model answered more than {limit} bytes")
            # An endpoint that repeats the key must not get it into a log or the cache.
            if len(key) >= SHORTEST_SECRET:
                answer = answer.replace(key.encode(), HIDDEN.encode())
            return response.status, response.headers.get("Retry-After"), bytes(answer)

    async def _turn(self) -> None:
        """Waits until the rate limit, and a pause that the endpoint asked for, allow a request."""
        clock = asyncio.get_running_loop().time
        while (wait := self._free_at - clock()) > 0:
            await asyncio.sleep(wait)
        rate = self.endpoint.requests_per_second
        self._free_at = clock() + (1.0 / rate if rate > 0 else 0.0)

    def _pause(self, retry_after: str | None) -> None:
        """Holds all requests back for as long as the endpoint asks."""
        wait = pause_seconds(retry_after)
        if wait > LONGEST_WAIT:
            raise _CallFailed(
                f"external model at {self._url} asks to wait {wait:.0f} s; at most "
                f"{LONGEST_WAIT:.0f} s are waited"
            )
        self._free_at = max(self._free_at, asyncio.get_running_loop().time() + wait)

    def _backoff(self, attempt: int) -> float:
        return min(BACKOFF * 2 ** (attempt - 1), LONGEST_BACKOFF) * self._jitter.uniform(0.5, 1.0)

    def _refusal(self, status: int, said: str) -> Exception:
        where, key_env = f"external model at {self._url}", self.endpoint.key_env
        if status in (401, 403):
            of = f"the key in {key_env}" if key_env else "a request without a key (key_env)"
            # 403 is also how some endpoints decline what one question says.
            kind = ExternalError if status == 401 else _CallFailed
            return kind(f"{where} refused {of} ({status}: {said})")
        if status == 404:
            model = self.endpoint.model
            return ExternalError(f"{where} has no model {model!r}, or the URL is wrong ({said})")
        if status < 400:
            return ExternalError(f"{where} answered {status}: set the URL it redirects to")
        return _CallFailed(f"{where} answered {status}: {said}")

    def _key(self) -> str:
        name = self.endpoint.key_env
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ExternalError(
                f"the key of the external model is expected in {name}, which is not set: export "
                "it, or set key_env to another variable, or to '' where no key is needed"
            )
        if not (key.isascii() and key.isprintable()):
            raise ExternalError(f"the key in {name} holds characters that no HTTP header can carry")
        return key


def _address(url: str) -> yarl.URL:
    try:
        base = yarl.URL(url.removesuffix("/").removesuffix("/chat/completions"))
    except ValueError:
        base = yarl.URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise ExternalError("the URL of the external model has to be like https://HOST/v1")
    if base.user or base.password or base.query:
        raise ExternalError(
            "the URL of the external model holds a user, password or query: put the key into an "
            "environment variable and name that one (key_env)"
        )
    return base / "chat/completions"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
