"""Hostile policy outputs through every reader of policy text: nothing raises, nothing takes long.

    python -m benchmarks.hostile_outputs [COUNT]

Outputs are made from the protocol's own pieces, damaged answers, and runs of one piece up to the
longest text that is read. Prints how many came out usable, and the most processor time that one
output took.
"""

import random
import sys
import time
from collections.abc import Iterator

from sera_jax.rollout.protocol import MAX_BLOCK_CHARACTERS, parse
from sera_jax.rollout.rubric_text import SPELLING, read_rubric, read_score

CRITERIA = 2
PIECES = (
    "<action>", "</action>", "<delegate>", "</delegate>", "<finish>", "</finish>", "<", "</",
    '{"goal": "', '{"delegations": [', '"max_steps": ', '"}', "]}", *SPELLING,
    '"criteria"', '"criteria": ', '"gate": ', '"total": ', '"description": "', '"name": "',
    "{", "}", "[", "]", '"', ",", ":", "\\", "\\u", "\\ud800", "\\u0000", "\ud800", "\x00", "\x1b",
    "0", "1", "-1", "0.5", "1e999", "-0.0", "NaN", "Infinity", "true", "null", "9" * 5000,
    "```json\n", "\n", " ", "\u202e", "\U0001f9c5", "carrot", "dish_1",
)  # fmt: skip
ANSWERS = (
    "so <action>take carrot</action>",
    '<delegate>{"delegations": [{"goal": "eat dish_1", "max_steps": 8}, {"goal": "b"}]}</delegate>',
    "<finish>dish_1 eaten</finish>",
    '```json\n{"criteria": [{"name": "a", "weight": 2, "description": "b"}, '
    '{"name": "c", "weight": 1}]}\n```',
    'I say {"gate": 1, "criteria": [1, 0.5], "total": 0.75}.',
)
LONG_EVERY = 50  # one output in so many is long


def outputs(count: int, seed: int = 0) -> Iterator[str]:
    rng = random.Random(seed)
    for index in range(count):
        if index % LONG_EVERY == 0:
            yield _long(rng)
        elif rng.random() < 0.5:
            yield _damaged(rng)
        else:
            yield "".join(rng.choices(PIECES, k=rng.randrange(40)))


def _long(rng: random.Random) -> str:
    unit = "".join(rng.choices(PIECES, k=rng.randint(1, 3)))
    # Also just longer than what is read at all.
    length = rng.choice((1_000, MAX_BLOCK_CHARACTERS - 100, MAX_BLOCK_CHARACTERS + 100))
    return unit * (length // len(unit)) + rng.choice(("", *ANSWERS))


def _damaged(rng: random.Random) -> str:
    text = rng.choice(ANSWERS)
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        end = start + rng.choice((0, 0, 1, 2, 10))
        text = text[:start] + rng.choice(("", *PIECES)) + text[end:]
    return text


def read_all(text: str) -> tuple[bool, bool, bool]:
    """Whether each reader could use `text`: as a step, as a rubric, as a score."""
    usable = not parse(text).reason
    rubric, _ = read_rubric(text)
    score, _ = read_score(text, CRITERIA)
    return usable, rubric is not None, score is not None


def main(count: int) -> None:
    slowest, usable = (0.0, ""), [0, 0, 0]
    for text in outputs(count):
        start = time.process_time()
        read = read_all(text)
        slowest = max(slowest, (time.process_time() - start, text))
        usable = [total + one for total, one in zip(usable, read, strict=True)]
    seconds, text = slowest
    print(f"{count} outputs, no exception")
    print("usable as a step {}, as a rubric {}, as a score {}".format(*usable))
    print(f"slowest, all three readers: {1000 * seconds:.1f} ms, {len(text)} x {text[:40]!r}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
