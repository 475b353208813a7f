"""Verified outcomes y of delegated goals, and what they cost (METHOD 7's supervision figures).

A judge is called as `judge(world, goal, agent)` when a child ends (rollout/tree.py): True, False,
or None where it cannot tell. Each benchmark has programs of that signature, its VERIFIERS; `Judge`
puts the counting around one of them or around any other callable, and `noisy` makes any judge err
now and then. An external model as judge is in external/ and counts for itself.
"""

import dataclasses
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sera_jax.worlds.base import World

Verdict = bool | None


@dataclasses.dataclass
class Usage:
    """What one purpose cost. `calls` were carried out, `cached` ones were known already.

    Of the calls, `failures` never got an answer and `invalid` ones none that can be used; neither
    gave a label. `retries` are requests beyond the first of their call. `disputed` are calls that
    another program of the benchmark would have answered otherwise.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0
    retries: int = 0
    invalid: int = 0
    failures: int = 0
    disputed: int = 0


class Counters:
    """Calls for supervision by purpose ("child", "attempt", "rubric"); part of a checkpoint."""

    def __init__(self, usage: dict[str, dict[str, int]] | None = None):
        self._usage = {purpose: Usage(**numbers) for purpose, numbers in (usage or {}).items()}

    def add(self, purpose: str, *, calls: int = 1, **numbers: int) -> None:
        """Adds one call (or `calls`) and other numbers of `Usage`; a program reads no tokens."""
        usage = self._usage.setdefault(purpose, Usage())
        for name, number in {"calls": calls, **numbers}.items():
            setattr(usage, name, getattr(usage, name) + number)

    def to_json(self) -> dict[str, dict[str, int]]:
        """What the constructor takes."""
        return {purpose: dataclasses.asdict(usage) for purpose, usage in self._usage.items()}

    def total(self) -> Usage:
        usages = self._usage.values()
        fields = [field.name for field in dataclasses.fields(Usage)]
        return Usage(*(sum(getattr(usage, name) for usage in usages) for name in fields))

    def disagreement(self) -> float | None:
        """Share of all calls so far that were disputed; None where there was no call."""
        total = self.total()
        return total.disputed / total.calls if total.calls else None


@dataclasses.dataclass(frozen=True)
class Judge:
    """A verifier whose every call is counted under one purpose.

    `others` are asked beside it, at no charge, to count how often they disagree with it.
    """

    verify: Callable[[World, str, str], Verdict | Awaitable[Verdict]]
    counters: Counters
    purpose: str = "child"
    others: Sequence[Callable[[World, str, str], Verdict]] = ()

    def __call__(self, world: World, goal: str, agent: str) -> Any:
        verdict = self.verify(world, goal, agent)
        disputed = any(other(world, goal, agent) != verdict for other in self.others)
        self.counters.add(self.purpose, disputed=disputed)
        return verdict


def noisy(judge: Callable[..., Any], rate: float, seed: int, tree_id: str = "") -> Callable:
    """`judge` with labels flipped with probability `rate` (METHOD 9's label noise).

    Whether a label is flipped depends on the seed, the tree, the agent (every attempt is one of its
    own) and the goal alone, so that a resumed run flips the same ones. None stays None.
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"label noise of {rate}: give a probability between 0 and 1")
    if not rate:
        return judge

    def judged(world: World, goal: str, agent: str) -> Any:
        flip = _uniform((seed, tree_id, agent, goal)) < rate
        verdict = judge(world, goal, agent)
        if inspect.isawaitable(verdict):
            return _flipped_later(verdict, flip)
        return _flipped(verdict, flip)

    return judged


def _flipped(verdict: Verdict, flip: bool) -> Verdict:
    return verdict if verdict is None else verdict != flip


async def _flipped_later(verdict: Awaitable[Verdict], flip: bool) -> Verdict:
    return _flipped(await verdict, flip)


def _uniform(identity: tuple) -> float:
    """A number in [0, 1) that looks random and is the identity's own."""
    digest = hashlib.sha256(repr(identity).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
