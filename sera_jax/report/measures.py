"""What a step's trees tell beside `metrics.tree_metrics`: the figures that reports draw.

record |= measures(trees, credits)
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sera_jax import metrics, rewards
from sera_jax.trees import Tree


def measures(
    trees: Sequence[Tree], advantages: Sequence[Mapping[str, float]], margin: float = 0.2
) -> dict[str, Any]:
    """Success by tier, evaluator against outcome (METHOD 9), advantages; what has data."""
    groups = [
        (rewards.attempt_scores(node), [attempt.verified for attempt in node.attempts])
        for tree in trees
        for node in tree.forked()
    ]
    values = [value for one in advantages for value in one.values()]
    found = {
        "score_by_outcome": _score_by_outcome(trees),
        "by_tier": _by_tier(trees),
        "drift": _drift(trees),
        "ranking": metrics.ranking_metrics(groups, margin) if groups else {},
        "advantages": _spread(values),
    }
    return {name: value for name, value in found.items() if value}


def _by_tier(trees: Sequence[Tree]) -> dict[str, dict[str, int]]:
    counts: dict[str, list[bool]] = defaultdict(list)
    for tree in trees:
        counts[str(tree.info.get("tier", "all"))].append(tree.reward > 0)
    return {tier: {"trees": len(won), "successes": sum(won)} for tier, won in counts.items()}


def _drift(trees: Sequence[Tree]) -> dict[str, dict[str, float]]:
    """Mean score and mean outcome of the children that have both, by depth; attempts count too."""
    pairs = defaultdict(list)
    for node in (node for tree in trees for node in tree.nodes if node.parent is not None):
        scores = rewards.attempt_scores(node) if node.attempts else [rewards.node_score(node)]
        for run, score in zip(node.attempts or (node,), scores, strict=True):
            if node.rubric is not None and None not in (score, run.verified):
                pairs[str(node.depth)].append((score, float(run.verified)))
    return {
        depth: {
            "nodes": len(found),
            "score": float(np.mean([score for score, _ in found])),
            "verified": float(np.mean([verified for _, verified in found])),
        }
        for depth, found in sorted(pairs.items())
    }


def _score_by_outcome(trees: Sequence[Tree]) -> dict[str, float]:
    """Mean score of the attempts at forked goals that succeeded and failed, by depth."""
    found = defaultdict(list)
    for node in (node for tree in trees for node in tree.forked()):
        for attempt, score in zip(node.attempts, rewards.attempt_scores(node), strict=True):
            if None not in (score, attempt.verified):
                found[f"d{node.depth} {'success' if attempt.verified else 'failure'}"].append(score)
    return {name: float(np.mean(scores)) for name, scores in sorted(found.items())}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p05, p95 = np.percentile(values, [5, 95])
    zero = float(np.mean(np.equal(values, 0.0)))
    return {"mean": float(np.mean(values)), "p05": float(p05), "p95": float(p95), "zero": zero}
