"""A client of the policy servers: SGLang's HTTP API, tokens in and tokens out.

It imports no JAX, so that whatever samples (rollouts, evaluation) stays free of accelerators.
Every request carries token ids and gets back the sampled ids with the log-probs that the server
used to sample them; these are the behaviour policy's numbers and are never recomputed.
"""

import asyncio
import itertools
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

CONTROL_TIMEOUT = 120.0  # seconds: an update loads a checkpoint
BACKOFF = 0.2  # seconds before the first retry; doubles each time


class PolicyServerError(RuntimeError):
    """A policy server failed; the message is one line for the user."""


class ServerUnreachable(PolicyServerError):
    """No answer from a policy server after all retries."""


class RequestRejected(PolicyServerError):
    """The request itself is wrong: asking again would not help."""


@dataclass(frozen=True)
class Generation:
    """Sampled tokens (the stop token included) and what the server says of them.

    `versions` holds runs of (weight version, number of tokens): two runs when the weights changed
    while the request was in flight.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # "stop" | "length" | "abort"
    versions: tuple[tuple[str, int], ...] = ()


class PolicyClient:
    """Async context manager over one or several servers that hold the same weights."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        vocab_size: int,
        context_length: int,
        max_concurrency: int = 256,
        timeout: float = 300.0,
        retries: int = 4,
        api_key_env: str = "SERA_API_KEY",
        admin_key_env: str = "SERA_ADMIN_API_KEY",
    ):
        self.urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        if not self.urls:
            raise ValueError("PolicyClient needs at least one server URL")
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.retries = retries
        self.counters = dict.fromkeys(
            ("requests", "retries", "prompt_tokens", "completion_tokens", "cached_tokens"), 0
        )
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=10.0)
        self._slots = asyncio.Semaphore(max_concurrency)
        self._headers = _headers(api_key_env)
        self._admin_headers = _headers(admin_key_env) if admin_key_env in os.environ else {}
        # An abort matches request ids by prefix: all of ours have one width.
        self._rids = (f"{os.urandom(8).hex()}{n:012x}" for n in itertools.count())
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "PolicyClient":
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self

    async def __aexit__(self, *_) -> None:
        await self._session.close()

    # ---- sampling ------------------------------------------------------------------------------

    async def generate(
        self,
        input_ids: Sequence[int],
        *,
        temperature: float,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        seed: int,
        sticky: str = "",
    ) -> Generation:
        """Samples a continuation of `input_ids`; `sticky` names the tree, to reuse its cache."""
        room = self._check(input_ids)
        sampling = {
            "temperature": temperature,
            "max_new_tokens": min(max_new_tokens, room),
            "stop_token_ids": list(stop_token_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "sampling_seed": seed,
        }
        body = {"input_ids": list(input_ids), "sampling_params": sampling, "return_logprob": True}
        answer = await self._ask(body, sticky)
        return _generation(answer["meta_info"])

    async def score(self, input_ids: Sequence[int], *, sticky: str = "") -> list[float]:
        """Log-probs of `input_ids[1:]` given the ids before each, at temperature 1."""
        self._check(input_ids)
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = await self._ask(body, sticky)
        return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]

    def _check(self, input_ids: Sequence[int]) -> int:
        """Room left for new tokens. An id outside the vocabulary kills a real server."""
        if not input_ids:
            raise RequestRejected("generate: input_ids is empty")
        low, high = min(input_ids), max(input_ids)
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise RequestRejected(
                f"generate: token id {bad} is outside the vocabulary of {self.vocab_size}; "
                "does the tokenizer belong to this model?"
            )
        room = self.context_length - len(input_ids)
        if room < 1:
            raise RequestRejected(
                f"generate: a prompt of {len(input_ids)} tokens leaves no room in the context "
                f"of {self.context_length}; end the conversation earlier"
            )
        return room

    async def _ask(self, body: dict, sticky: str) -> dict:
        """POST /generate with retries; an aborted answer is partial, so it is asked again."""
        url = self.urls[zlib.crc32(sticky.encode()) % len(self.urls)]
        problem, answer = "", None
        for attempt in range(self.retries + 1):
            if attempt:
                self.counters["retries"] += 1
                await asyncio.sleep(BACKOFF * 2 ** (attempt - 1))
            body["rid"] = next(self._rids)
            try:
                async with self._slots:
                    status, data = await self._post(f"{url}/generate", body)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = _describe(error)
                continue
            if status == 200:
                answer = json.loads(data)
                if answer["meta_info"]["finish_reason"]["type"] != "abort":
                    break
            elif status < 500 and status not in (408, 429):
                raise RequestRejected(f"{url}/generate answered {status}: {_message(data)}")
            else:
                problem = f"answered {status}: {_message(data)}"
        if answer is None:
            raise ServerUnreachable(
                f"policy server {url} did not answer ({problem}; {self.retries + 1} attempts): "
                "is it running, and is the URL right?"
            )
        self._count(answer["meta_info"])
        return answer

    async def _post(self, url: str, body: dict) -> tuple[int, bytes]:
        data = json.dumps(body, separators=(",", ":")).encode()
        async with self._session.post(
            url, data=data, headers=self._headers, timeout=self._timeout
        ) as response:
            return response.status, await response.read()

    def _count(self, meta: dict) -> None:
        self.counters["requests"] += 1
        for key in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            self.counters[key] += meta.get(key) or 0

    # ---- control: every call goes to every server, with a timeout --------------------------------

    async def health(self) -> bool:
        """True when every server answers /health."""
        try:
            answers = await self._everywhere("GET", "/health", timeout=10.0)
        except PolicyServerError:
            return False
        return all(status == 200 for status, _ in answers)

    async def model_info(self) -> list[dict]:
        """What each server says of its model, weight version included."""
        answers = await self._everywhere("GET", "/model_info", timeout=30.0)
        return [
            _accepted(url, "/model_info", *a) for url, a in zip(self.urls, answers, strict=True)
        ]

    async def flush_cache(self) -> None:
        """Drops cached prefixes. A server with waiting requests may decline; an update flushes."""
        await self._everywhere("GET", "/flush_cache", admin=True)

    async def abort_all(self) -> None:
        body = {"rid": "", "abort_all": True}
        await self._everywhere("POST", "/abort_request", body, admin=True)

    async def update_weights(self, path: str, version: str) -> None:
        """Puts a checkpoint on all servers: pause, flush, load, verify, continue.

        "retract" puts running requests back in the queue: they resume on the new weights, with a
        fresh cache, and their answers name both versions.
        """
        await self._command("/pause_generation", {"mode": "retract"})
        try:
            await self.flush_cache()
            body = {"model_path": str(path), "weight_version": version, "flush_cache": True}
            await self._command("/update_weights_from_disk", body)
            await self._verify(version)
        finally:
            await self._command("/continue_generation", {})

    async def _verify(self, version: str) -> None:
        for url, info in zip(self.urls, await self.model_info(), strict=True):
            if info["weight_version"] != version:
                raise PolicyServerError(
                    f"{url} serves weights {info['weight_version']!r} after an update to "
                    f"{version!r}: stop and look at its log"
                )

    async def _command(self, path: str, body: dict) -> None:
        answers = await self._everywhere("POST", path, body, admin=True)
        for url, answer in zip(self.urls, answers, strict=True):
            _accepted(url, path, *answer)

    async def _everywhere(
        self, method: str, path: str, body=None, *, timeout=CONTROL_TIMEOUT, admin=False
    ) -> list[tuple[int, bytes]]:
        calls = (self._control(url, method, path, body, timeout, admin) for url in self.urls)
        return list(await asyncio.gather(*calls))

    async def _control(self, url, method, path, body, timeout, admin) -> tuple[int, bytes]:
        headers = self._headers | (self._admin_headers if admin else {})
        data = None if body is None else json.dumps(body).encode()
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._session.request(
                method, url + path, data=data, headers=headers, timeout=limit
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ServerUnreachable(
                f"policy server {url} did not answer {path} ({_describe(error)})"
            ) from None


def _headers(key_env: str) -> dict[str, str]:
    key = os.environ.get(key_env)
    headers = {"Content-Type": "application/json"}
    return headers | {"Authorization": f"Bearer {key}"} if key else headers


def _generation(meta: dict) -> Generation:
    tokens = meta["output_token_logprobs"]
    versions = meta.get("weight_versions") or [
        {"version": meta.get("weight_version", ""), "start": 0, "end": len(tokens)}
    ]
    return Generation(
        token_ids=tuple(entry[1] for entry in tokens),
        logprobs=tuple(entry[0] for entry in tokens),
        finish_reason=meta["finish_reason"]["type"],
        versions=tuple((v["version"], v["end"] - v["start"]) for v in versions),
    )


def _accepted(url: str, path: str, status: int, data: bytes) -> dict:
    if status != 200:
        raise PolicyServerError(f"{url}{path} answered {status}: {_message(data)}")
    return json.loads(data)


def _message(data: bytes) -> str:
    """The server's own words, in one short line, whatever the shape of its error."""
    try:
        answer = json.loads(data)
        error = answer.get("error", answer.get("message", answer))
        text = error.get("message", str(error)) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        text = data.decode(errors="replace")
    return " ".join(text.split())[:300]


def _describe(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
