"""What a run folder holds, read for a report. Every file of it may be missing but the metrics."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import tokenizers

from sera_jax import metrics

_EVALUATION = re.compile(r"evaluation_([^_]+)_(.+)\.jsonl")


class ReportError(Exception):
    """Nothing to report on; the message says what was looked for and where."""


@dataclasses.dataclass(frozen=True)
class Run:
    """`evaluations` is {set: {"before" or "after": records}}."""

    name: str
    folder: pathlib.Path
    metrics: list[dict[str, Any]]
    config: dict[str, Any]
    provenance: list[dict[str, Any]]
    evaluations: dict[str, dict[str, list[dict[str, Any]]]]
    tokenizer: tokenizers.Tokenizer | None


def load(folders: Sequence[str | pathlib.Path]) -> list[Run]:
    """The runs in the order given, each under a name of its own."""
    paths = [pathlib.Path(folder) for folder in folders]
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [_load(path, name) for path, name in zip(paths, names, strict=True)]


def _load(folder: pathlib.Path, name: str) -> Run:
    if not (folder / "metrics.jsonl").exists():
        raise ReportError(
            f"no metrics.jsonl in {folder}: name the folder of a run, as launch/main.py prints it"
        )
    try:
        config = _settings(folder / "config.json")
        return Run(
            name=name,
            folder=folder,
            metrics=metrics.read_lines(folder / "metrics.jsonl"),
            config=config,
            provenance=metrics.read_lines(folder / "provenance.jsonl"),
            evaluations=_evaluations(folder),
            tokenizer=_tokenizer(folder, config),
        )
    except (OSError, ValueError) as error:  # each names its file
        raise ReportError(str(error)) from error


def _settings(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from None


def _evaluations(folder: pathlib.Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted(folder.glob("evaluation_*.jsonl"), key=lambda p: ("after" in p.name, p)):
        match = _EVALUATION.fullmatch(path.name)
        records = metrics.read_lines(path)
        if match and records:
            found.setdefault(match[2], {})[match[1]] = records
    return found


def _tokenizer(folder: pathlib.Path, config: dict[str, Any]) -> tokenizers.Tokenizer | None:
    """The run's own copy, else that of the model it started from; only prompts need it."""
    model = config.get("model", {}).get("path")
    for place in [folder, *([pathlib.Path(model)] if model else [])]:
        if (place / "tokenizer.json").exists():
            return tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))
    return None
