"""Every row of METHOD 6 as data: what a variant changes of a config, and nothing else.

--config=configs/textworld.py:small,rao_rt
--config=configs/textworld.py:small,sera_wo_d,external_scorer
"""

from collections.abc import Mapping
from typing import Any

import ml_collections

from sera_jax import rewards
from sera_jax.trees import Tree


def stated_rewards(tree: Tree) -> dict[str, float]:
    """Execution rewards by the total that the scorer states, as the released code has them."""
    return rewards.execution_rewards(tree, score_source="stated")


EXECUTION = (("execution", 1),)

# Field -> value. `labels` says who scores children in execution steps: "rubric" (the policy's
# rubrics), "judge" (y of every child), "none".
SINGLE = {
    "rollout.delegation": False,
    "rollout.max_steps": 200,
    "labels": "none",
    "cycle": EXECUTION,
    # Nothing is delegated, so the root is the only node and its reward is R.
    "rewards.execution": rewards.verified_rewards,
}
RAO = {"labels": "judge", "rewards.execution": rewards.verified_rewards}
SERA = {"labels": "rubric", "rewards.execution": rewards.execution_rewards}

VARIANTS = {
    "single_prompt": SINGLE | {"train.steps": 0},
    "multi_prompt": {"labels": "none", "cycle": EXECUTION, "train.steps": 0},
    "single_grpo": SINGLE
    | {
        "advantages": "group",
        "train.loss": "grpo",
        "train.clip_low": 0.8,
        "train.clip_high": 1.2,
    },
    "single_cispo": SINGLE,
    "rao": RAO | {"cycle": EXECUTION},
    "rao_d": RAO | {"cycle": (("execution", 12), ("decomposition", 4))},
    "rao_rt": RAO | {"cycle": (("execution", 16), ("rubric", 2))},
    "sera_wo_d_rt": SERA | {"cycle": EXECUTION},
    "sera_wo_d": SERA | {"cycle": (("execution", 16), ("rubric", 2))},
    "sera": SERA | {"cycle": (("execution", 16), ("decomposition", 2), ("rubric", 2))},
}

# Ablations of rubrics, on top of sera_wo_d_rt or sera_wo_d.
ABLATIONS = {
    "external_writer": {"rubrics.writer": "external"},
    "external_scorer": {"rubrics.scorer": "external"},
    "global_rubric": {"rubrics.writer": "global"},
    "stated_scores": {"rubrics.score_source": "stated", "rewards.execution": stated_rewards},
    "discriminative": {"rewards.rubric": rewards.ranking_discrimination_reward},
    "task_baseline": {"rubrics.baseline": "task"},
    "frozen_evaluator": {"rubrics.weights": "frozen"},
}


KNOWN = VARIANTS | ABLATIONS


def apply(config: ml_collections.ConfigDict, *names: str) -> None:
    """Sets what the named variants and ablations change; ValueError for an unknown name."""
    config.variants = ",".join(names)
    for name in names:
        if name not in KNOWN:
            raise ValueError(f"no variant {name!r}; there are {', '.join(KNOWN)}")
        set_fields(config, KNOWN[name])


def set_fields(config: ml_collections.ConfigDict, fields: Mapping[str, Any]) -> None:
    """Sets each "group.field" that `fields` names."""
    for field, value in fields.items():
        *parents, last = field.split(".")
        place = config
        for parent in parents:
            place = place[parent]
        place[last] = value
