"""Policy text -> commands. Total: never raises, takes time linear in the text.

craft COUNT ITEM using N ITEM, N ITEM
info ITEM, ITEM
inventory
"""

import re
from typing import NamedTuple

MAX_LINES = 16  # of a step
MAX_ITEMS = 16  # of a line
_NUMBER = re.compile(r"[0-9]{1,9}")


class Craft(NamedTuple):
    count: int
    item: str
    using: dict[str, int]


class Info(NamedTuple):
    items: tuple[str, ...]


class Inventory(NamedTuple):
    pass


class Refused(NamedTuple):
    """A line that cannot be carried out: `problem` is one word for it, `reason` a sentence."""

    problem: str
    reason: str


Command = Craft | Info | Inventory | Refused

USAGE = "use craft COUNT ITEM using N ITEM, N ITEM; info ITEM, ITEM; or inventory"


def split(text: str) -> tuple[list[str], int]:
    """(the lines that are carried out, how many are left over); blank ones do not count."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return lines[:MAX_LINES], max(0, len(lines) - MAX_LINES)


def read(line: str) -> Command:
    words = line.split(maxsplit=1)
    verb, rest = words[0], words[1] if len(words) > 1 else ""
    if verb == "inventory" and not rest:
        return Inventory()
    if verb == "info":
        return _info(rest)
    if verb == "craft":
        return _craft(rest)
    return Refused("command", f"{quoted(line)} is not a command; {USAGE}")


def _info(rest: str) -> Command:
    items = tuple(dict.fromkeys(filter(None, (part.strip() for part in rest.split(",")))))
    if not items:
        return Refused("command", "info needs the name of an item")
    if len(items) > MAX_ITEMS:
        return Refused("command", f"info takes at most {MAX_ITEMS} items a line")
    return Info(items)


def _craft(rest: str) -> Command:
    made, using, listed = rest.partition(" using ")
    if not using:
        return Refused(
            "command", "craft needs its ingredients; use craft COUNT ITEM using N ITEM, N ITEM"
        )
    target = _amount(made)
    if isinstance(target, Refused):
        return target
    ingredients = {}
    for part in listed.split(",", MAX_ITEMS):
        amount = _amount(part)
        if isinstance(amount, Refused):
            return amount
        count, item = amount
        if item in ingredients:
            return Refused("command", f"{quoted(item)} is given twice")
        ingredients[item] = count
    count, item = target
    return Craft(count, item, ingredients)


def _amount(text: str) -> tuple[int, str] | Refused:
    words = text.split(maxsplit=2)
    if len(words) != 2 or not _NUMBER.fullmatch(words[0]) or not int(words[0]):
        return Refused(
            "command", f"{quoted(text)} is not a count above 0 and an item, as in 2 m0_i1"
        )
    return int(words[0]), words[1]


def quoted(text: str) -> str:
    """What the policy wrote, short enough to be said back."""
    text = text.strip()
    return f'"{text[:40]}..."' if len(text) > 43 else f'"{text}"'
