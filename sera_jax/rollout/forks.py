"""Several runs at one goal, each in its own copy of the world, of which one is committed.

Rubric steps fork to rank the runs by one rubric (METHOD 5), selection to keep the best (METHOD 8,
in selection.py). The copies are made when the goal's turn comes, so that each goal of a step starts
from what the one before it committed, and all runs start in the room where their parent stands.
"""

import asyncio
import dataclasses

from sera_jax.rollout.grading import Written, grade, record, run_child, write
from sera_jax.rollout.situation import Assignment, Delegation, Episode
from sera_jax.trees import Attempt, Node, walk


@dataclasses.dataclass
class Run:
    """A run at the goal that has ended; judging it later replaces `node`."""

    child: Assignment
    node: Node


async def fork(child: Assignment, delegation: Delegation, episode: Episode) -> Node | None:
    """B attempts at the goal of `child`, the first committed; None when the worlds are used up.

    Without a rubric there would be nothing to rank: then the child runs alone, as if not forked.
    """
    counts, config = episode.counts, episode.config
    worlds = 1 + counts["attempts"]
    if worlds >= config.fork_budget:
        return None
    counts["attempts"] += config.attempts  # now: others may delegate while the rubric is written
    written = await write(child, child.world, delegation, episode)
    if written.problem:
        counts["attempts"] -= config.attempts
        child.world.join(child.id, goal=child.goal)
        return await run_child(child, written, episode)
    counts["forks"] += 1
    runs = await run_copies(child, config.attempts, written, episode)
    return commit(delegation.parent, runs, 0, "", written)


async def run_copies(
    child: Assignment, count: int, written: Written, episode: Episode, *, graded: bool = True
) -> list[Run]:
    """Runs the goal of `child` in so many copies of its world, all at once."""
    copies = [_copy(child, index) for index in range(count)]
    for copy in copies:
        copy.world.join(copy.id, beside=copy.parent, goal=copy.goal)
    # The committed run alone will keep the call: it is one call.
    frozen = dataclasses.replace(written, call=None)

    async def run(copy: Assignment) -> Run:
        before = copy.world.copy()
        node = await run_child(copy, frozen, episode)
        return Run(copy, await grade(copy, node, before, episode) if graded else node)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(copy)) for copy in copies]
    return [task.result() for task in tasks]


def commit(parent: Assignment, runs: list[Run], chosen: int, reason: str, written: Written) -> Node:
    """Makes the world of one run the parent's -> that run's node, with the record of all."""
    winner = runs[chosen]
    attempts = [_attempt(index, run, index == chosen) for index, run in enumerate(runs)]
    parent.branch.adopt(winner.child.branch)
    node = dataclasses.replace(
        winner.node,
        rubric_call=written.call,
        attempts=tuple(attempts) if len(runs) > 1 else (),
        committed=chosen,
        choice=reason,
    )
    return record(node, parent)


def _copy(child: Assignment, index: int) -> Assignment:
    name = f"{child.id}@{index}" if index else child.id
    return dataclasses.replace(child, id=name, branch=child.branch.fork())


def _attempt(index: int, run: Run, committed: bool) -> Attempt:
    node = run.node
    below = () if committed else tuple(walk(run.child.branch.nodes, node.id))
    return Attempt(index, node.status, node.message, node.verified, node.score, below)
