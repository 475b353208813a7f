"""Selection at inference: the best of N candidates for every delegation (METHOD 8).

With graders, candidates are scored by one rubric written before they start. With a judge alone,
the first one that it holds to be successful wins, and later ones are not asked about.
"""

import dataclasses
from collections.abc import Sequence

from sera_jax import rewards
from sera_jax.rollout.forks import Run, commit, run_copies
from sera_jax.rollout.grading import judged, record, value, write
from sera_jax.rollout.situation import Assignment, Delegation, Episode
from sera_jax.trees import Node

BEST, TIE, FIRST_SUCCESS = "best score", "tie", "first success"
NO_RUBRIC, NO_SCORE, NO_SUCCESS = "no usable rubric", "a score is unusable", "no success"


async def select(child: Assignment, delegation: Delegation, episode: Episode) -> Node | None:
    """Tries the goal of `child` N times and commits one; None when the candidates are used up."""
    counts, count = episode.counts, episode.config.candidates
    if not episode.candidates_left():
        counts["candidates_refused"] += 1
        return None
    counts["candidates"] += count  # now: others may delegate while the rubric is written
    written = await write(child, child.world, delegation, episode)
    if written.problem:  # nothing could tell candidates apart
        counts["candidates"] -= count - 1
        count = 1
    counts["selections"] += 1
    by_rubric = episode.graders is not None
    runs = await run_copies(child, count, written, episode, graded=by_rubric)
    if written.problem:
        index, reason = 0, NO_RUBRIC
    elif by_rubric:
        index, reason = best([rewards.node_score(run.node) for run in runs])
    else:
        index, reason = await _first_success(runs, episode)
    return commit(delegation.parent, runs, index, reason, written)


def best(scores: Sequence[float | None]) -> tuple[int, str]:
    """(which candidate to commit, why)."""
    if None in scores:
        return 0, NO_SCORE
    index = scores.index(max(scores))
    return index, TIE if scores.count(scores[index]) > 1 else BEST


async def _first_success(runs: list[Run], episode: Episode) -> tuple[int, str]:
    for index, run in enumerate(runs):
        verdict = await value(judged(run.child, run.node, episode))
        run.node = record(dataclasses.replace(run.node, verified=verdict), run.child)
        if verdict:
            return index, FIRST_SUCCESS
    return 0, NO_SUCCESS
