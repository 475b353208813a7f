"""Rewards to advantages: leave-one-out baselines and depth weights (METHOD 3 and 4).

One call gets the K' trees of one task, with one dict of rewards a tree. Fewer than two trees leave
nothing to compare with: their dicts come back empty and the task gives no gradient.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from sera_jax.trees import Tree

Rewards = Mapping[str, float]
Advantages = dict[str, float]


def leave_one_out(values: Sequence[float]) -> np.ndarray:
    """Each value minus the mean of the others; 0 for a value that is alone (METHOD 3)."""
    values = np.asarray(values, dtype=np.float64)
    return values - _mean_of_others(values) if values.size > 1 else np.zeros_like(values)


def execution_advantages(trees: Sequence[Tree], rewards: Sequence[Rewards]) -> list[Advantages]:
    """A_v = r_v - mean of the other trees' root outcomes R, for every node v that has a reward.

    All nodes of a tree share one baseline, so a good child of a failed tree is still reinforced
    (METHOD 3).
    """
    return _minus_baseline(rewards, [tree.reward for tree in trees])


def decomposition_advantages(trees: Sequence[Tree], rewards: Sequence[Rewards]) -> list[Advantages]:
    """A_e = rho_e - mean over the other trees of their mean rho, 0 for one without delegations.

    `rewards` is `rewards.leaf_coverage` of each tree (METHOD 3).
    """
    assert len(trees) == len(rewards), (len(trees), len(rewards))
    return _minus_baseline(rewards, [np.mean(list(r.values())) if r else 0.0 for r in rewards])


def group_normalised_advantages(
    trees: Sequence[Tree], rewards: Sequence[Rewards], eps: float = 1e-6
) -> list[Advantages]:
    """GRPO's (R - mean) / (std + eps), population std, on each tree's root (METHOD 4).

    For agents that do not delegate: nodes other than the root get no advantage.
    """
    assert len(trees) == len(rewards), (len(trees), len(rewards))
    if len(trees) < 2:
        return [{} for _ in trees]
    roots = [tree.root.id for tree in trees]
    values = np.asarray([r[root] for r, root in zip(rewards, roots, strict=True)], np.float64)
    normalised = (values - values.mean()) / (values.std() + eps)
    return [{root: float(value)} for root, value in zip(roots, normalised, strict=True)]


def rubric_advantages(
    rewards: Sequence[float | None], groups: Sequence[Hashable] | None = None
) -> list[float | None]:
    """Leave-one-out over the usable rubric events of a batch (METHOD 3).

    `rewards` has None where the attempts gave no mixed pair; those events, and events alone in
    their group, get None: no update. `groups` names each event's group; None: the whole batch is
    one, the default of the paper. The released code's variant passes task ids.
    """
    groups = [None] * len(rewards) if groups is None else list(groups)
    assert len(groups) == len(rewards), (len(groups), len(rewards))
    advantages: list[float | None] = [None] * len(rewards)
    for group in set(groups):
        usable = [i for i, g in enumerate(groups) if g == group and rewards[i] is not None]
        if len(usable) >= 2:
            values = leave_one_out([rewards[i] for i in usable])
            for index, value in zip(usable, values, strict=True):
                advantages[index] = float(value)
    return advantages


def depth_weights(depths: Sequence[int]) -> np.ndarray:
    """w_d = N_total / (D_nonempty * N_d) for each sequence; the mean weight is 1 (METHOD 4).

    `depths` covers the whole optimizer batch, without sequences that train no token.
    """
    depths = np.asarray(depths, dtype=np.int64)
    occurring, inverse, counts = np.unique(depths, return_inverse=True, return_counts=True)
    return depths.size / (occurring.size * counts[inverse].astype(np.float64))


def _mean_of_others(values: np.ndarray) -> np.ndarray:
    return (values.sum() - values) / (values.size - 1)


def _minus_baseline(rewards: Sequence[Rewards], outcomes: Sequence[float]) -> list[Advantages]:
    """Rewards of tree k minus the mean outcome of the other trees."""
    assert len(rewards) == len(outcomes), (len(rewards), len(outcomes))
    if len(rewards) < 2:
        return [{} for _ in rewards]
    baselines = _mean_of_others(np.asarray(outcomes, dtype=np.float64))
    return [
        {key: float(value - baseline) for key, value in tree_rewards.items()}
        for tree_rewards, baseline in zip(rewards, baselines, strict=True)
    ]
