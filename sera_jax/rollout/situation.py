"""What nodes are run with: the limits, what a responder is asked, what a tree's nodes share."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sera_jax.worlds.base import StepResult, Task, World

if TYPE_CHECKING:
    from sera_jax.serving.client import Generation


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """Limits of a rollout. `max_children` counts all children of a tree; 0 is no cap."""

    context_length: int
    max_new_tokens: int
    max_depth: int = 3
    max_steps: int = 20
    delegation: bool = True
    max_children: int = 0
    temperature: float = 1.0


@dataclasses.dataclass(frozen=True)
class Situation:
    """What a responder is asked. A server needs `input_ids`; a script looks at the world.

    `goal` is None at the root. `can_delegate` says whether a delegation would launch anything.
    `max_new_tokens` is already cut to the room left in the context.
    """

    input_ids: tuple[int, ...]
    world: World
    agent: str
    goal: str | None
    depth: int
    step: int
    can_delegate: bool
    seed: int
    tree_id: str
    max_new_tokens: int


Respond = Callable[[Situation], Awaitable["Generation"]]


class Prompts(Protocol):
    """The wording; `rollout/prompts.py` implements it."""

    stop_ids: tuple[int, ...]

    def opening(self, task: Task, goal: str | None, world: World, agent: str, **limits: Any): ...
    def observation(self, world: World, agent: str, result: StepResult | None) -> str: ...
    def notice(self, kind: str, **values: Any) -> str: ...
    def next_turn(self, text: str, closed: bool) -> Sequence[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Who works on what, how long, in which world. The root's `goal` is None: the task itself."""

    id: str
    parent: str | None
    depth: int
    goal: str | None
    max_steps: int
    world: World


@dataclasses.dataclass
class Episode:
    """What all nodes of one tree share; the counts at the end are the tree's own."""

    task: Task
    respond: Respond
    prompts: Prompts
    config: RolloutConfig
    tree_id: str
    seed: int
    counts: Counter = dataclasses.field(default_factory=Counter)  # steps, world_actions, children
    failures: list[tuple[str, Exception]] = dataclasses.field(default_factory=list)

    def next_order(self) -> int:
        self.counts["steps"] += 1
        return self.counts["steps"] - 1

    def may_delegate(self, depth: int) -> bool:
        """Whether the level allows it; what the opening prompt tells the agent."""
        return self.config.delegation and depth < self.config.max_depth

    def children_left(self) -> int | None:
        """How many more children the cap allows, None without a cap."""
        cap = self.config.max_children
        return cap - self.counts["children"] if cap else None


def request_seed(seed: int, tree_id: str, node_id: str, step: int) -> int:
    """31 bits by name, so that a resumed run asks with the seeds of the unbroken one."""
    name = f"{seed}/{tree_id}/{node_id}/{step}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1
