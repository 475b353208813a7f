"""The JSON of SGLang's /generate: what comes in becomes a Request, a Request becomes the answer."""

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sera_jax.serving.requests import Request

# Every key that SGLang knows in sampling_params, with the only value that is served here; `...`:
# any value.
SAMPLING_KEYS = {
    "max_new_tokens": ...,
    "temperature": ...,
    "stop_token_ids": ...,
    "stop": ...,
    "ignore_eos": ...,
    "skip_special_tokens": ...,
    "spaces_between_special_tokens": ...,
    "no_stop_trim": ...,
    "sampling_seed": ...,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "n": 1,
    "stop_regex": None,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "logit_bias": None,
    "custom_params": None,
}
# The same for the keys beside sampling_params.
BODY_KEYS = {
    "stream": False,
    "token_ids_logprob": None,
    "top_logprobs_num": 0,
    "return_hidden_states": False,
    "session_params": None,
    "input_embeds": None,
    "lora_path": None,
}
DEFAULT_MAX_NEW_TOKENS = 128


class BadRequest(Exception):
    """The request is refused with status 400 and this message."""


@dataclass(frozen=True)
class Model:
    """What reading a request needs to know of the model."""

    vocab_size: int
    context: int
    eos_token_ids: frozenset[int]
    tokenizer: Any  # tokenizers.Tokenizer | None
    next_seed: Callable[[], int]


@dataclass
class Asked:
    """A request and how its answer is to be written."""

    request: Request
    return_logprob: bool
    skip_special_tokens: bool
    trim_stop: bool


def read(body: Any, model: Model) -> list[Asked]:
    """The requests of a body; a list of prompts gives several."""
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    _only(body, BODY_KEYS, "")
    prompts = _prompts(body, model)
    many = isinstance(prompts[0], list) if prompts else False
    if not many:
        return [_read_one(body, prompts, body.get("sampling_params"), body.get("rid"), model)]
    count = len(prompts)
    sampling, rids = body.get("sampling_params"), body.get("rid")
    sampling = sampling if isinstance(sampling, list) else [sampling] * count
    if isinstance(rids, str):
        rids = [f"{rids}_{index}" for index in range(count)]
    rids = rids or [None] * count
    if len(sampling) != count or len(rids) != count:
        raise BadRequest(f"{count} prompts need as many sampling_params and rids")
    return [_read_one(body, *one, model) for one in zip(prompts, sampling, rids, strict=True)]


def _prompts(body: dict, model: Model) -> list:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise BadRequest("Either text or input_ids should be provided, and not both.")
    if ids is None:
        if model.tokenizer is None:
            raise BadRequest("this model has no tokenizer.json: send input_ids")
        if isinstance(text, str):
            return model.tokenizer.encode(text).ids
        return [model.tokenizer.encode(str(one)).ids for one in text]
    if not isinstance(ids, list):
        raise BadRequest("input_ids is not a list")
    return ids


def _read_one(body: dict, ids: list, sampling: Any, rid: str | None, model: Model) -> Asked:
    sampling = sampling or {}
    _check_sampling(sampling)
    stops = frozenset(sampling.get("stop_token_ids") or ())
    # As in SGLang, ignore_eos switches off every stop token.
    stops = frozenset() if sampling.get("ignore_eos") else stops | model.eos_token_ids
    max_new = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    max_new = DEFAULT_MAX_NEW_TOKENS if max_new is None else max_new
    start = body.get("logprob_start_len", -1) if body.get("return_logprob") else -1
    start = -1 if start is None else start
    _check_size(ids, max_new, start, model)
    stop = sampling.get("stop") or ()
    if stop and model.tokenizer is None:
        raise BadRequest("stop strings need a tokenizer.json beside the model")
    seed = sampling.get("sampling_seed")
    skip = sampling.get("skip_special_tokens", True)
    request = Request(
        rid=rid or uuid.uuid4().hex,
        input_ids=_ids(ids, model),
        max_new_tokens=max_new,
        temperature=sampling.get("temperature", 1.0),
        seed=(model.next_seed() if seed is None else seed) & 0x7FFFFFFF,
        stop_token_ids=stops,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logprob_start_len=start,
        decode=lambda tokens: model.tokenizer.decode(tokens, skip_special_tokens=skip),
    )
    trim = not sampling.get("no_stop_trim", False)
    return Asked(request, bool(body.get("return_logprob")), skip, trim)


