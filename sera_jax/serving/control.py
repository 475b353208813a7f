"""One policy server over HTTP: how requests reach it, and how weights do.

An update pauses the server, flushes, loads, reads the version back, continues, and compares the
server's log-probs of a fixed prompt with the trainer's own.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yarl

from sera_jax.serving import answers
from sera_jax.serving.errors import PolicyServerError, ServerUnreachable, UpdateRefused

CONTROL_TIMEOUT = 60.0  # seconds
UPDATE_TIMEOUT = 600.0  # an update loads a checkpoint
READS = ("/health", "/model_info", "/server_info")  # opened by the normal key
FAILED = (aiohttp.ClientError, OSError, TimeoutError)  # there was no whole answer


@dataclass(frozen=True)
class Probe:
    """A prompt and the trainer's log-probs of `ids[1:]`, by which weights are recognised.

    `tolerance` is that of the mean absolute difference.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float


@dataclass(frozen=True)
class Weights:
    """A checkpoint that servers can load, by its version."""

    path: str
    version: str
    probe: Probe | None = None


@dataclass(eq=False)
class Server:
    """One server; `up` and `faults` are kept by its fleet. The session comes with the client."""

    url: str
    headers: Mapping[str, str]
    admin_headers: Mapping[str, str]
    session: aiohttp.ClientSession | None = None
    up: bool = True
    faults: int = 0  # answers in a row that could not be used
    gap: float | None = None  # mean absolute difference at the last comparison of log-probs
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # of updates

    def __post_init__(self):
        self._generate = yarl.URL(f"{self.url}/generate")

    async def generate(
        self, body: bytes, timeout: aiohttp.ClientTimeout
    ) -> tuple[int, Mapping[str, str], bytes]:
        """-> status, headers, answer; raises one of FAILED where there is none."""
        async with self.session.post(
            self._generate, data=body, headers=self.headers, timeout=timeout
        ) as response:
            return response.status, response.headers, await response.read()

    async def call(
        self, method: str, path: str, body: Any = None, timeout: float = CONTROL_TIMEOUT
    ) -> tuple[int, bytes]:
        """A control call -> status, answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = self.headers if path in READS else self.admin_headers
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self.session.request(
                method, self.url + path, data=data, headers=headers, timeout=limit
            ) as response:
                return response.status, await response.read()
        except FAILED as error:
            raise ServerUnreachable(
                f"policy server {self.url} did not answer {path} ({describe(error)})"
            ) from None

    async def command(self, path: str, body: Any, timeout: float = CONTROL_TIMEOUT) -> None:
        """A control call that has to succeed."""
        status, data = await self.call("POST", path, body, timeout)
        answer = _object(data)
        if status != 200 or answer.get("success") is False:
            raise UpdateRefused(f"{self.url}{path} answered {status}: {words(data)}")

    async def info(self, timeout: float = 30.0) -> dict[str, Any]:
        """What it says of its model; "weight_version" is there."""
        status, data = await self.call("GET", "/model_info", None, timeout)
        answer = _object(data)
        if status != 200 or "weight_version" not in answer:
            raise PolicyServerError(f"{self.url}/model_info answered {status}: {words(data)}")
        return answer

    async def limits(self) -> dict[str, Any]:
        """What it takes; prompts are shorter than "max_req_input_len"."""
        status, data = await self.call("GET", "/server_info", timeout=30.0)
        answer = _object(data)
        if status != 200 or not isinstance(answer.get("max_req_input_len"), int):
            raise PolicyServerError(f"{self.url}/server_info answered {status}: {words(data)}")
        return answer

    async def put(self, weights: Weights) -> None:
        """Serves `weights` from here on; the caller holds `lock`.

        "retract" puts running requests back in the queue: they resume on the new weights, with a
        fresh cache, and their answers name both versions. However the update ends, the server is
        asked to continue.
        """
        await self.command("/pause_generation", {"mode": "retract"})
        try:
            await self.call("GET", "/flush_cache")  # it may decline; the update flushes again
            body = {
                "model_path": weights.path,
                "weight_version": weights.version,
                "flush_cache": True,
            }
            await self.command("/update_weights_from_disk", body, UPDATE_TIMEOUT)
            version = (await self.info())["weight_version"]
            if version != weights.version:
                raise UpdateRefused(
                    f"{self.url} serves weights {version!r} after an update to "
                    f"{weights.version!r}: stop and look at its log"
                )
        finally:
            await self.command("/continue_generation", {})
        await self.verify(weights.probe)

    async def verify(self, probe: Probe | None) -> None:
        """Raises unless the server answers, and gives the trainer's log-probs where known."""
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1}, "return_logprob": True}
        if probe:
            sampling = {"max_new_tokens": 0, "temperature": 1.0}
            body |= {"input_ids": probe.ids, "sampling_params": sampling, "logprob_start_len": 0}
        timeout = aiohttp.ClientTimeout(total=CONTROL_TIMEOUT)
        try:
            status, _, data = await self.generate(json.dumps(body).encode(), timeout)
            if status != 200:
                raise PolicyServerError(f"{self.url}/generate answered {status}: {words(data)}")
            meta = answers.read_meta(data, len(body["input_ids"]))
            if probe is None:
                answers.read_generation(meta, vocab_size=1 << 31, max_new_tokens=1)
                return
            scores = answers.read_scores(meta, probe.ids)
        except FAILED as error:
            raise ServerUnreachable(
                f"policy server {self.url} did not answer /generate ({describe(error)})"
            ) from None
        except answers.Malformed as error:
            raise PolicyServerError(f"{self.url}/generate answered with {error}") from None
        self.gap = mean_gap(scores, probe.logprobs)
        if not self.gap <= probe.tolerance:
            raise UpdateRefused(
                f"{self.url} does not have the trainer's weights: its log-probs of a fixed prompt "
                f"differ by {self.gap:.2g} on the mean (at most {probe.tolerance:g}); is it the "
                "same model and dtype?"
            )


def mean_gap(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / max(len(right), 1)


def words(data: bytes) -> str:
    """The server's own words, in one short line, whatever the shape of its error."""
    try:
        answer = json.loads(data)
        error = answer.get("error", answer.get("message", answer))
        text = error.get("message", str(error)) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError, RecursionError):
        text = data.decode(errors="replace")
    return " ".join(text.split())[:300] or "nothing"


def describe(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _object(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
