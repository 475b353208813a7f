"""A client of the policy servers: SGLang's HTTP API, tokens in and tokens out.

It imports no JAX, so that whatever samples (rollouts, evaluation) stays free of accelerators.
Every request carries token ids and gets back the sampled ids with the log-probs that the server
used to sample them; these are the behaviour policy's numbers and are never recomputed.

What is asked again, under a fresh id, up to `retries` times: requests without an answer, statuses
of 500 and above, answers that cannot be used (answers.py). Where there are several servers another
one is asked then. 429 and 503 are waited out, as the server's Retry-After says, and count as no
failure. A server that fails is tested before it is used again (fleet.py).

Partial answers. An aborted request comes back with the tokens it had. They are kept, and the next
attempt continues after them, where they are sound and of weights that are still accepted; the
answer then has several runs in `versions`. Else they are dropped and the request starts anew.

Weight versions. An answer is accepted with tokens of the version that all servers held when its
request was first sent, or of a later one. Any other is refused, counted as `stale`, and its server
gets the present weights again before it is asked anything: it was restarted with old ones.
"""

import asyncio
import itertools
import json
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiohttp

from sera_jax.serving import answers
from sera_jax.serving.answers import Generation, Malformed
from sera_jax.serving.control import (
    CONTROL_TIMEOUT,
    FAILED,
    Probe,
    Server,
    Weights,
    describe,
    words,
)
from sera_jax.serving.errors import (
    PolicyServerError,
    RequestRejected,
    ServerUnreachable,
)
from sera_jax.serving.fleet import Fleet, Keeper
from sera_jax.serving.token_text import token_text

T = TypeVar("T")

BACKOFF = 0.2  # seconds before the first retry; doubles each time
LONGEST_BACKOFF = 10.0
LONGEST_RETRY_AFTER = 30.0  # of a server that asks for more
FAULTS = 3  # answers in a row that cannot be used, until a server is tested
UPDATES = 3  # times that an update is tried
COUNTERS = (
    "requests",  # answered and used
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "retries",  # attempts after the first one
    "failures",  # attempts without an answer, timeouts included, or answered with 500 and above
    "timeouts",
    "malformed",
    "busy",  # 429 and 503
    "stale",  # answers of weights that are no longer accepted
    "aborted",
    "resumed",  # aborted ones that were continued
    "given_up",  # requests that failed for good
    "outages",  # times that a server was away
    "resyncs",  # times that a server had to be given the present weights again
    "seconds_waited",  # of all requests, while no server was up
)


class _Busy(Exception):
    """429 or 503."""

    def __init__(self, retry_after: str):
        """`retry_after` as the server says it: seconds, or anything else."""
        self.seconds = min(float(retry_after), LONGEST_RETRY_AFTER) if _number(retry_after) else 0


class _Failed(Exception):
    """A status of 500 and above."""


class _Stale(Exception):
    """An answer of weights that are no longer accepted."""


