"""What a benchmark owes the rest: the instruction for adding one.

A benchmark NAME is a folder of code, a folder of prompts and a config; no other file changes.

1. `sera_jax/worlds/NAME/`, a package that exports

       World               state of a task, as below; `World(task)` is its beginning
       VERIFIERS           name -> verifier(world, goal, agent) -> bool or None: y of a delegated
                           goal when `agent` ends, None where the program cannot tell. The first
                           one is what `config.judge` should name; where there are several, how
                           often they disagree is counted
       training_tasks      (config.tasks, seed, step, count) -> the tasks of an optimizer step; the
                           same for the same seed and step, whatever was asked before
       evaluation_tasks    (config.eval) -> {set name: tasks}; task ids are unique within a set

   The last two raise KeyError, OSError or ValueError with a sentence for the user where the config
   asks for what there is not. Data that is not part of the project is fetched or generated in them.

2. `sera_jax/rollout/templates/NAME/`: `full/` for an instruction model, `compact/` for the small
   preset, six templates each (rollout/prompts.py); `external/` with `judge`, `rubric` and `score`,
   if an external model shall judge or grade (external/graders.py). A template sees the world
   through `state(agent)`, `observe(agent)` and the result of a step, which may be of a subclass of
   StepResult that holds more.

3. `configs/NAME.py`: `base.experiment(names, small, paper)` of configs/base.py, with a function for
   each preset that sets what this benchmark has of its own. Variants, evaluation and selection come
   with it.

4. For a preset whose `config.model.path` is "", `sera_jax/worlds/NAME/demonstrations.py`, from
   which the first policy is made (warmstart/build.py). It has

       tasks               (config.warmstart, rng) -> tasks to demonstrate
       vocabulary          (tasks) -> strings that become one token each, as they occur in the text
       Script              Script(task, rng): what all agents of one tree write, mistakes included;
                           warmstart/script.py says which methods it has

A world is deterministic and does no input or output: the same commands in the same order give the
same states, whichever agents send them. One world is shared by all agents of a tree; a fork is
`copy()`, which must be cheap because every attempt of a rubric step owns one. Commands, goals and
agent names are any text: a world answers each, and raises nothing.
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
    """State of one task, shared by the agents of a tree.

    Agents are named by their place in it: "0" is the root, "0.2" its third child, "0.2@5" the sixth
    attempt at that child's goal.
    """

    task: Task

    @property
    def success(self) -> bool:
        """Whether the task is solved; it counts (R) when the world is done or the root finished."""

    @property
    def done(self) -> bool:
        """The world ends by itself: nothing more can be done, or need be. Ends every agent."""

    def join(self, agent: str, *, beside: str | None = None, goal: str | None = None) -> None:
        """Adds an agent at the world's starting place, or where agent `beside` stands.

        `goal` is what it was sent for, None at the root; it starts now.
        """

    def refuse_goal(self, goal: str) -> str:
        """Why nobody can be sent for `goal`, as the sender shall read it; "" where it can be."""

    def copy(self) -> Self: ...

    def step(self, agent: str, command: str) -> StepResult:
        """Carries out one command; a refused one changes nothing but the budget it costs."""

    def lookup(self, agent: str, command: str) -> str | None:
        """Answers a command that costs the world nothing, or None when it is a real action."""

    def observe(self, agent: str) -> str:
        """What the agent perceives now, in natural language."""

    def state(self, agent: str) -> dict[str, Any]:
        """The same facts as data; prompts in a terser style are rendered from it."""
