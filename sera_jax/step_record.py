"""What a step's trees tell: the part of its metrics that needs neither model nor clock."""

from collections.abc import Sequence
from typing import Any

from sera_jax import batching, credit, metrics, supervision
from sera_jax.report.measures import measures
from sera_jax.rollout.grading import COUNTS
from sera_jax.sampled import Sampled
from sera_jax.trees import Tree


def step_metrics(
    config: Any,
    objective: str,
    got: Sampled,
    credited: credit.Credit,
    batches: Sequence[batching.Batch],
) -> dict[str, Any]:
    """Figures of the trees, their grading, and what was made of them."""
    trees, graded = got.trees, credit.sampling(objective, config).graded
    return {
        **metrics.tree_metrics(trees, config.rewards.execution if graded else outcome),
        **measures(trees, credited.advantages),
        "no_op": not batches,
        "trees_lost": config.train.tasks * config.train.trees - len(trees),
        "sequences": len(credited.sequences),
        "rows": sum(len(batch.tokens) for batch in batches),
        "grading": grading_counts(trees),
        "supervision": got.supervision,
        "verifier_disagreement": supervision.Counters(got.supervision).disagreement(),
        "client": got.client,
        "seconds_sampling": got.seconds,
    }


def outcome(tree: Tree) -> dict[str, float]:
    """R of the root: all that a step without rewards of children knows."""
    return {tree.root.id: tree.reward}


def grading_counts(trees: Sequence[Tree]) -> dict[str, int]:
    """Rubrics, scores, verdicts and forks of a step, as they happened (METHOD 5's table)."""
    return {name: sum(tree.info.get(name, 0) for tree in trees) for name in COUNTS}
