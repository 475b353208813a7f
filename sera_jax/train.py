"""The training loop, top to bottom: sample, credit, batch, update, sync, log, save.

One optimizer step samples fresh trees with the current weights, turns their rewards into
advantages, and takes one gradient step; the new weights then go to the policy servers, which the
trainer knows only as URLs (METHOD 5). Held-out success is measured before and after.
"""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax

from sera_jax import batching, credit, evaluate, losses, metrics, schedule, train_step
from sera_jax.checkpoints import Checkpoints
from sera_jax.interrupt import Interrupt
from sera_jax.model import qwen3
from sera_jax.report.measures import measures
from sera_jax.report.tensorboard import EventWriter
from sera_jax.rollout.grading import COUNTS
from sera_jax.sampler import Sampler
from sera_jax.serving import weight_sync
from sera_jax.tree_writer import TreeWriter
from sera_jax.trees import Tree


@dataclasses.dataclass
class Run:
    """What the phases of one run share. `state` and `step` are always those of one moment."""

    config: Any
    folder: pathlib.Path
    model: qwen3.Config
    setup: train_step.Setup
    state: train_step.TrainState
    checkpoints: Checkpoints
    sampler: Sampler
    trees: TreeWriter | None = None  # while training
    step: int = 0  # optimizer steps done, no-ops included
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # by phase, all steps
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
    async with run.sampler:
        with (
            run.interrupt,
            metrics.MetricsWriter(run.folder, run.step) as writer,
            EventWriter(run.folder, run.step) as events,
            TreeWriter(run.folder, config.run.tree_bytes, run.step) as run.trees,
        ):
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
                events.write(run.step - 1, record)
                print(metrics.progress_line(run.step - 1, config.train.steps, record, left))
                if run.step % config.run.checkpoint_every == 0:
                    save(run)
            save(run)
            before = before or await held_out(run, "before")  # of a resumed run: read back
            # Nothing was trained where there are no steps: one measurement says all.
            after = await held_out(run, "after") if config.train.steps else {}
    return None if run.interrupt.asked else closing_table(run, before, after)


