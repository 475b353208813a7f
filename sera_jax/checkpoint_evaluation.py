"""A policy on held-out tasks: success, with selection (METHOD 8), and its rubrics (METHOD 9)."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from sera_jax import credit, evaluate, launching, metrics
from sera_jax.model import qwen3
from sera_jax.progress import Progress
from sera_jax.report.measures import measures
from sera_jax.sampler import Sampler
from sera_jax.trees import Tree
from sera_jax.warmstart import build


@dataclasses.dataclass(frozen=True)
class Selection:
    """The best of `candidates` at each delegation; `judge` "policy" or "external" chooses."""

    candidates: int = 1
    judge: str = "policy"

    @property
    def asked(self) -> credit.Sampling:
        several = self.candidates > 1
        external = self.judge == "external"
        return credit.Sampling(rubrics=several and not external, judged=several and external)


def success(config, policy: pathlib.Path, folder: pathlib.Path, selection: Selection) -> str:
    """Held-out success as a table; one JSON line a task in `folder`, resumed from there."""
    if selection.judge == "external":
        with config.unlocked():
            config.judge = "external"
    with _sampler(config, policy, folder) as sampler:
        results = asyncio.run(_evaluate(sampler, folder, selection))
    column = f"N = {selection.candidates}"
    parts = []
    for name, records in results.items():
        table = evaluate.table({column: evaluate.summary(records)})
        used = [f"{key} {count}" for key, count in evaluate.counts(records).items() if count]
        parts.append(f"Held-out success in %, {name} tasks\n{table}\n{', '.join(used)}".rstrip())
    return "\n\n".join(parts)


async def _evaluate(sampler: Sampler, folder: pathlib.Path, selection: Selection) -> dict:
    config = sampler.config
    limits = {
        "candidates": selection.candidates,
        "temperature": config.eval.temperature,
        "rubric_temperature": 0.0,
    }
    async with sampler:
        return await evaluate.evaluate_sets(
            sampler.worlds.evaluation_tasks(config.eval),
            functools.partial(sampler.tree, asked=selection.asked, **limits),
            folder / "evaluation",
            title=f"held-out success, N = {selection.candidates}",
            concurrency=config.server.max_concurrency,
            settings={"policy": str(config.model.path), "judge": selection.judge, **limits},
        )


def audit(config, policy: pathlib.Path, folder: pathlib.Path) -> str:
    """How well the policy's rubrics rank attempts at the goals of held-out tasks (METHOD 9).

    Plays each task as a rubric step does, and compares the scores of forked attempts with their
    verified outcomes. The figures are also in `folder`/audit.json.
    """
    with _sampler(config, policy, folder) as sampler:
        results = asyncio.run(_audit(sampler))
    found = {name: measures(trees, []) for name, trees in results.items()}
    (folder / "audit.json").write_text(json.dumps(found, indent=2) + "\n")
    rows = [["", *found]]
    for group in ("ranking", "score_by_outcome"):
        keys = dict.fromkeys(key for one in found.values() for key in one.get(group, {}))
        for key in keys:
            values = [one.get(group, {}).get(key) for one in found.values()]
            rows.append([key.replace("_", " "), *(_short(value) for value in values)])
    return f"Rubrics against verified outcomes\n{evaluate.aligned(rows)}"


async def _audit(sampler: Sampler) -> dict[str, list[Tree]]:
    config, results = sampler.config, {}
    asked = credit.sampling("rubric", config)
    slots = asyncio.Semaphore(max(1, config.server.max_concurrency // asked.attempts))
    async with sampler:
        for name, tasks in sampler.worlds.evaluation_tasks(config.eval).items():
            with Progress(f"audit of rubrics, {name} tasks", len(tasks), "trees") as progress:
                done = []

                async def one(task, name=name, done=done, progress=progress) -> None:
                    async with slots:
                        done.append(await sampler.tree(task, f"{name}/{task.task_id}", asked))
                    progress(len(done))

                await asyncio.gather(*(one(task) for task in tasks))
            results[name] = done
    return results


@contextlib.contextmanager
def _sampler(config, policy: pathlib.Path, folder: pathlib.Path) -> Iterator[Sampler]:
    with config.unlocked():
        config.model.path = str(policy)
    launching.check(config)
    jax.config.update("jax_compilation_cache_dir", str(build.cache_folder() / "xla"))
    folder.mkdir(parents=True, exist_ok=True)
    metrics.write_config(folder, config)
    model = qwen3.Config.from_huggingface(json.loads((policy / "config.json").read_text()))
    with launching.policy_servers(config, policy, folder) as servers:
        yield launching.make_sampler(config, policy, model.vocab_size, servers)


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}"
