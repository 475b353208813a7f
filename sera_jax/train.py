"""The training loop, top to bottom: sample, credit, batch, update, sync, log, save.

One optimizer step samples fresh trees with the current weights, turns their rewards into
advantages, and takes one gradient step; the new weights then go to the policy servers, which the
trainer knows only as URLs (METHOD 5). Held-out success is measured before and after.
"""

import asyncio
import contextlib
import dataclasses
import functools
import pathlib
import time
from types import ModuleType
from typing import Any

from sera_jax import advantages, batching, evaluate, losses, metrics, supervision, train_step
from sera_jax.checkpoints import Checkpoints
from sera_jax.interrupt import Interrupt
from sera_jax.model import qwen3
from sera_jax.rollout.node import policy_responder
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.situation import RolloutConfig
from sera_jax.rollout.tree import RolloutError, rollout
from sera_jax.serving import weight_sync
from sera_jax.serving.client import PolicyClient
from sera_jax.trees import Tree

JUDGES = {"mentions": supervision.mentions, "none": None}


@dataclasses.dataclass
class Run:
    """What the phases of one run share. `state` and `step` are always those of one moment."""

    config: Any
    folder: pathlib.Path
    worlds: ModuleType  # the benchmark's package under sera_jax.worlds
    prompts: Prompts
    model: qwen3.Config
    setup: train_step.Setup
    state: train_step.TrainState
    checkpoints: Checkpoints
    client: PolicyClient
    step: int = 0  # optimizer steps done, no-ops included
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # by phase, all steps
    counters: supervision.Counters = dataclasses.field(default_factory=supervision.Counters)
    interrupt: Interrupt = dataclasses.field(default_factory=Interrupt)

    @contextlib.contextmanager
    def timed(self, phase: str, record: dict[str, Any] | None = None):
        """Adds the block's seconds to the run's, and to a step's record."""
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        if record is not None:
            record[f"seconds_{phase}"] = seconds


async def train(run: Run) -> str | None:
    """From the run's present step to its last -> the closing table; None when interrupted."""
    config = run.config
    async with run.client:
        with run.interrupt, metrics.MetricsWriter(run.folder, run.step) as writer:
            before = await held_out(run, "before") if run.step == 0 else None
            await sync(run)
            recent: list[float] = []  # seconds of the last steps
            while run.step < config.train.steps and not run.interrupt.asked:
                start = time.monotonic()
                record = await optimizer_step(run)
                if record is None:
                    break
                recent.append(time.monotonic() - start)
                left = metrics.seconds_left(recent, config.train.steps - run.step)
                writer.write(run.step - 1, record)
                print(metrics.progress_line(run.step - 1, config.train.steps, record, left))
                if run.step % config.run.checkpoint_every == 0:
                    save(run)
            save(run)
            before = before or await held_out(run, "before")  # of a resumed run: read back
            after = await held_out(run, "after")
    return None if run.interrupt.asked else closing_table(run, before, after)


async def optimizer_step(run: Run) -> dict[str, Any] | None:
    """One step -> its metrics; None when interrupted, and then nothing has changed.

    A batch without any signal is a no-op that still counts as a step (METHOD 5).
    """
    config, record = run.config, {"objective": "execution"}

    # ---- Sample: fresh trees of fresh tasks, with the weights of this moment
    tasks = run.worlds.training_tasks(config.tasks, config.seed, run.step, config.train.tasks)
    with run.timed("sampling", record):
        groups = await run.interrupt.unless_asked(sample(run, tasks))
    if groups is None:
        return None

    # ---- Credit: rewards of each tree, advantages within each task
    credits = []
    for group in groups:
        rewards = [config.rewards.execution(tree) for tree in group]
        credits += advantages.execution_advantages(group, rewards)

    # ---- Batch
    trees = [tree for group in groups for tree in group]
    sequences = batching.from_trees(trees, credits)
    idle = batching.idle_tokens(sequences)
    batches = batching.pack(
        sequences, row_length=config.train.row_lengths, rows=config.train.rows, keep_idle=False
    )

    # ---- Update: no await in here, so that state and step change together
    with run.timed("training", record):
        if batches:
            objective = cispo(config.train.clip_low, config.train.clip_high)
            run.state, updated = train_step.update(run.state, batches, objective, run.setup, idle)
            record |= {name: float(value) for name, value in updated.items()}
        run.step += 1

    # ---- Sync: the servers sample the next trees with the new weights
    with run.timed("syncing", record):
        if batches:
            await sync(run)

    # ---- Record
    with (run.folder / "trees.jsonl").open("a") as file:
        for tree in trees[: config.run.save_trees]:
            metrics.append_line(file, tree.to_json())
    lost = config.train.tasks * config.train.trees - len(trees)
    return {
        **metrics.tree_metrics(trees, config.rewards.execution),
        "no_op": not batches,
        "trees_lost": lost,
        "sequences": len(sequences),
        "rows": sum(len(batch.tokens) for batch in batches),
        "supervision": run.counters.to_json(),
        "client": dict(run.client.counters),
        **record,
    }


