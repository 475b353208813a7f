"""Text <-> rubrics and scores.

    {"criteria": [{"name": "...", "weight": 2, "description": "..."}, ...]}
    {"gate": 1, "criteria": [0.5, 1], "total": 0.75}

`description` and `total` may be left out. The readers do not mind fences or words around the
object; of several, the last one counts. They are strict about what it says (METHOD 2), never raise,
and take time linear in the text.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sera_jax import rewards
from sera_jax.rollout.protocol import MAX_BLOCK_CHARACTERS, Refused, check_text
from sera_jax.trees import Criterion, Rubric, Score

# The fixed strings of the answers as `spell_rubric` and `spell_score` write them; a tokenizer that
# has them as single tokens writes a criterion in about five.
SPELLING = (
    '{"criteria": [{"name": "',
    '", "weight": ',
    '}, {"name": "',
    "}]}",
    '{"gate": ',
    ', "criteria": [',
    "]}",
)
_KEY = re.compile(r'"criteria"')
_KEYS_TRIED, _STARTS_TRIED = 3, 4  # bounds the work on texts that only look like answers
_DECODER = json.JSONDecoder(parse_int=float)  # an integer of any length is then a float at once


def read_rubric(text: str) -> tuple[Rubric | None, str]:
    """(rubric with weights that sum to 1, "") or (None, reason)."""
    try:
        criteria = _last_object(text)["criteria"]
        if not isinstance(criteria, list) or len(criteria) < rewards.MIN_CRITERIA:
            raise Refused(f'"criteria" must be a list of at least {rewards.MIN_CRITERIA}')
        read = [_criterion(item) for item in criteria]
        weights = rewards.normalised_weights([criterion.weight for criterion in read])
    except (Refused, ValueError) as problem:
        return None, f"rubric: {problem}"
    pairs = zip(read, weights.tolist(), strict=True)
    return Rubric(tuple(dataclasses.replace(c, weight=w) for c, w in pairs), text), ""


def read_score(text: str, criteria: int) -> tuple[Score | None, str]:
    """(score by a rubric of so many criteria, "") or (None, reason)."""
    try:
        answer = _last_object(text)
        gate, scores, total = (answer.get(key) for key in ("gate", "criteria", "total"))
        if _number(gate, "the gate") not in (0, 1):
            raise Refused("the gate must be 0 or 1")
        if not isinstance(scores, list) or len(scores) != criteria:
            raise Refused(f'"criteria" must be a list of {criteria} numbers')
        scores = tuple(_fraction(score, "a criterion's score") for score in scores)
        stated = None if total is None else _fraction(total, "the total")
    except Refused as problem:
        return None, f"score: {problem}"
    return Score(int(gate), scores, stated), ""


def spell_rubric(criteria: Iterable[tuple[str, int]]) -> str:
    """A rubric of (name, weight) in the fewest tokens, as the compact prompts expect it."""
    opening, weight, between, end = SPELLING[:4]
    spelled = (f"{json.dumps(name)[1:-1]}{weight}{number}" for name, number in criteria)
    return opening + between.join(spelled) + end


def spell_score(gate: int, criteria: Sequence[float]) -> str:
    """A score in the fewest tokens, as the compact prompts expect it."""
    opening, middle, end = SPELLING[4:]
    return f"{opening}{gate}{middle}{', '.join(f'{c:g}' for c in criteria)}{end}"


def _last_object(text: str) -> dict[str, Any]:
    """The last JSON object in `text` that has criteria.

    Looks around the last few places where the key is spelled, at the last few braces before each:
    trying every brace of a hostile text would take quadratic time.
    """
    if len(text) > MAX_BLOCK_CHARACTERS:
        raise Refused(f"the answer is longer than {MAX_BLOCK_CHARACTERS} characters")
    keys = [match.start() for match in _KEY.finditer(text)]
    for key in reversed(keys[-_KEYS_TRIED:]):
        start = key
        for _ in range(_STARTS_TRIED):
            start = text.rfind("{", 0, start)
            if start < 0:
                break
            try:
                found, _ = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and "criteria" in found:
                return found
    raise Refused('no JSON object with "criteria"')


def _criterion(item: Any) -> Criterion:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise Refused('every criterion needs a "name" that is a text')
    name, description = item["name"].strip(), item.get("description", "")
    if not isinstance(description, str):
        raise Refused('a "description" must be a text')
    check_text(name, "a criterion's name")
    if description.strip():
        check_text(description, "a criterion's description")
    return Criterion(name, description.strip(), _number(item.get("weight"), "a weight"))


def _fraction(value: Any, what: str) -> float:
    if not 0 <= _number(value, what) <= 1:
        raise Refused(f"{what} must lie between 0 and 1")
    return float(value)


def _number(value: Any, what: str) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        raise Refused(f"{what} must be a finite number")
    return value
