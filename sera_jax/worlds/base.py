"""What a world owes the rollout. A new benchmark is one folder beside this file.

To add one: write `worlds/NAME/` with a Task and a World as below and functions that make tasks,
put its prompt templates in `rollout/templates/NAME/`, and write `configs/NAME.py`. Nothing else in
the package knows which benchmark it runs.

A world is deterministic and does no input or output: the same actions in the same order give the
same states, whichever agents send them. One world is shared by all agents of a tree; a fork is
`copy()`, which must be cheap because every attempt of a rubric step owns one.
"""

import dataclasses
from typing import Any, Protocol, Self


@dataclasses.dataclass(frozen=True)
class StepResult:
    """Answer to one submitted command. `reward` is 1 on the action that succeeds, else 0."""

    accepted: bool
    reward: float
    done: bool
    observation: str


class Task(Protocol):
    """One root problem. `tier` and `family` only group results."""

    task_id: str

    @property
    def tier(self) -> str: ...

    @property
    def family(self) -> str: ...


class World(Protocol):
    """State of one task, shared by the agents of a tree."""

    @property
    def success(self) -> bool: ...

    @property
    def done(self) -> bool:
        """Success, or nothing more can be done (budget used up)."""

    def join(self, agent: str, *, beside: str | None = None) -> None:
        """Adds an agent at the world's starting place, or where agent `beside` stands."""

    def copy(self) -> Self: ...

    def step(self, agent: str, command: str) -> StepResult:
        """Carries out one command; a refused one changes nothing but the budget it costs."""

    def lookup(self, agent: str, command: str) -> str | None:
        """Answers a command that costs the world nothing, or None when it is a real action."""

    def observe(self, agent: str) -> str:
        """What the agent perceives now, in natural language."""

    def state(self, agent: str) -> dict[str, Any]:
        """The same facts as data; prompts in a terser style are rendered from it."""
