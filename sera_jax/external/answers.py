"""What comes back from an endpoint, read with distrust, and the answers kept on disk."""

import contextlib
import dataclasses
import email.utils
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any


class ExternalError(RuntimeError):
    """No call can succeed: endpoint gone, key missing or refused, no such model. One line."""


@contextlib.contextmanager
def ungrouped():
    """Within it, an ExternalError that ended a group of tasks is raised in place of the group."""
    found = None
    try:
        yield
    except* ExternalError as group:
        found = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if found:
        raise found


@dataclasses.dataclass(frozen=True)
class Completion:
    text: str
    input_tokens: int
    output_tokens: int


def read_completion(data: bytes) -> Completion | None:
    """A chat completion's text; without one (a refusal, say) it is empty. None: not such JSON."""
    try:
        answer = json.loads(data)
        message = answer["choices"][0]["message"]
        text, usage = message.get("content"), answer.get("usage")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    usage = usage if isinstance(usage, dict) else {}
    counts = (usage.get(key) for key in ("prompt_tokens", "completion_tokens"))
    counts = (count if type(count) is int and count >= 0 else 0 for count in counts)
    return Completion(text if isinstance(text, str) else "", *counts)


def error_text(data: bytes) -> str:
    """The endpoint's own words, whatever the shape of its error."""
    try:
        answer = json.loads(data[:10_000])
        error = answer.get("error", answer)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        return data[:1_000].decode(errors="replace")


def pause_seconds(retry_after: str | None) -> float:
    """A Retry-After header, given in seconds or as a date."""
    if not retry_after:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if seconds == seconds else 0.0


class AnswerCache:
    """Text of answers in one file each, named by the content of what was asked."""

    def __init__(self, folder: str | pathlib.Path):
        self._folder = pathlib.Path(folder).expanduser()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExternalError(f"no folder for cached answers at {folder}: {error}") from None

    def load(self, name: str) -> str | None:
        try:
            text = json.loads(self._path(name).read_bytes())["text"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # absent, or not ours: asked again and replaced
        return text if isinstance(text, str) else None

    def save(self, name: str, text: str) -> None:
        """In one move, so that a reader or a crash never sees half of it."""
        path = self._path(name)
        problem = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                json.dump({"text": text}, file)
            os.replace(file.name, path)
        except OSError as error:
            problem = f"an answer cannot be kept in {self._folder}: {error}"
        if problem:
            raise ExternalError(problem)

    def _path(self, name: str) -> pathlib.Path:
        return self._folder / name[:2] / f"{name}.json"


def content_hash(body: Mapping[str, Any]) -> str:
    """Name of a request: its model, messages and parameters, in any order of keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
