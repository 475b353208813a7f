"""The one-block protocol: the text of a policy response -> what it asks for.

A response holds exactly one block, with free text around it:

    <action>COMMAND</action>
    <delegate>{"goal": "...", "context": "...", "max_steps": 8}</delegate>
    <delegate>{"delegations": [{"goal": "..."}, {"goal": "...", "max_steps": 8}]}</delegate>
    <finish>MESSAGE</finish>

`context` and `max_steps` are optional. Everything else is refused with a reason that the policy
gets to read.

`parse` is total: it never raises, takes time linear in the text, and evaluates nothing of it.

Two kinds of refusal are told apart because the decomposition objective counts them (METHOD 2). A
response without one clean block is "invalid". A clean <delegate> block whose content is unusable
(bad JSON, an empty goal, a bad `max_steps`) keeps the kind "delegate", with no goals and a reason:
the policy chose to delegate, it launches nobody, and that is an event with rho = 0. A <delegate>
that was never closed is invalid: it has no block whose tokens could be trained.
"""

import dataclasses
import json
import re
import unicodedata
from typing import Any, Literal

# Longer than any completion of the configured budgets; bounds what is echoed into other prompts.
MAX_BLOCK_CHARACTERS = 32_768

_TAG = re.compile(r"<(/?)(action|delegate|finish)>")


@dataclasses.dataclass(frozen=True)
class Goal:
    """One delegated goal. `max_steps` may only lower what the child gets anyway.

    `context` is what else the child is told; it is no part of the goal that is verified.
    """

    text: str
    max_steps: int | None = None
    context: str = ""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """`reason` says why nothing can be carried out; it is empty on a usable block.

    `span` holds the characters of the block in the text, tags included; (0, 0) without a block.
    """

    kind: Literal["action", "delegate", "finish", "invalid"]
    command: str = ""
    goals: tuple[Goal, ...] = ()
    message: str = ""
    reason: str = ""
    span: tuple[int, int] = (0, 0)


class Refused(Exception):
    """Carries the reason from the place that found it to the reader that was called."""


def parse(text: str) -> Parsed:
    try:
        kind, body, span = _only_block(text)
    except Refused as refusal:
        return Parsed("invalid", reason=str(refusal))
    try:
        check_text(body, f"the <{kind}> block")
        if kind == "action":
            return Parsed("action", command=body, span=span)
        if kind == "finish":
            return Parsed("finish", message=body, span=span)
        return Parsed("delegate", goals=_goals(_load(body)), span=span)
    except Refused as refusal:
        return Parsed(
            "delegate" if kind == "delegate" else "invalid", reason=str(refusal), span=span
        )


def _only_block(text: str) -> tuple[str, str, tuple[int, int]]:
    """(kind, stripped content, span). Any further tag, even inside the content, is a refusal."""
    if not text.strip():
        raise Refused("the response is empty")
    tags = []
    for tag in _TAG.finditer(text):
        tags.append(tag)
        if len(tags) > 2:
            raise Refused("more than one block; answer with exactly one")
    if not tags:
        raise Refused("no <action>, <delegate> or <finish> block")
    first, last = tags[0], tags[-1]
    if first.group(1):
        raise Refused(f"{first.group()} closes a block that was not opened")
    if len(tags) == 1:
        raise Refused(f"the {first.group()} block is not closed")
    if not last.group(1) or last.group(2) != first.group(2):
        raise Refused(f"{first.group()} is followed by {last.group()}; answer with one block")
    return first.group(2), text[first.end() : last.start()].strip(), (first.start(), last.end())


def check_text(text: str, where: str) -> None:
    """Refuses what no world, tokenizer or log should be handed."""
    if not text:
        raise Refused(f"{where} is empty")
    if len(text) > MAX_BLOCK_CHARACTERS:
        raise Refused(f"{where} is longer than {MAX_BLOCK_CHARACTERS} characters")
    # Cc: control characters. Cs: half a surrogate pair, which JSON can spell and UTF-8 cannot.
    if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n\r" for c in text):
        raise Refused(f"{where} has control characters")


def _load(body: str) -> dict[str, Any]:
    try:
        # No number with a point is ever wanted, so none is converted.
        loaded = json.loads(body, parse_float=str, parse_constant=str)
    except RecursionError:
        raise Refused("the JSON of the delegation is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"the delegation is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(loaded, dict):
        raise Refused('the delegation must be a JSON object with "goal" or "delegations"')
    return loaded


def _goals(delegation: dict[str, Any]) -> tuple[Goal, ...]:
    if ("goal" in delegation) == ("delegations" in delegation):
        raise Refused('the delegation needs either "goal" or "delegations"')
    if "goal" in delegation:
        return (_goal(delegation, None),)
    several = delegation["delegations"]
    if not isinstance(several, list) or not several:
        raise Refused('"delegations" must be a list with at least one goal')
    default = _max_steps(delegation, None)
    return tuple(_goal(item, default) for item in several)


def _goal(item: Any, default_steps: int | None) -> Goal:
    if not isinstance(item, dict) or not isinstance(item.get("goal"), str):
        raise Refused('every delegation needs a "goal" that is a text')
    goal = item["goal"].strip()
    check_text(goal, "the goal")
    return Goal(goal, _max_steps(item, default_steps), _context(item))


def _context(item: dict[str, Any]) -> str:
    context = item.get("context")
    if context is None:
        return ""
    if not isinstance(context, str):
        raise Refused('"context" must be a text')
    if context := context.strip():
        check_text(context, "the context")
    return context


def _max_steps(item: dict[str, Any], default: int | None) -> int | None:
    steps = item.get("max_steps")
    if steps is None:
        return default
    if isinstance(steps, bool) or not isinstance(steps, int) or steps <= 0:
        raise Refused('"max_steps" must be a whole number above 0')
    return steps