def _check_sampling(sampling: Any) -> None:
    if not isinstance(sampling, dict):
        raise BadRequest("sampling_params is not an object")
    for key in sampling:
        if key not in SAMPLING_KEYS:
            known = ", ".join(f"`{name}`" for name in SAMPLING_KEYS)
            raise BadRequest(f"unknown field `{key}`, expected one of {known}")
    _only(sampling, SAMPLING_KEYS, "sampling_params.")
    temperature = sampling.get("temperature", 1.0)
    if not _is_number(temperature) or not 0 <= temperature < math.inf:
        raise BadRequest(f"temperature must be a non-negative finite number, got {temperature}.")
    for key in ("max_new_tokens", "sampling_seed"):
        value = sampling.get(key)
        if value is not None and (not _is_int(value) or value < 0):
            raise BadRequest(f"{key} must be a non-negative integer, got {value}.")
    if not all(_is_int(token) for token in sampling.get("stop_token_ids") or ()):
        raise BadRequest("stop_token_ids must be a list of integers.")


def _only(given: dict, keys: dict, where: str) -> None:
    for key, served in keys.items():
        value = given.get(key, served)
        if served is not ... and value is not None and value != served:
            raise BadRequest(f"{where}{key} = {value!r} is not served here (only {served!r})")


def _check_size(ids: list, max_new: int, start: int, model: Model) -> None:
    size, context = len(ids), model.context
    if not size:
        raise BadRequest("input_ids cannot be empty.")
    if size >= context:
        raise BadRequest(
            f"The input ({size} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
    if size + max_new > context:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {context} "
            f"tokens. You requested a total of {size + max_new} tokens: {size} tokens from the "
            f"input messages and {max_new} tokens for the completion. Please reduce the number of "
            "tokens in the input messages or the completion to fit within the limit."
        )
    if start >= size:
        raise BadRequest(f"logprob_start_len {start} is past the prompt of {size} tokens.")


def _ids(ids: list, model: Model) -> np.ndarray:
    try:
        array = np.array(ids)
    except ValueError:
        array = np.zeros(0)
    if array.ndim != 1 or array.dtype.kind != "i":
        raise BadRequest("input_ids must be a flat list of integers.")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= model.vocab_size:
        bad = low if low < 0 else high
        raise BadRequest(
            f"token id {bad} in input_ids is outside the vocabulary of {model.vocab_size}."
        )
    return array.astype(np.int32)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def write(asked: Asked, model: Model, latency: float) -> dict[str, Any]:
    """The answer to one request, in SGLang's shape."""
    request = asked.request
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": request.finish_reason,
        "prompt_tokens": len(request.input_ids),
        "weight_version": request.weight_version,
        "num_retractions": request.retractions,
    }
    if asked.return_logprob:
        meta["input_token_logprobs"] = _input_logprobs(request)
        pairs = zip(request.logprobs, request.output_ids, strict=True)
        meta["output_token_logprobs"] = [(logprob, token, None) for logprob, token in pairs]
        meta["output_token_logprobs_length"] = len(request.output_ids)
    meta["completion_tokens"] = len(request.output_ids)
    meta["cached_tokens"] = request.cached_tokens
    meta["weight_versions"] = request.version_spans()
    meta["e2e_latency"] = latency
    return {"text": _text(asked, model), "output_ids": request.output_ids, "meta_info": meta}


def _input_logprobs(request: Request) -> list[tuple]:
    start = request.logprob_start_len
    if start < 0:
        return []
    ids, known = request.input_ids.tolist(), request.prompt_logprobs
    # Nothing is predicted for the first of them.
    first = [(None, ids[start], None)]
    return first + [(known.get(at), ids[at], None) for at in range(start + 1, len(ids))]


def _text(asked: Asked, model: Model) -> str:
    if model.tokenizer is None:
        return ""
    ids, reason = asked.request.output_ids, asked.request.finish_reason
    matched = reason.get("matched") if asked.trim_stop else None
    if isinstance(matched, int):
        ids = ids[:-1]
    text = model.tokenizer.decode(ids, skip_special_tokens=asked.skip_special_tokens)
    return text[: text.index(matched)] if isinstance(matched, str) else text
