"""TextWorld-Sync: several cooks, several dishes, one kitchen, one budget of actions."""

from sera_jax.worlds.textworld_sync import oracle
from sera_jax.worlds.textworld_sync.curriculum import evaluation_tasks, training_tasks
from sera_jax.worlds.textworld_sync.generator import FAMILIES, generate, generate_task
from sera_jax.worlds.textworld_sync.tasks import (
    Dependency,
    Dish,
    Ingredient,
    Task,
    load_published,
)
from sera_jax.worlds.textworld_sync.verifiers import VERIFIERS
from sera_jax.worlds.textworld_sync.world import World

__all__ = [
    "FAMILIES",
    "VERIFIERS",
    "Dependency",
    "Dish",
    "Ingredient",
    "Task",
    "World",
    "evaluation_tasks",
    "generate",
    "generate_task",
    "load_published",
    "oracle",
    "training_tasks",
]
