"""TextCraft-Synth: crafting by recipes that have to be asked for, from one shared inventory."""

from sera_jax.worlds.textcraft_synth import oracle
from sera_jax.worlds.textcraft_synth.curriculum import evaluation_tasks, fresh, training_tasks
from sera_jax.worlds.textcraft_synth.goals import goal_text, read_goal
from sera_jax.worlds.textcraft_synth.tasks import PUBLISHED, TIERS, Task, published
from sera_jax.worlds.textcraft_synth.verifiers import VERIFIERS
from sera_jax.worlds.textcraft_synth.world import World

__all__ = [
    "PUBLISHED",
    "TIERS",
    "VERIFIERS",
    "Task",
    "World",
    "evaluation_tasks",
    "fresh",
    "goal_text",
    "oracle",
    "published",
    "read_goal",
    "training_tasks",
]
