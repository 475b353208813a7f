"""What each objective samples, and how its trees become training sequences (METHOD 3, 4 and 5).

    sampling(objective, config)      -> which calls a step of it needs, and no others
    sequences(objective, groups, ..) -> what it trains, from the trees of each task

An objective whose trees hold no signal gives no sequence: its step is a recorded no-op.
"""

import dataclasses
from collections.abc import Callable, Sequence
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


def sequences(
    objective: str,
    groups: Sequence[Sequence[Tree]],
    config: Any,
    decode: Callable[[Sequence[int]], str],
) -> list[batching.Sequence]:
    """Training sequences of one optimizer batch; `groups` holds the trees of each task."""
    build = {"execution": _execution, "decomposition": _decomposition, "rubric": _rubric}
    return build[objective](groups, config, decode)


def _execution(groups, config, decode) -> list[batching.Sequence]:
    credited = []
    for trees in groups:
        earned = [config.rewards.execution(tree) for tree in trees]
        values = EXECUTION_ADVANTAGES[config.advantages](trees, earned)
        credited += batching.from_trees(trees, values)
    return credited


def _decomposition(groups, config, decode) -> list[batching.Sequence]:
    credited = []
    for trees in groups:
        earned = [config.rewards.decomposition(tree) for tree in trees]
        values = advantages.decomposition_advantages(trees, earned)
        credited += batching.from_delegations(trees, values, decode)
    return credited


def _rubric(groups, config, decode) -> list[batching.Sequence]:
    forked = [(tree, node) for trees in groups for tree in trees for node in tree.forked()]
    written = [(tree, node) for tree, node in forked if node.rubric_call is not None]
    source = config.rubrics.score_source
    earned = [config.rewards.rubric(*scores_and_outcomes(node, source)) for _, node in written]
    by_task = [tree.task_id for tree, _ in written] if config.rubrics.baseline == "task" else None
    values = advantages.rubric_advantages(earned, by_task)
    return [
        batching.from_call(node.rubric_call, value, node.depth)
        for (_, node), value in zip(written, values, strict=True)
        if value is not None
    ]


def scores_and_outcomes(
    node: Node, score_source: str = "weighted"
) -> tuple[list[float | None], list[bool | None]]:
    """s_i and y_i of the attempts at one forked goal, None where there is none."""
    scores = rewards.attempt_scores(node, score_source)
    return scores, [attempt.verified for attempt in node.attempts]
