"""Recursive agents on TextCraft-Synth (METHOD 7).

    python launch/main.py --config=configs/textcraft.py:small    # any machine, no weights needed
    python launch/main.py --config=configs/textcraft.py:paper    # Qwen3-4B beside SGLang servers
    python launch/main.py --config=configs/textcraft.py:small,rao   # see variants.py

The benchmark's package (4 MB) is installed on first use. `small` makes its own policy of under a
million parameters, which learns to ask for recipes in worlds whose items have changed their names,
and trains it on fresh easy and medium tasks of the published world.

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
    config.benchmark = "textcraft_synth"
    config.judge = "delta"

    config.rollout.context_length = 512
    config.rollout.max_new_tokens = 64
    # Nothing in the objective charges for a child, so a small policy over-delegates: bounded here.
    config.rollout.max_children = 12
    config.train.row_lengths = (256, 512)
    config.train.learning_rate = 2e-4
    config.train.steps = 40

    config.tasks.source = "fresh"  # new tasks of the train fold, or "train": the published split
    config.tasks.tiers = ("easy", "medium")  # too few of the others are won to learn by

    config.eval.tasks = 200  # a tier and set
    config.eval.at_most = ml_collections.ConfigDict({"hard": 10, "extreme": 10})  # they take long
    config.eval.tiers = ("easy", "medium", "hard", "extreme")
    config.eval.sets = ("fresh", "test")  # targets of their own, the published val split

    config.warmstart.tiers = ("easy", "medium")
    config.warmstart.tasks = 1600  # demonstration trees
    config.warmstart.context_length = 512
    config.warmstart.vocabulary = 2_048
    config.warmstart.steps = 4000
    return config


def paper() -> ml_collections.ConfigDict:
    config = base.paper()
    config.benchmark = "textcraft_synth"
    config.judge = "delta"

    config.rollout.context_length = 10_240
    config.rollout.max_new_tokens = 512

    config.tasks.tiers = ("medium",)
    config.train.steps = 250

    config.eval.tasks = 213
    config.eval.sets = ("test",)
    return config