class _Aborted(Exception):
    """The request was ended before it was done."""


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
        total_timeout: float = 3600.0,
        retries: int = 4,
        patience: float = 600.0,
        keeper: Keeper | None = None,
        api_key_env: str = "SERA_API_KEY",
        admin_key_env: str = "SERA_ADMIN_API_KEY",
    ):
        """`timeout` is an attempt's, `total_timeout` that of a request, waiting included.

        `patience` is how long to wait while no server is up, unless `keeper`, who restarts them,
        gives them up earlier (fleet.py).
        """
        self.urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        if not self.urls:
            raise ValueError("PolicyClient needs at least one server URL")
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.retries, self.patience, self.keeper = retries, patience, keeper
        self.counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        headers = _headers(api_key_env)
        admin = _headers(admin_key_env) if admin_key_env in os.environ else headers
        servers = [Server(url, headers, admin) for url in self.urls]
        self.fleet = Fleet(servers, self.counters, patience=patience, keeper=keeper)
        # To connect may take long where 500 trees begin at once and keep this process busy.
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=CONTROL_TIMEOUT)
        self._total_timeout = total_timeout
        self._slots = asyncio.Semaphore(max_concurrency)
        self._held: Weights | None = None  # by all servers that are up
        self._ages: dict[str, int] = {}  # version -> its number among all that were put on them
        self._numbers = itertools.count()
        # An abort matches request ids by prefix: all of ours have one width.
        self._rids = (f"{os.urandom(8).hex()}{n:012x}" for n in itertools.count())
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "PolicyClient":
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        for server in self.fleet.servers:
            server.session = self._session
        return self

    async def __aexit__(self, *_) -> None:
        await self.fleet.close()
        await self._session.close()

    def record(self) -> dict[str, float]:
        """All counters, those of whoever restarts the servers included."""
        return {**self.counters, **(self.keeper.counters if self.keeper else {})}

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
        room, text = self._check(input_ids)
        wanted = min(max_new_tokens, room)
        oldest = self._ages[self._held.version] if self._held else -1
        parts: list[Generation] = []  # of aborted attempts, one after the other

        async def attempt(server: Server) -> Generation:
            before = [token for part in parts for token in part.token_ids]
            sampling = {
                "temperature": temperature,
                "max_new_tokens": wanted - len(before),
                "stop_token_ids": list(stop_token_ids),
                "skip_special_tokens": False,
                "no_stop_trim": True,
                # Not the same noise again after tokens that it has given already.
                "sampling_seed": (seed + 0x9E3779B1 * len(before)) & 0x7FFFFFFF,
            }
            prompt = token_text((*input_ids, *before))[0] if before else text
            size = len(input_ids) + len(before)
            meta = await self._ask(server, prompt, size, sampling_params=sampling)
            got = answers.read_generation(
                meta, vocab_size=self.vocab_size, max_new_tokens=wanted - len(before)
            )
            if any(self._ages.get(version, -1) < oldest for version, _ in got.versions):
                raise _Stale(f"answers with weights {got.versions[0][0]!r}")
            if got.finish_reason == "abort":
                self.counters["aborted"] += 1
                if got.token_ids and len(before) + len(got.token_ids) < wanted:
                    self.counters["resumed"] += 1
                    parts.append(got)
                raise _Aborted("the server aborted the request")
            self._count(meta)
            return answers.joined([*parts, got])

        return await self._until_answered(attempt, sticky)

    async def score(self, input_ids: Sequence[int], *, sticky: str = "") -> list[float]:
        """Log-probs of `input_ids[1:]` given the ids before each, at temperature 1."""
        _, text = self._check(input_ids)

        async def attempt(server: Server) -> list[float]:
            sampling = {"max_new_tokens": 0, "temperature": 1.0}
            asked = {"sampling_params": sampling, "logprob_start_len": 0}
            meta = await self._ask(server, text, len(input_ids), **asked)
            scores = answers.read_scores(meta, input_ids)
            self._count(meta)
            return scores

        return await self._until_answered(attempt, sticky)

    def _check(self, input_ids: Sequence[int]) -> tuple[int, str]:
        """Room left for new tokens, and the ids as JSON.

        An id outside the vocabulary kills a real server.
        """
        if not input_ids:
            raise RequestRejected("generate: input_ids is empty")
        text, low, high = token_text(input_ids)
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
        return room, text

    async def _until_answered(self, attempt: Callable[[Server], Awaitable[T]], sticky: str) -> T:
        tried: set[Server] = set()
        failed, waited, problem = 0, 0.0, "it was never sent"
        try:
            async with asyncio.timeout(self._total_timeout):
                while failed <= self.retries and waited <= self.patience:
                    async with self._slots:
                        server = await self.fleet.route(sticky, tried)
                        try:
                            answer = await attempt(server)
                            server.faults = 0
                            return answer
                        except _Busy as busy:
                            delay, problem = busy.seconds or _backoff(3), "busy"
                            waited += delay
                            self.counters["busy"] += 1
                        except (*FAILED, _Failed, _Stale, _Aborted, Malformed) as error:
                            failed, problem = failed + 1, self._failure(server, error)
                            delay = _backoff(failed)
                    tried.add(server)
                    self.counters["retries"] += 1
                    await asyncio.sleep(delay)
        except TimeoutError:
            problem = f"{problem}; given up after {self._total_timeout:g} s"
        except PolicyServerError:
            self.counters["given_up"] += 1
            raise
        self.counters["given_up"] += 1
        raise ServerUnreachable(
            f"no policy server answered a request ({problem}; {failed} failed attempts): is "
            f"{', '.join(self.urls)} running, and is the URL right?"
        )

    def _failure(self, server: Server, error: Exception) -> str:
        """Counts a failed attempt, and has its server tested where that seems wise."""
        problem = describe(error)
        if isinstance(error, _Aborted):
            return problem
        if isinstance(error, FAILED):
            self.counters["failures"] += 1
            self.counters["timeouts"] += isinstance(error, TimeoutError)
        elif isinstance(error, _Stale):
            self.counters["stale"] += 1
        else:
            self.counters["malformed" if isinstance(error, Malformed) else "failures"] += 1
            server.faults += 1
            if server.faults < min(FAULTS, self.retries + 1):
                return problem
        self.fleet.suspect(server, problem)
        return problem

    async def _ask(self, server: Server, prompt: str, size: int, **body: Any) -> dict[str, Any]:
        """`meta_info` of one attempt with a prompt of `size` ids, written as JSON."""
        body |= {"rid": next(self._rids), "return_logprob": True}
        rest = json.dumps(body, separators=(",", ":"))
        data = f'{{"input_ids":{prompt},{rest[1:]}'.encode()
        status, headers, data = await server.generate(data, self._timeout)
        if status == 200:
            return answers.read_meta(data, size)
        if status in (429, 503):
            raise _Busy(headers.get("Retry-After", ""))
        if status >= 500 or status == 408:
            raise _Failed(f"answered {status}: {words(data)}")
        raise RequestRejected(f"{server.url}/generate answered {status}: {words(data)}")

    def _count(self, meta: dict[str, Any]) -> None:
        self.counters["requests"] += 1
        for key in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            self.counters[key] += meta.get(key) or 0

    # ---- control: every call goes to every server, with a timeout --------------------------------

    async def health(self) -> bool:
        """True when every server says which model it serves, paused or not."""
        try:
            await asyncio.gather(*(server.info(timeout=10.0) for server in self.fleet.servers))
        except PolicyServerError:
            return False
        return True

    async def check_context(self) -> None:
        """Raises where a server refuses prompts that this client lets pass."""
        for server in self.fleet.servers:
            limit = (await server.limits())["max_req_input_len"]
            if limit < self.context_length:
                raise PolicyServerError(
                    f"{server.url} takes prompts of less than {limit} tokens, and a context of "
                    f"{self.context_length} is configured: start it with "
                    f"--context-length={self.context_length + 6} or more"
                )

    async def abort_all(self) -> None:
        body = {"rid": "", "abort_all": True}
        calls = (server.call("POST", "/abort_request", body) for server in self.fleet.servers)
        await asyncio.gather(*calls)

    async def update_weights(self, path: str, version: str, probe: Probe | None = None) -> None:
        """Puts a checkpoint on all servers, verified on each; returns when one at least has it.

        A server that is away gets it before it is asked anything again. UpdateRefused where a
        server does not take it after several attempts; all are then asked to continue.
        """
        weights = Weights(path, version, probe)
        self._announce(weights)
        outcomes = await asyncio.gather(
            *(self._update(server, weights) for server in self.fleet.up), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        await self.fleet.some_up()
        self._held = weights

    async def _update(self, server: Server, weights: Weights) -> None:
        for attempt in range(1, UPDATES + 1):
            try:
                async with server.lock:
                    return await server.put(weights)
            except ServerUnreachable as error:
                return self.fleet.suspect(server, str(error))
            except PolicyServerError:
                if attempt == UPDATES:
                    raise
            await asyncio.sleep(_backoff(attempt))

    def adopt(self, weights: Weights) -> None:
        """`weights` are on all servers: another process has put them there."""
        self._announce(weights)
        self._held = weights

    def _announce(self, weights: Weights) -> None:
        self._ages[weights.version] = next(self._numbers)
        self.fleet.target = weights


def _headers(key_env: str) -> dict[str, str]:
    key = os.environ.get(key_env)
    headers = {"Content-Type": "application/json"}
    return headers | {"Authorization": f"Bearer {key}"} if key else headers


def _backoff(attempt: int) -> float:
    """Seconds after the attempt of that number, spread out so that not all come back at once."""
    return min(BACKOFF * 2 ** (attempt - 1), LONGEST_BACKOFF) * random.uniform(0.5, 1.0)


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
