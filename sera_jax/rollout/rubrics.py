"""Rubrics and scores: asking the policy for them, and reading its answers (METHOD 1 and 2).

A rubric is asked for in the parent's own context, continued by one more turn that no trajectory
keeps: whatever the parent knows, it knows there, and the server has the prefix already. A score is
asked for in a context of its own. A child whose rubric or score cannot be read has none: that is
not a score of zero.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sera_jax.rollout.rubric_text import read_rubric, read_score
from sera_jax.rollout.situation import Prompts, Respond, RolloutConfig, Situation, ask
from sera_jax.trees import Call, Node, Rubric, Score
from sera_jax.worlds.base import Task, World

if TYPE_CHECKING:
    from sera_jax.serving.answers import Generation


@dataclasses.dataclass(frozen=True)
class RubricRequest:
    """All that may be known when `agent` delegates `goal`: `tokens` are its context till then."""

    task: Task
    goal: str
    agent: str
    child: str
    depth: int  # the child's
    step: int  # the delegating one
    world: World
    tokens: tuple[int, ...]
    closed: bool
    tree_id: str
    seed: int


@dataclasses.dataclass(frozen=True)
class ScoreRequest:
    """A child that ended, with copies of the world `before` and `after` it."""

    task: Task
    rubric: Rubric
    node: Node
    before: World
    after: World
    tree_id: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Graders:
    """Who writes rubrics and who scores; the last entry of an answer says why it is None."""

    write: Callable[[RubricRequest], Awaitable[tuple[Rubric | None, Call | None, str]]]
    score: Callable[[ScoreRequest], Awaitable[tuple[Score | None, str]]]


class RequestFailed(RuntimeError):
    """The policy did not answer: the tree is given up. Its cause says why."""


def policy_graders(respond: Respond, prompts: Prompts, config: RolloutConfig) -> Graders:
    """The policy as writer and scorer."""

    async def write(request: RubricRequest) -> tuple[Rubric | None, Call | None, str]:
        turn = prompts.next_turn(prompts.rubric(request.goal), request.closed)
        prompt = (*request.tokens, *turn)
        room = config.context_length - len(prompt)
        if room < 1:
            return None, None, "the context has no room for a rubric"
        situation = _rubric_situation(request, prompt, room, config)
        answer = await _ask(respond, situation)
        call = Call(
            tokens=(*prompt, *answer.token_ids),
            start=len(prompt),
            logprobs=tuple(answer.logprobs),
            versions=tuple(answer.versions),
            text=prompts.decode(answer.token_ids),
        )
        rubric, problem = read_rubric(call.text)
        return rubric, call, problem

    async def score(request: ScoreRequest) -> tuple[Score | None, str]:
        reserved = min(config.rubric_tokens, config.context_length // 4)
        prompt = prompts.score(
            request.rubric,
            request.node,
            request.before,
            request.after,
            config.context_length - reserved,
        )
        if prompt is None:
            return None, "the context has no room for what is to be scored"
        answer = await _ask(respond, _score_situation(request, tuple(prompt), config))
        return read_score(prompts.decode(answer.token_ids), len(request.rubric.criteria))

    return Graders(write, score)


def global_rubric(rubric: Rubric) -> Callable[[RubricRequest], Awaitable[tuple]]:
    """A writer that gives every goal the same rubric."""

    async def write(request: RubricRequest) -> tuple[Rubric, None, str]:
        return rubric, None, ""

    return write


async def _ask(respond: Respond, situation: Situation) -> "Generation":
    try:
        return await ask(respond, situation)
    except Exception as error:
        raise RequestFailed(f"no {situation.kind}: {error!r}") from error


def _rubric_situation(
    request: RubricRequest, prompt: tuple[int, ...], room: int, config: RolloutConfig
) -> Situation:
    return Situation(
        input_ids=prompt,
        world=request.world,
        agent=request.agent,
        goal=request.goal,
        depth=request.depth,
        step=request.step,
        can_delegate=False,
        seed=request.seed,
        tree_id=request.tree_id,
        max_new_tokens=min(config.rubric_tokens, room),
        temperature=config.rubric_temperature,
        kind="rubric",
    )


def _score_situation(
    request: ScoreRequest, prompt: tuple[int, ...], config: RolloutConfig
) -> Situation:
    return Situation(
        input_ids=prompt,
        world=request.after,
        agent=request.node.id,
        goal=request.node.goal,
        depth=request.node.depth,
        step=len(request.node.steps),
        can_delegate=False,
        seed=request.seed,
        tree_id=request.tree_id,
        max_new_tokens=min(config.rubric_tokens, config.context_length - len(prompt)),
        temperature=0.0,
        kind="score",
        rubric=request.rubric,
        node=request.node,
        before=request.before,
    )
