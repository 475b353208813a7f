"""Rewards of a finished tree (METHOD 2): pure functions, a dict of node or event ids each.

A reward of your own takes a `Tree`, returns such a dict, and goes into the config as the function
itself. A node without a key gets no advantage and trains no token.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from sera_jax.trees import Node, Tree

MIN_CRITERIA = 2


def rubric_score(gate: int, weights: Sequence[float], criteria: Sequence[float]) -> float:
    """s_v = g_v * sum_m w_m c_m, the weights normalised to sum 1 (METHOD 2).

    Raises ValueError for numbers that no rubric may have: a gate that is not 0 or 1, criteria
    outside [0, 1], weights that are negative, not finite or all zero.
    """
    weights = normalised_weights(weights)
    criteria = np.asarray(criteria, dtype=np.float64)
    if gate not in (0, 1):
        raise ValueError(f"the gate must be 0 or 1, got {gate}")
    if criteria.shape != weights.shape:
        raise ValueError(f"{weights.size} weights but {criteria.size} criterion scores")
    if not np.all((criteria >= 0) & (criteria <= 1)):  # also refuses NaN
        raise ValueError(f"criterion scores must lie in [0, 1], got {criteria.tolist()}")
    # Weights sum to 1 only up to rounding; the score must not leave [0, 1] for it.
    return float(gate) * min(1.0, float(weights @ criteria))


def normalised_weights(weights: Sequence[float]) -> np.ndarray:
    """The weights over their sum; ValueError when negative, not finite or all zero (METHOD 2)."""
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 1 or not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError(f"rubric weights must be finite and >= 0, got {weights.tolist()}")
    if not np.any(weights):
        raise ValueError("rubric weights must not all be 0")
    # Dividing by the largest first keeps the sum finite for any finite weights.
    weights = weights / weights.max()
    return weights / weights.sum()


def failed_by_rule(node: Node) -> bool:
    """Whether a child scores 0 with no scoring call (METHOD 2).

    True where it ran out of steps or context, crashed, or finished with no output. One that the
    world's end cut short ("done") could not write any: its work is scored.
    """
    if node.status in ("finished", "done"):
        return node.status == "finished" and not (node.message or "").strip()
    return True


def execution_rewards(tree: Tree, score_source: str = "weighted") -> dict[str, float]:
    """r_root = R, r_v = s_v elsewhere (METHOD 2); no key where rubric or score is unusable.

    `score_source="stated"` takes the scorer's own total in place of the weighted sum.
    """
    rewards = {}
    for node in tree.walk():
        reward = float(tree.reward) if node.parent is None else node_score(node, score_source)
        if reward is not None:
            rewards[node.id] = reward
    return rewards


def verified_rewards(tree: Tree, child_bonus: float = 0.0) -> dict[str, float]:
    """RAO: r_root = R, r_v = y_v, no key where nobody could tell (METHOD 2).

    `child_bonus` is RAO's lambda: it adds lambda times the mean y of a node's direct children.
    """
    rewards = {}
    for node in tree.walk():
        outcome = tree.reward if node.parent is None else node.verified
        if outcome is not None:
            rewards[node.id] = float(outcome) + child_bonus * _mean_outcome(tree, node)
    return rewards


def leaf_coverage(tree: Tree) -> dict[str, float]:
    """rho_e = R * (leaves below the children of e) / (leaves of the tree) (METHOD 2).

    Every delegation is an event; one that launched no child covers no leaf.
    """
    total = len(tree.leaves())
    return {
        event: float(tree.reward) * sum(len(tree.leaves(c)) for c in step.children) / total
        for event, _, step in tree.events()
    }


def ranking_reward(
    scores: Sequence[float | None], outcomes: Sequence[bool | None], margin: float = 0.2
) -> float | None:
    """r_rubric = -mean over P x N of max(0, margin - s_i + s_j) (METHOD 2).

    The scores and outcomes are of B attempts at one goal; attempts with an unparsable score or no
    verdict are dropped. None: no pair of a success and a failure, so no signal.
    """
    gaps, _ = success_failure_gaps(scores, outcomes)
    if not gaps.size:
        return None
    return 0.0 - float(np.maximum(0.0, margin - gaps).mean())


def ranking_discrimination_reward(
    scores: Sequence[float | None], outcomes: Sequence[bool | None], margin: float = 0.2
) -> float | None:
    """0.5 mean over P x N of clip((s_i - s_j)/margin, 0, 1) + 0.5 clip(2 std(s), 0, 1) (METHOD 2).

    The ablation that also pays for spread; std is of the population of attempts kept.
    """
    gaps, kept = success_failure_gaps(scores, outcomes)
    if not gaps.size:
        return None
    ranking = np.clip(gaps / margin, 0.0, 1.0).mean()
    return float(0.5 * ranking + 0.5 * np.clip(2.0 * kept.std(), 0.0, 1.0))


def node_score(node: Node, score_source: str = "weighted") -> float | None:
    """s_v of a node that is not the root, None where it cannot be told (METHOD 2)."""
    if score_source not in ("weighted", "stated"):
        raise ValueError(f'score_source must be "weighted" or "stated", got {score_source!r}')
    if failed_by_rule(node):
        return 0.0
    if node.rubric is None or node.score is None or len(node.rubric.criteria) < MIN_CRITERIA:
        return None
    weights = [criterion.weight for criterion in node.rubric.criteria]
    try:
        if score_source == "weighted":
            return rubric_score(node.score.gate, weights, node.score.criteria)
        # A total is a rubric of one criterion, for the same checks.
        normalised_weights(weights)
        return rubric_score(node.score.gate, [1.0], [node.score.stated])
    except (TypeError, ValueError):
        return None


def attempt_scores(node: Node, score_source: str = "weighted") -> list[float | None]:
    """s_i of every attempt at a forked goal, all by its one rubric; see `node_score`."""
    runs = (
        dataclasses.replace(node, status=a.status, message=a.message, score=a.score)
        for a in node.attempts
    )
    return [node_score(run, score_source) for run in runs]


def _mean_outcome(tree: Tree, node: Node) -> float:
    outcomes = [c.verified for c in tree.children(node.id) if c.verified is not None]
    return float(np.mean(outcomes)) if outcomes else 0.0


def success_failure_gaps(
    scores: Sequence[float | None], outcomes: Sequence[bool | None]
) -> tuple[np.ndarray, np.ndarray]:
    """s_i - s_j for every i in P and j in N, and the scores of all attempts kept."""
    kept = [
        (float(score), bool(outcome))
        for score, outcome in zip(scores, outcomes, strict=True)
        if score is not None and math.isfinite(score) and outcome in (0, 1)
    ]
    successes = np.asarray([score for score, outcome in kept if outcome], dtype=np.float64)
    failures = np.asarray([score for score, outcome in kept if not outcome], dtype=np.float64)
    return successes[:, None] - failures[None, :], np.asarray([score for score, _ in kept])