async def sample(run: Run, tasks: list) -> list[list[Tree]]:
    """K trees of each task, all at once; a tree whose request failed is left out."""
    config, size = run.config, run.config.train.trees
    verify = JUDGES[config.judge]
    judge = supervision.Judge(verify, run.counters) if verify else None

    async def one(task, number: int) -> Tree | None:
        tree_id = f"{run.step}/{task.task_id}/{number}"
        try:
            return await play(run, task, tree_id, judge, config.rollout.temperature)
        except RolloutError as error:
            print(f"tree left out: {error}", flush=True)
            return None

    trees = await asyncio.gather(*(one(task, k) for task in tasks for k in range(size)))
    groups = [trees[i * size : (i + 1) * size] for i in range(len(tasks))]
    return [[tree for tree in group if tree is not None] for group in groups]


async def held_out(run: Run, when: str) -> dict[str, list] | None:
    """Set name -> evaluation records; None when interrupted. Goes on from its own files."""
    config, results = run.config, {}
    settings = {"when": when, "rollout": config.rollout.to_dict(), "eval": config.eval.to_dict()}
    with run.timed("evaluation"):
        for name, tasks in run.worlds.evaluation_tasks(config.eval).items():

            async def one(task, name=name) -> Tree:
                return await play(
                    run, task, f"{name}/{task.task_id}", None, config.eval.temperature
                )

            results[name] = await run.interrupt.unless_asked(
                evaluate.evaluate(
                    tasks,
                    one,
                    run.folder / f"evaluation_{when}_{name}.jsonl",
                    title=f"held-out success {when}, {name} tasks",
                    concurrency=config.server.max_concurrency,
                    settings=settings,
                )
            )
            if results[name] is None:
                return None
    return results


async def play(run: Run, task, tree_id: str, judge, temperature: float) -> Tree:
    """One tree of `task` by the present policy."""
    respond = policy_responder(
        run.client, temperature=temperature, stop_token_ids=run.prompts.stop_ids
    )
    return await rollout(
        task,
        run.worlds.World(task),
        respond,
        run.prompts,
        judge,
        RolloutConfig(**run.config.rollout),
        tree_id=tree_id,
        seed=run.config.seed,
        info={"tier": task.tier, "family": task.family, "optimizer_step": run.step},
    )


async def sync(run: Run) -> None:
    """Puts the present weights, named by their number of updates, on every server."""
    version = str(int(run.state.step))
    await weight_sync.sync(
        run.client,
        run.state.params,
        run.model,
        run.folder / "weights",
        version=version,
        dtype=run.config.model.dtype,
    )


def save(run: Run) -> None:
    """Checkpoints this moment, unless it is saved already."""
    if run.step and run.checkpoints.latest_step != run.step:
        extras = {"seconds": run.seconds, "supervision": run.counters.to_json()}
        run.checkpoints.save(run.step, run.state, extras)


@functools.cache  # one function object, one compilation
def cispo(clip_low: float, clip_high: float):
    return functools.partial(losses.cispo, clip_low=clip_low, clip_high=clip_high)


def closing_table(run: Run, before: dict[str, list], after: dict[str, list]) -> str:
    """Held-out success before and after, seconds by phase, calls to verifiers and models."""
    parts = []
    for name in before:
        columns = {"before": before[name], "after": after[name]}
        summaries = {when: evaluate.summary(records) for when, records in columns.items()}
        parts.append(f"Held-out success in %, {name} tasks\n{evaluate.table(summaries)}")
    usage = run.counters.to_json()
    calls = ", ".join(f"{purpose} {used['calls']}" for purpose, used in usage.items()) or "none"
    tokens = run.counters.total().input_tokens
    seconds = ", ".join(f"{name} {metrics.short_time(s)}" for name, s in run.seconds.items())
    parts.append(f"Verifier calls: {calls} ({tokens} model input tokens)\nWall clock: {seconds}")
    return "\n\n".join(parts)
