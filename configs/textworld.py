"""Recursive agents on TextWorld-Sync v9 (METHOD 7).

    python launch/main.py --config=configs/textworld.py          # chooses a preset and says which
    python launch/main.py --config=configs/textworld.py:small    # any machine, no weights needed
    python launch/main.py --config=configs/textworld.py:paper    # Qwen3-4B beside SGLang servers
    python launch/main.py --config=configs/textworld.py:small,rao   # see variants.py

`small` makes its own 0.7 M parameter policy and trains it on fresh easy and medium tasks of the
train fold. On two CPU cores it takes about ten minutes and 3 GB; held-out success goes from about
one half to about nine tenths.

`paper` is the published setting; it needs accelerators, the weights and SGLang servers. Unmeasured.

Any field can be set on the command line: --config.train.steps=5
"""

import ml_collections

from configs import base

ALONE = {"rollout.context_length": 2_048, "train.row_lengths": (512, 2_048)}


def get_config(names: str = "") -> ml_collections.ConfigDict:
    """The locked config of "PRESET,VARIANT,...": each part may be left out."""
    return base.experiment(__file__, names, {"small": small, "paper": paper}, ALONE)


def small() -> ml_collections.ConfigDict:
    config = base.small()
    config.benchmark = "textworld_sync"
    config.judge = "mentions"

    config.rollout.context_length = 512
    config.rollout.max_new_tokens = 48
    # Nothing in the objective charges for a child, so a small policy over-delegates: bounded here.
    config.rollout.max_children = 8
    config.train.row_lengths = (256, 512)

    config.tasks.source = "fresh"  # new tasks of the train fold, or "train": the published split
    config.tasks.tiers = ("easy", "medium")
    config.tasks.action_budget = 100  # world actions, METHOD 7's training budget; 0: the task's own

    config.eval.tasks = 200  # a tier and set
    config.eval.tiers = ("easy", "medium")
    config.eval.sets = ("fresh", "test")  # fresh seeds of the train fold, the published test split

    config.warmstart.tiers = ("easy", "medium")
    config.warmstart.tasks = 2800  # demonstration trees
    config.warmstart.context_length = 512
    config.warmstart.vocabulary = 640
    config.warmstart.steps = 2000
    return config


def paper() -> ml_collections.ConfigDict:
    config = base.paper()
    config.benchmark = "textworld_sync"
    config.judge = "mentions"

    config.rollout.context_length = 13_312
    config.rollout.max_new_tokens = 3_072

    config.tasks.tiers = ("medium", "extreme", "hard")
    config.tasks.action_budget = 100
    config.train.steps = 400

    config.eval.tasks = 350
    config.eval.sets = ("test",)
    return config