async def optimizer_step(run: Run) -> dict[str, Any] | None:
    """One step -> its metrics; None when interrupted, and then nothing has changed.

    A batch without any signal is a no-op that still counts as a step (METHOD 5).
    """
    config, sampler = run.config, run.sampler
    objective = schedule.objective_at(run.step, config.cycle)
    asked = credit.sampling(objective, config)
    record: dict[str, Any] = {"objective": objective}

    # ---- Sample: fresh trees of fresh tasks, with the weights of this moment
    tasks = sampler.worlds.training_tasks(config.tasks, config.seed, run.step, config.train.tasks)
    with run.timed("sampling", record):
        groups = await run.interrupt.unless_asked(sampler.groups(tasks, run.step, asked))
    if groups is None:
        return None

    # ---- Credit: rewards of each tree, advantages within each task or batch
    trees = [tree for group in groups for tree in group]
    credited = credit.credit(objective, groups, config, sampler.prompts.decode)

    # ---- Batch
    idle = batching.idle_tokens(credited.sequences)
    batches = batching.pack(
        credited.sequences,
        row_length=config.train.row_lengths,
        rows=config.train.rows,
        keep_idle=False,
    )

    # ---- Trees for the report, with what the trainer makes of their tokens before the update
    some = slice(None, None, max(1, len(trees) // config.run.save_trees))  # of all tasks
    with run.timed("reporting", record):
        logprobs = trainer_logprobs(run, trees[some])

    # ---- Update: no await in here, so that state and step change together
    with run.timed("training", record):
        if batches:
            loss = loss_function(config.train.loss, config.train.clip_low, config.train.clip_high)
            run.state, updated = train_step.update(run.state, batches, loss, run.setup, idle)
            record |= {name: float(value) for name, value in updated.items()}
        run.step += 1

    # ---- Sync: the servers sample the next trees with the new weights
    with run.timed("syncing", record):
        if batches:
            await sync(run)

    # ---- Record
    run.trees.write(
        run.step - 1,
        objective,
        trees[some],
        rewards=credited.rewards[some],
        advantages=credited.advantages[some],
        trainer_logprobs=logprobs,
    )
    lost = config.train.tasks * config.train.trees - len(trees)
    return {
        **metrics.tree_metrics(trees, config.rewards.execution if asked.graded else outcome),
        **measures(trees, credited.advantages),
        "no_op": not batches,
        "trees_lost": lost,
        "sequences": len(credited.sequences),
        "rows": sum(len(batch.tokens) for batch in batches),
        "grading": grading_counts(trees),
        "supervision": sampler.counters.to_json(),
        "verifier_disagreement": sampler.counters.disagreement(),
        "client": dict(sampler.client.counters),
        **record,
    }


def trainer_logprobs(run: Run, trees: Sequence[Tree]) -> list[dict[str, list[float]]]:
    """Node id -> the trainer's log-prob of every generated token, a dict a tree."""
    config, found = run.config.train, [{} for _ in trees]
    nodes = [(i, node) for i, tree in enumerate(trees) for node in tree.nodes if node.steps]
    for start in range(0, len(nodes), config.rows):
        some = nodes[start : start + config.rows]
        batch = batching.one_a_row([node for _, node in some], max(config.row_lengths), config.rows)
        placed = train_step.place_batch(batch, run.setup.mesh)
        scored = jax.device_get(train_step.score(run.state.params, placed, run.setup))
        for (index, node), row, mask in zip(some, scored, batch.mask, strict=False):
            found[index][node.id] = row[mask].tolist()
    return found


def outcome(tree: Tree) -> dict[str, float]:
    """R of the root: all that a step without rewards of children knows."""
    return {tree.root.id: tree.reward}


def grading_counts(trees: Sequence[Tree]) -> dict[str, int]:
    """Rubrics, scores, verdicts and forks of a step, as they happened (METHOD 5's table)."""
    return {name: sum(tree.info.get(name, 0) for tree in trees) for name in COUNTS}


async def held_out(run: Run, when: str) -> dict[str, list] | None:
    """Set name -> evaluation records; None when interrupted. Goes on from its own files."""
    config = run.config
    settings = {"when": when, "rollout": config.rollout.to_dict(), "eval": config.eval.to_dict()}
    with run.timed("evaluation"):
        return await run.interrupt.unless_asked(
            evaluate.evaluate_sets(
                run.sampler.worlds.evaluation_tasks(config.eval),
                functools.partial(
                    run.sampler.tree, asked=credit.Sampling(), temperature=config.eval.temperature
                ),
                run.folder / f"evaluation_{when}",
                title=f"held-out success {when}",
                concurrency=config.server.max_concurrency,
                settings=settings,
            )
        )


async def sync(run: Run) -> None:
    """Puts the present weights, named by their number of updates, on every server."""
    version = str(int(run.state.step))
    await weight_sync.sync(
        run.sampler.client,
        run.state.params,
        run.model,
        run.folder / "weights",
        version=version,
        dtype=run.config.model.dtype,
    )


def save(run: Run) -> None:
    """Checkpoints this moment, unless it is saved already."""
    if run.step and run.checkpoints.latest_step != run.step:
        extras = {"seconds": run.seconds, "supervision": run.sampler.counters.to_json()}
        run.checkpoints.save(run.step, run.state, extras)


@functools.cache  # one function object, one compilation
def loss_function(name: str, clip_low: float, clip_high: float):
    function = {"cispo": losses.cispo, "grpo": losses.grpo}[name]
    return functools.partial(function, clip_low=clip_low, clip_high=clip_high)


def closing_table(run: Run, before: dict[str, list], after: dict[str, list]) -> str:
    """Held-out success before and after, seconds by phase, calls to verifiers and models."""
    parts = []
    for name in before:
        columns = {"before": before[name]} | ({"after": after[name]} if after else {})
        summaries = {when: evaluate.summary(records) for when, records in columns.items()}
        parts.append(f"Held-out success in %, {name} tasks\n{evaluate.table(summaries)}")
    purposes = run.sampler.counters.to_json()
    if purposes:
        columns = list(next(iter(purposes.values())))
        rows = [[purpose, *map(str, used.values())] for purpose, used in purposes.items()]
        parts.append("Supervision\n" + evaluate.aligned([["", *columns], *rows]))
    seconds = ", ".join(f"{name} {metrics.short_time(s)}" for name, s in run.seconds.items())
    parts.append(f"Wall clock: {seconds}")
    return "\n\n".join(parts)
