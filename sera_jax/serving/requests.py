"""A request inside the engine, from its prompt to its finish reason. No JAX here."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_STOPS = 8  # stop tokens that the device knows; further ones are checked afterwards


@dataclass(eq=False)
class Request:
    rid: str
    input_ids: np.ndarray  # int32 [n]
    max_new_tokens: int
    temperature: float = 1.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    logprob_start_len: int = -1  # -1: no log-probs of the prompt
    decode: Callable[[list[int]], str] | None = None  # needed by `stop` alone

    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    token_versions: list[str] = field(default_factory=list)
    prompt_logprobs: dict[int, float] = field(default_factory=dict)  # by position
    cached_tokens: int | None = None
    retractions: int = 0
    weight_version: str = ""  # at the end
    finish_reason: dict[str, Any] | None = None

    def sequence(self) -> np.ndarray:
        """Prompt and output: what a request that was put back must prefill again."""
        return np.concatenate([self.input_ids, np.asarray(self.output_ids, np.int32)])

    @property
    def wanted(self) -> int:
        return self.max_new_tokens - len(self.output_ids)

    @property
    def scoring(self) -> bool:
        return self.logprob_start_len >= 0 and not self.output_ids

    @functools.cached_property
    def device_stops(self) -> list[int]:
        known = sorted(self.stop_token_ids)[:MAX_STOPS]
        return known + [-1] * (MAX_STOPS - len(known))

    def append(self, token: int, logprob: float, version: str) -> bool:
        """Takes a sampled token; True when it was the last one."""
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        self.token_versions.append(version)
        if token in self.stop_token_ids:
            self.finish_reason = {"type": "stop", "matched": token}
        elif self.stop and (matched := self._stop_string()):
            self.finish_reason = {"type": "stop", "matched": matched}
        elif self.wanted <= 0:
            self.finish_at_length()
        return self.finish_reason is not None

    def _stop_string(self) -> str | None:
        text = self.decode(self.output_ids)
        return next((stop for stop in self.stop if stop in text), None)

    def finish_at_length(self) -> None:
        self.finish_reason = {"type": "length", "length": len(self.output_ids)}

    def abort(self, message: str = "Aborted") -> None:
        self.finish_reason = {
            "type": "abort",
            "message": message,
            "status_code": None,
            "err_type": None,
        }

    def version_spans(self) -> list[dict[str, Any]]:
        """Runs of output tokens sampled by one version of the weights."""
        if not self.token_versions:
            return [{"version": self.weight_version, "start": 0, "end": 0}]
        spans, begin = [], 0
        for version, run in itertools.groupby(self.token_versions):
            end = begin + sum(1 for _ in run)
            spans.append({"version": version, "start": begin, "end": end})
            begin = end
        return spans
