"""The recursion: a root, the children its delegations launch, theirs, down to `max_depth`.

Children of one step run concurrently in the one world they share with their parent, which waits
for them; each starts where every agent starts. A delegation that may not be launched (delegation
off, deepest level, cap on children used up) is answered with a notice and stays in the record as a
delegating step without children: an event with rho = 0 (METHOD 2). Where the cap leaves room for
some of a step's goals, the first ones are launched and the notice follows their reports.

Given a deterministic responder the tree is deterministic: asyncio runs one ready task at a time in
a fixed order, and `Step.order` records it. How many requests are in flight is the client's limit.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from sera_jax.rollout.node import run_node
from sera_jax.rollout.protocol import Goal
from sera_jax.rollout.situation import Assignment, Episode, Prompts, Respond, RolloutConfig
from sera_jax.trees import Node, Tree
from sera_jax.worlds.base import Task, World

ROOT = "0"

# (world, goal, agent) -> y, or an awaitable of it; None where it cannot tell. Siblings act on while
# an awaitable is awaited: whatever it needs of the world has to be read in the call itself.
Judge = Callable[[World, str, str], bool | None | Awaitable[bool | None]]


class RolloutError(RuntimeError):
    """A node's request to the policy failed. `tree` holds what there is, to look at only.

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
) -> Tree:
    """Plays `task` in `world` (which it changes) and returns the tree; R is the world's success.

    `judge` is asked once per child, when it ends; the root's outcome is the world's.
    """
    episode = Episode(task, respond, prompts, config, tree_id, seed)
    nodes: dict[str, Node] = {}

    async def run(assignment: Assignment) -> Node:
        node = await run_node(assignment, episode, delegate)
        if node.parent is None:
            verified = bool(world.success)
        else:
            verified = await _verified(judge, node, assignment)
        nodes[node.id] = dataclasses.replace(node, verified=verified)
        return nodes[node.id]

    async def delegate(
        parent: Assignment, launched: int, goals: tuple[Goal, ...]
    ) -> tuple[tuple[str, ...], str]:
        refusal, goals = _admit(parent, episode, goals)
        episode.counts["children"] += len(goals)
        children = [_child(parent, launched + i, goal, config) for i, goal in enumerate(goals)]
        for child in children:
            child.world.join(child.id)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(run(child)) for child in children]
        ended = [task.result() for task in running]
        results = [(node.goal, node.message, node.status) for node in ended]
        answers = [prompts.notice("children", results=results)] if results else []
        answers += [prompts.notice(refusal)] if refusal else []
        # The children changed the world, or nothing did: the parent sees where it stands.
        answers += [prompts.observation(parent.world, parent.id, None)]
        return tuple(child.id for child in children), "\n".join(filter(None, answers))

    world.join(ROOT)
    await run(Assignment(ROOT, None, 0, None, config.max_steps, world))
    counts = {key: episode.counts[key] for key in ("steps", "world_actions", "children")}
    facts = {"tree_id": tree_id, "seed": seed, **(info or {}), **counts}
    tree = Tree(task.task_id, float(world.success), tuple(nodes.values()), facts)
    tree = dataclasses.replace(tree, nodes=tuple(tree.walk()))
    if episode.failures:
        node_id, cause = episode.failures[0]
        raise RolloutError(tree, node_id, cause) from cause
    return tree


def _admit(
    parent: Assignment, episode: Episode, goals: tuple[Goal, ...]
) -> tuple[str | None, tuple[Goal, ...]]:
    """(kind of notice or None, the goals to launch)."""
    if not episode.config.delegation:
        return "delegation_off", ()
    if not episode.may_delegate(parent.depth):
        return "depth", ()
    left = episode.children_left()
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
        world=parent.world,
    )


async def _verified(judge: Judge | None, node: Node, assignment: Assignment) -> bool | None:
    if judge is None or node.status == "error":
        return None
    verdict = judge(assignment.world, node.goal, node.id)
    return await verdict if inspect.isawaitable(verdict) else verdict
