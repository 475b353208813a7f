"""What nodes are run with: the limits, what a responder is asked, what a tree's nodes share."""

import asyncio
import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sera_jax.rollout.protocol import Goal
from sera_jax.trees import Node, Rubric
from sera_jax.worlds.base import StepResult, Task, World

if TYPE_CHECKING:
    from sera_jax.rollout.rubrics import Graders
    from sera_jax.serving.answers import Generation


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """Limits of a rollout. `max_children` counts all children of a tree; 0 is no cap.

    `attempts` above 1 forks delegations (METHOD 5), `candidates` above 1 selects (METHOD 8).
    """

    context_length: int
    max_new_tokens: int
    max_depth: int = 3
    max_steps: int = 20
    delegation: bool = True
    max_children: int = 0
    temperature: float = 1.0
    rubric_temperature: float = 1.0
    rubric_tokens: int = 1024  # of a rubric and of a score
    attempts: int = 1  # B
    fork_budget: int = 16  # worlds of a tree, its own among them, up to which delegations fork
    candidates: int = 1  # N
    candidate_budget: int = 32  # worlds of a task
    candidate_temperature: float = 1.0  # of everybody below the root while selecting


@dataclasses.dataclass(frozen=True)
class Situation:
    """What a responder is asked. A server needs `input_ids`; a script looks at the world.

    `goal` is None at the root. `can_delegate` says whether a delegation would launch anything.
    `max_new_tokens` is already cut to the room left in the context.

    Kind "rubric": `agent` is the parent and `goal` what it delegates. Kind "score": `agent` is the
    child, `node` its record; `before` and `world` are copies of the world at its start and end.
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
    temperature: float = 1.0
    kind: Literal["act", "rubric", "score"] = "act"
    rubric: Rubric | None = None
    node: Node | None = None
    before: World | None = None


Respond = Callable[[Situation], Awaitable["Generation"]]

# (world, goal, agent) -> y, or an awaitable of it; None where it cannot tell. Siblings act on while
# an awaitable is awaited: whatever it needs of the world has to be read in the call itself.
Judge = Callable[[World, str, str], bool | None | Awaitable[bool | None]]


class Prompts(Protocol):
    """The wording; `rollout/prompts.py` implements it."""

    stop_ids: tuple[int, ...]

    def opening(self, task: Task, goal: str | None, world: World, agent: str, **limits: Any): ...
    def observation(self, world: World, agent: str, result: StepResult | None) -> str: ...
    def notice(self, kind: str, **values: Any) -> str: ...
    def next_turn(self, text: str, closed: bool) -> Sequence[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def rubric(self, goal: str) -> str: ...
    def score(
        self, rubric: Rubric, node: Node, before: World, after: World, room: int
    ) -> Sequence[int] | None: ...


@dataclasses.dataclass
class Branch:
    """One course of events: a world, and what has been done on the way to it.

    All agents that share a world share its branch. Work on a fork leaves it alone until a fork is
    adopted; then everybody who waits in this branch goes on in the fork's world.
    """

    world: World
    children: int = 0
    world_actions: int = 0
    nodes: dict[str, Node] = dataclasses.field(default_factory=dict)  # those that ended here

    def fork(self) -> "Branch":
        return Branch(self.world.copy(), self.children, self.world_actions)

    def adopt(self, fork: "Branch") -> None:
        self.world, self.children = fork.world, fork.children
        self.world_actions = fork.world_actions
        self.nodes |= fork.nodes


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Who works on what, how long, in which world. The root's `goal` is None: the task itself.

    `context` is what the parent said besides.
    """

    id: str
    parent: str | None
    depth: int
    goal: str | None
    max_steps: int
    branch: Branch
    context: str = ""

    @property
    def world(self) -> World:
        return self.branch.world


@dataclasses.dataclass(frozen=True)
class Delegation:
    """A step that delegates: `tokens` are the parent's context up to the end of that response."""

    parent: Assignment
    step: int
    goals: tuple[Goal, ...]
    launched: int  # children that earlier steps of the parent launched
    tokens: tuple[int, ...]
    closed: bool  # the response ended with a stop token


# Carries a delegation out -> (ids of the children launched, what the parent reads).
Delegate = Callable[[Delegation, "Episode"], Awaitable[tuple[tuple[str, ...], str]]]


@dataclasses.dataclass
class Episode:
    """What all nodes of one tree share, whatever branch they work in."""

    task: Task
    respond: Respond
    prompts: Prompts
    config: RolloutConfig
    tree_id: str
    seed: int
    delegate: Delegate
    judge: Judge | None = None
    graders: "Graders | None" = None
    counts: Counter = dataclasses.field(default_factory=Counter)  # of grading and forking
    failures: list[tuple[str, Exception]] = dataclasses.field(default_factory=list)
    gradings: list[asyncio.Task] = dataclasses.field(default_factory=list)  # in the background
    _orders: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def next_order(self) -> int:
        return next(self._orders)

    def may_delegate(self, depth: int) -> bool:
        """Whether the level allows it; what the opening prompt tells the agent."""
        return self.config.delegation and depth < self.config.max_depth

    def children_left(self, branch: Branch) -> int | None:
        """How many more children the cap allows, None without a cap."""
        cap = self.config.max_children
        return cap - branch.children if cap else None

    def candidates_left(self) -> bool:
        """Whether selection, where it is on, may clone another world for every candidate."""
        wanted = self.config.candidates
        return wanted == 1 or self.counts["candidates"] + wanted <= self.config.candidate_budget

    def request_seed(self, name: str, step: int = 0) -> int:
        return request_seed(self.seed, self.tree_id, name, step)


def request_seed(seed: int, tree_id: str, node_id: str, step: int) -> int:
    """31 bits by name, so that a resumed run asks with the seeds of the unbroken one."""
    name = f"{seed}/{tree_id}/{node_id}/{step}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1


async def ask(respond: Respond, situation: Situation) -> "Generation":
    """The response, refused where it would train on something else than what was sampled."""
    generation = await respond(situation)
    count = len(generation.token_ids)
    if generation.finish_reason not in ("stop", "length"):
        raise ValueError(f"the policy server ended a request with {generation.finish_reason!r}")
    if len(generation.logprobs) != count:
        raise ValueError(f"{count} tokens came with {len(generation.logprobs)} log-probs")
    if count > situation.max_new_tokens:
        asked = situation.max_new_tokens
        raise ValueError(f"{count} tokens came where {asked} were asked for")
    return generation
