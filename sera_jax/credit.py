"""What each objective samples, and how its trees become training sequences (METHOD 3, 4 and 5).

    sampling(objective, config)    -> which calls a step of it needs, and no others
    credit(objective, groups, ...) -> what it trains, from the trees of each task

An objective whose trees hold no signal gives no sequence: its step is a recorded no-op.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sera_jax import advantages, batching, rewards
from sera_jax.trees import Node, Tree

EXECUTION_ADVANTAGES = {
    "leave_one_out": advantages.execution_advantages,
    "group": advantages.group_normalised_advantages,
}


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Calls that a step makes beside acting (METHOD 5's table)."""

    rubrics: bool = False  # written and scored
    judged: bool = False  # y of every child, or of every attempt where there are several
    attempts: int = 1  # B

    @property
    def graded(self) -> bool:
        """Whether ordinary children get a reward of their own."""
        return self.attempts == 1 and (self.rubrics or self.judged)


def sampling(objective: str, config: Any) -> Sampling:
    if objective == "execution":
        return Sampling(rubrics=config.labels == "rubric", judged=config.labels == "judge")
    if objective == "rubric":
        return Sampling(rubrics=True, judged=True, attempts=config.rubrics.attempts)
    return Sampling()


@dataclasses.dataclass(frozen=True)
class Credit:
    """What a batch trains, and why: one dict of rewards and advantages a tree, in their order.

    Keys are node ids, event ids of delegations, or ids of forked children, by objective.
    """

    sequences: list[batching.Sequence]
    rewards: list[Mapping[str, float]]
    advantages: list[Mapping[str, float]]


def credit(
    objective: str,
    groups: Sequence[Sequence[Tree]],
    config: Any,
    decode: Callable[[Sequence[int]], str],
) -> Credit:
    """Training sequences of one optimizer batch; `groups` holds the trees of each task."""
    trees = [tree for group in groups for tree in group]
    if objective == "rubric":
        return _rubric(trees, config)
    reward, advantage = {
        "execution": (config.rewards.execution, EXECUTION_ADVANTAGES[config.advantages]),
        "decomposition": (config.rewards.decomposition, advantages.decomposition_advantages),
    }[objective]
    earned, values = [], []
    for group in groups:
        earned += (of_group := [reward(tree) for tree in group])
        values += advantage(group, of_group)
    if objective == "execution":
        return Credit(batching.from_trees(trees, values), earned, values)
    return Credit(batching.from_delegations(trees, values, decode), earned, values)


def _rubric(trees: Sequence[Tree], config: Any) -> Credit:
    written = [
        (index, node)
        for index, tree in enumerate(trees)
        for node in tree.forked()
        if node.rubric_call is not None
    ]
    source = config.rubrics.score_source
    earned = [config.rewards.rubric(*scores_and_outcomes(node, source)) for _, node in written]
    by_task = config.rubrics.baseline == "task"
    tasks = [trees[index].task_id for index, _ in written] if by_task else None
    values = advantages.rubric_advantages(earned, tasks)
    credited = Credit([], [{} for _ in trees], [{} for _ in trees])
    for (index, node), reward, value in zip(written, earned, values, strict=True):
        if reward is not None:
            credited.rewards[index][node.id] = reward
        if value is not None:
            credited.advantages[index][node.id] = value
            credited.sequences.append(batching.from_call(node.rubric_call, value, node.depth))
    return credited


def scores_and_outcomes(
    node: Node, score_source: str = "weighted"
) -> tuple[list[float | None], list[bool | None]]:
    """s_i and y_i of the attempts at one forked goal, None where there is none."""
    scores = rewards.attempt_scores(node, score_source)
    return scores, [attempt.verified for attempt in node.attempts]
