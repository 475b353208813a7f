"""What a policy server answers, checked before anything is trained on it.

A server that is going down, a proxy in between or a bug can send anything at all. Whatever is not
an answer to the very question is `Malformed`: the client counts it and asks again.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FINISHED = ("stop", "length", "abort")
ROUNDING = 1e-3  # by which a log-prob may exceed 0


class Malformed(ValueError):
    """An answer that cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Generation:
    """Sampled tokens (the stop token included) and what the server says of them.

    `versions` holds runs of (weight version, number of tokens): two runs when the weights changed
    while the request was in flight.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # "stop" | "length"; "abort" inside the client alone
    versions: tuple[tuple[str, int], ...] = ()


def read_meta(data: bytes, prompt_tokens: int) -> dict[str, Any]:
    """`meta_info` of an answer to a prompt of that many tokens."""
    try:
        meta = json.loads(data)["meta_info"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed(f"no answer of /generate ({type(error).__name__})") from None
    if not isinstance(meta, dict):
        raise Malformed("meta_info is no object")
    counted = meta.get("prompt_tokens", prompt_tokens)
    if counted != prompt_tokens:
        raise Malformed(f"a prompt of {prompt_tokens} tokens was read as {counted!r}")
    return meta


def read_generation(meta: dict[str, Any], *, vocab_size: int, max_new_tokens: int) -> Generation:
    """The sampled tokens. Only an aborted answer may hold none."""
    reason = meta.get("finish_reason")
    reason = reason.get("type") if isinstance(reason, dict) else None
    if reason not in FINISHED:
        raise Malformed(f"finish_reason {meta.get('finish_reason')!r}"[:100])
    if reason == "abort" and "output_token_logprobs" not in meta:
        return Generation((), (), reason)  # SGLang drops the tokens of what waited in its queue
    logprobs, ids = _columns(meta.get("output_token_logprobs"))
    if len(ids) > max_new_tokens:
        raise Malformed(f"{len(ids)} tokens where at most {max_new_tokens} were asked for")
    if not ids and reason != "abort":
        raise Malformed(f"no token, and yet the reason to end is {reason!r}")
    if ids and not (_all_ints(ids) and 0 <= min(ids) and max(ids) < vocab_size):
        raise Malformed(f"token ids outside the vocabulary of {vocab_size}")
    _check_logprobs(logprobs)
    counted = meta.get("completion_tokens", len(ids))
    if counted != len(ids):
        raise Malformed(f"{len(ids)} tokens have log-probs, and {counted!r} were sampled")
    return Generation(tuple(ids), tuple(logprobs), reason, _versions(meta, len(ids)))


def read_scores(meta: dict[str, Any], input_ids: Sequence[int]) -> list[float]:
    """Log-probs of `input_ids[1:]`."""
    logprobs, ids = _columns(meta.get("input_token_logprobs"))
    # SGLang 0.5.23 names the vocabulary's last token 0 here; its log-prob is its own.
    same = len(ids) == len(input_ids) and all(
        got in (0, asked) for got, asked in zip(ids, input_ids, strict=True)
    )
    if not same:
        raise Malformed("the scored ids are not those of the prompt")
    _check_logprobs(logprobs[1:])
    return logprobs[1:]


def joined(parts: Sequence[Generation]) -> Generation:
    """One generation of what several attempts sampled one after the other."""
    if len(parts) == 1:
        return parts[0]
    versions: list[tuple[str, int]] = []
    for version, count in itertools.chain.from_iterable(part.versions for part in parts):
        if versions and versions[-1][0] == version:
            count += versions.pop()[1]
        versions.append((version, count))
    return Generation(
        tuple(itertools.chain.from_iterable(part.token_ids for part in parts)),
        tuple(itertools.chain.from_iterable(part.logprobs for part in parts)),
        parts[-1].finish_reason,
        tuple(versions),
    )


def _columns(entries: Any) -> tuple[list, list]:
    """[[logprob, id, ...], ...] -> logprobs, ids."""
    try:
        return [entry[0] for entry in entries], [entry[1] for entry in entries]
    except (TypeError, KeyError, IndexError):
        raise Malformed("the log-probs are no list of [log-prob, id]") from None


def _all_ints(values: Sequence) -> bool:
    return set(map(type, values)) <= {int}


def _check_logprobs(logprobs: Sequence) -> None:
    # -0.0 and 0 are as good as any: JSON may write them without a point.
    if not set(map(type, logprobs)) <= {float, int}:
        raise Malformed("a log-prob is no number")
    if not all(map(math.isfinite, logprobs)):
        raise Malformed("a log-prob is NaN or infinite")
    if logprobs and max(logprobs) > ROUNDING:
        raise Malformed(f"a log-prob of {max(logprobs)}")


def _versions(meta: dict[str, Any], count: int) -> tuple[tuple[str, int], ...]:
    """Runs of (version, tokens) that cover all tokens, without empty ones."""
    runs = meta.get("weight_versions") or [
        {"version": meta.get("weight_version", ""), "start": 0, "end": count}
    ]
    try:
        names = [run["version"] for run in runs]
        spans = [(run["start"], run["end"]) for run in runs]
    except (TypeError, KeyError):
        raise Malformed("weight_versions is no list of {version, start, end}") from None
    ends = [0, *(end for _, end in spans)]
    joined = [start for start, _ in spans] == ends[:-1] and ends[-1] == count
    if not (joined and all(isinstance(name, str) for name in names)):
        raise Malformed(f"weight_versions {runs!r} do not cover {count} tokens"[:200])
    if not all(isinstance(end, int) and end >= start for start, end in itertools.pairwise(ends)):
        raise Malformed(f"weight_versions {runs!r} are out of order"[:200])
    return tuple(
        (name, end - start) for name, (start, end) in zip(names, spans, strict=True) if end > start
    )
