"""The recursion: a root, the children its delegations launch, theirs, down to `max_depth`.

Children of one step run concurrently in the one world they share with their parent, which waits
for them; each starts where every agent starts. Where delegations fork (forks.py) or candidates are
selected (selection.py), the goals of a step take turns instead. A delegation that may not be
launched (delegation off, deepest level, cap on children or candidates used up) is answered with a
notice and stays in the record as a delegating step without children: an event with rho = 0
(METHOD 2). Where a cap leaves room for some of a step's goals, the first ones are launched and the
notice follows their reports.

Given a deterministic responder the tree is deterministic: asyncio runs one ready task at a time in
a fixed order, and `Step.order` records it. How many requests are in flight is the client's limit.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from sera_jax.rollout import forks, grading, selection
from sera_jax.rollout.node import run_node
from sera_jax.rollout.protocol import Goal
from sera_jax.rollout.rubrics import Graders
from sera_jax.rollout.situation import (
    Assignment,
    Branch,
    Delegation,
    Episode,
    Judge,
    Prompts,
    Respond,
    RolloutConfig,
)
from sera_jax.trees import Node, Tree, walk
from sera_jax.worlds.base import Task, World

ROOT = "0"


class RolloutError(RuntimeError):
    """A request to the policy failed. `tree` holds what there is, to look at only.

    Raised instead of returned so that such a tree cannot reach a reward by being overlooked.
    """

    def __init__(self, tree: Tree, node_id: str, cause: Exception):
        super().__init__(f"tree of {tree.task_id}: the request of node {node_id} failed: {cause}")
        self.tree = tree


async def rollout(
    task: Task,
    world: World,
    respond: Respond,
    prompts: Prompts,
    judge: Judge | None,
    config: RolloutConfig,
    *,
    tree_id: str,
    seed: int,
    info: dict[str, Any] | None = None,
    graders: Graders | None = None,
) -> Tree:
    """Plays `task` from `world` and returns the tree; R is the success of the world it ends in.

    That world is the one given, changed, unless a fork was committed: then it is a copy of it. The
    root's outcome is the world's, if it ended or the root finished. Who else is asked about, once
    each (METHOD 5 and 8):

    - ordinary children, when neither `attempts` nor `candidates` is above 1;
    - all attempts of forked delegations, and nobody else, with `attempts` above 1;
    - all candidates, with `candidates` above 1.

    `graders` write a rubric before and give a score after the work, `judge` gives y.
    """
    episode = Episode(
        task, respond, prompts, config, tree_id, seed, delegate, judge=judge, graders=graders
    )
    branch = Branch(world)
    root = Assignment(ROOT, None, 0, None, config.max_steps, branch)
    world.join(ROOT)
    try:
        node = await run_node(root, episode)
        await asyncio.gather(*episode.gradings)
    finally:
        for task_left in episode.gradings:
            task_left.cancel()
    branch.nodes[ROOT] = dataclasses.replace(node, verified=_solved(branch.world, node))
    tree = _tree(branch, episode, info or {})
    if episode.failures:
        node_id, cause = episode.failures[0]
        raise RolloutError(tree, node_id, cause) from cause
    return tree


async def delegate(delegation: Delegation, episode: Episode) -> tuple[tuple[str, ...], str]:
    """Launches a step's goals -> (ids of the children, what the parent reads when they ended)."""
    parent, config = delegation.parent, episode.config
    refusal, goals = _admit(parent, episode, delegation.goals)
    first = delegation.launched
    children = [_child(parent, first + i, goal, config) for i, goal in enumerate(goals)]
    parent.branch.children += len(children)
    ended = await _in_turn(children, delegation, episode)
    rest = children[len(ended) :]
    if config.candidates > 1 and rest and not parent.world.done:
        parent.branch.children -= len(rest)
        refusal, rest = "cap", []
    ended += await _together(rest, delegation, episode)
    results = [(node.goal, node.message, node.status) for node in ended]
    answers = [episode.prompts.notice("children", results=results)] if results else []
    answers += [episode.prompts.notice(refusal)] if refusal else []
    # The children changed the world, or nothing did: the parent sees where it stands.
    answers += [episode.prompts.observation(parent.world, parent.id, None)]
    return tuple(node.id for node in ended), "\n".join(filter(None, answers))


async def _in_turn(
    children: Sequence[Assignment], delegation: Delegation, episode: Episode
) -> list[Node]:
    """The first children, as far as there are worlds to fork; their ids are of what was kept."""
    if episode.config.candidates > 1:
        launch = selection.select
    elif episode.config.attempts > 1:
        launch = forks.fork
    else:
        return []
    ended = []
    for child in children:
        if delegation.parent.world.done:
            break
        node = await launch(child, delegation, episode)
        if node is None:
            break
        ended.append(node)
    return ended


async def _together(
    children: Sequence[Assignment], delegation: Delegation, episode: Episode
) -> list[Node]:
    """Ordinary children, all at once in the world of their parent."""
    graded = episode.config.attempts == 1 and episode.config.candidates == 1

    async def run(child: Assignment) -> Node:
        if not graded:
            return await grading.run_child(child, grading.Written(), episode)
        written = await grading.write(child, before, delegation, episode)
        node = await grading.run_child(child, written, episode)
        # The parent goes on meanwhile: it does not learn of scores.
        asked = grading.grade(child, node, before, episode)
        episode.gradings.append(asyncio.create_task(asked))
        return node

    for child in children:
        child.world.join(child.id, goal=child.goal)
    world = delegation.parent.world
    before = world.copy() if graded and episode.graders else world
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(run(child)) for child in children]
    return [task.result() for task in running]


def _admit(
    parent: Assignment, episode: Episode, goals: tuple[Goal, ...]
) -> tuple[str | None, tuple[Goal, ...]]:
    """(kind of notice or None, the goals to launch)."""
    if not episode.config.delegation:
        return "delegation_off", ()
    if not episode.may_delegate(parent.depth):
        return "depth", ()
    left = episode.children_left(parent.branch)
    if left is not None and len(goals) > left:
        return "cap", goals[:left]
    return None, goals


def _child(parent: Assignment, number: int, goal: Goal, config: RolloutConfig) -> Assignment:
    return Assignment(
        id=f"{parent.id}.{number}",
        parent=parent.id,
        depth=parent.depth + 1,
        goal=goal.text,
        max_steps=min(goal.max_steps or config.max_steps, config.max_steps),
        branch=parent.branch,
        context=goal.context,
    )


def _tree(branch: Branch, episode: Episode, info: dict[str, Any]) -> Tree:
    """The record: the nodes of the branch that the root ended in, and counts of all that was run.

    `steps`, `world_actions` and `children` are of these nodes, the other counts of all branches.
    """
    nodes = tuple(walk(branch.nodes, ROOT))
    facts = {"tree_id": episode.tree_id, "seed": episode.seed, **info}
    facts["steps"] = sum(len(node.steps) for node in nodes)
    facts["world_actions"], facts["children"] = branch.world_actions, branch.children
    facts |= {name: episode.counts[name] for name in grading.COUNTS}
    return Tree(episode.task.task_id, float(nodes[0].verified), nodes, facts)


def _solved(world: World, root: Node) -> bool:
    """R: success counts where the world ends by itself, or where the root says that it is done."""
    return bool(world.success and (world.done or root.status == "finished"))
