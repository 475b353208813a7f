"""Scripted play, recorded as trees by the very loop that records the policy's."""

import asyncio
import random
from collections.abc import Callable, Sequence
from types import ModuleType

from sera_jax.rollout import rubrics, tree
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.situation import Respond, RolloutConfig, Situation
from sera_jax.serving.answers import Generation
from sera_jax.trees import Tree
from sera_jax.warmstart.script import Script
from sera_jax.worlds.base import Task

# A call outside of any trajectory: (prompt and answer, where the answer starts).
Call = tuple[tuple[int, ...], int]


def demonstrator(script: Script, prompts: Prompts, calls: list[Call]) -> Respond:
    """A responder that answers as `script` writes, in place of a policy server.

    What it answers as an evaluator is no part of a trajectory and is added to `calls`.
    """

    async def respond(situation: Situation) -> Generation:
        await asyncio.sleep(0)  # siblings take turns, as they do against a server
        write = {"act": script.act, "rubric": script.rubric, "score": script.score}
        ids = tuple(prompts.encode(write[situation.kind](situation)))
        if situation.kind != "act":
            ids += (prompts.tokenizer.eos_token_id,)
            calls.append((situation.input_ids + ids, len(situation.input_ids)))
        room = situation.max_new_tokens  # a script is cut where a server's answer would be
        reason, ids = "stop" if len(ids) <= room else "length", ids[:room]
        return Generation(ids, (0.0,) * len(ids), reason, (("demonstration", len(ids)),))

    return respond


async def play(
    worlds: ModuleType,
    tasks: Sequence[Task],
    script: Callable[[Task, random.Random], Script],
    prompts: Prompts,
    config: RolloutConfig,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
    *,
    graded: bool = False,
) -> tuple[list[Tree], list[Call]]:
    """One demonstration tree a task, in order; with `graded` its evaluator's calls too.

    `worlds` is the benchmark's package. `progress` is told how many trees are done.
    """
    trees, calls = [], []
    for index, task in enumerate(tasks):
        written = script(task, random.Random(f"{seed}/{index}"))
        respond = demonstrator(written, prompts, calls)
        trees.append(
            await tree.rollout(
                task,
                worlds.World(task),
                respond,
                prompts,
                None,
                config,
                tree_id=f"demonstration-{index}",
                seed=seed,
                info={"tier": task.tier, "family": task.family},
                graders=rubrics.policy_graders(respond, prompts, config) if graded else None,
            )
        )
        progress(index + 1)
    return trees, calls
