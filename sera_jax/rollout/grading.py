"""What a child is asked about: its rubric before it runs, its score and outcome when it ended.

Every question is counted as what came of it: in `tree.info`, by the names below. METHOD 5 says
which questions a step of training may ask.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Coroutine

from sera_jax import rewards
from sera_jax.rollout.node import run_node
from sera_jax.rollout.rubrics import RequestFailed, RubricRequest, ScoreRequest
from sera_jax.rollout.situation import Assignment, Delegation, Episode
from sera_jax.trees import Call, Node, Rubric, Score
from sera_jax.worlds.base import World

Verdict = bool | None  # y

COUNTS = (
    "rubrics_written", "rubrics_invalid", "scores", "scores_invalid", "scores_by_rule",
    "judge_calls", "forks", "attempts", "selections", "candidates", "candidates_refused",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Written:
    """What became of a rubric; all empty where none was asked for."""

    rubric: Rubric | None = None
    call: Call | None = None
    problem: str = ""


async def write(
    child: Assignment, world: World, delegation: Delegation, episode: Episode
) -> Written:
    """Asks for the rubric by which `child`, which must not have started, will be scored.

    `world` is that of the delegation, a copy where siblings may act on.
    """
    if episode.graders is None:
        return Written()
    request = RubricRequest(
        task=episode.task,
        goal=child.goal,
        agent=child.parent,
        child=child.id,
        depth=child.depth,
        step=delegation.step,
        world=world,
        tokens=delegation.tokens,
        closed=delegation.closed,
        tree_id=episode.tree_id,
        seed=episode.request_seed(f"{child.id}/rubric"),
    )
    try:
        rubric, call, problem = await episode.graders.write(request)
    except RequestFailed as failure:
        episode.failures.append((child.parent, failure))
        return Written(problem=str(failure))
    if call is not None:
        call = dataclasses.replace(call, order=episode.next_order())
    if rubric is None:
        episode.counts["rubrics_invalid"] += 1
        return Written(None, call, problem or "no rubric")
    episode.counts["rubrics_written"] += 1
    return Written(rubric, call)


async def run_child(child: Assignment, written: Written, episode: Episode) -> Node:
    """Runs `child`, which has joined its world, and records it in its branch."""
    node = await run_node(child, episode)
    return record(
        dataclasses.replace(
            node,
            rubric=written.rubric,
            rubric_call=written.call,
            rubric_problem=written.problem,
        ),
        child,
    )


def grade(
    child: Assignment, node: Node, before: World, episode: Episode
) -> Coroutine[None, None, Node]:
    """Asks for outcome and score of a child that ends now -> its graded record.

    Not a coroutine itself: others act on while the answers are awaited, so that all that is asked
    about the world is read, or copied, in the call.
    """
    verdict = judged(child, node, episode)
    request = None
    if node.rubric is not None and node.status != "error" and not episode.failures:
        if rewards.failed_by_rule(node):
            episode.counts["scores_by_rule"] += 1
        else:
            request = ScoreRequest(
                task=episode.task,
                rubric=node.rubric,
                node=node,
                before=before,
                after=child.world.copy(),
                tree_id=episode.tree_id,
                seed=episode.request_seed(f"{child.id}/score"),
            )
    return _graded(child, node, verdict, request, episode)


def judged(child: Assignment, node: Node, episode: Episode) -> Verdict | Awaitable[Verdict]:
    """The judge's verdict on the world of this moment, perhaps to be awaited (see `value`)."""
    if episode.judge is None or node.status == "error":
        return None
    episode.counts["judge_calls"] += 1
    return episode.judge(child.world, node.goal, node.id)


async def value(verdict: Verdict | Awaitable[Verdict]) -> Verdict:
    return await verdict if inspect.isawaitable(verdict) else verdict


def record(node: Node, child: Assignment) -> Node:
    child.branch.nodes[node.id] = node
    return node


async def _graded(
    child: Assignment,
    node: Node,
    verdict: Verdict | Awaitable[Verdict],
    request: ScoreRequest | None,
    episode: Episode,
) -> Node:
    verified, (score, problem) = await asyncio.gather(value(verdict), _score(request, episode))
    return record(
        dataclasses.replace(node, verified=verified, score=score, score_problem=problem), child
    )


async def _score(request: ScoreRequest | None, episode: Episode) -> tuple[Score | None, str]:
    if request is None:
        return None, ""
    try:
        score, problem = await episode.graders.score(request)
    except RequestFailed as failure:
        episode.failures.append((request.node.id, failure))
        return None, str(failure)
    episode.counts["scores_invalid" if score is None else "scores"] += 1
    return score, problem
