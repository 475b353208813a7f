"""The training loop, top to bottom: sample, credit, batch, update, sync, log, save.

One optimizer step samples fresh trees with the current weights, turns their rewards into
advantages, and takes one gradient step; the new weights then go to the policy servers, which the
trainer knows only as URLs (METHOD 5). Held-out success is measured before and after.

Servers and trainer wait for each other as little as METHOD 5 allows:

    on-policy        the servers start on the next step as soon as they have its weights, while
                     this one is written down and saved
    train.overlap    the servers sample step n + 1 while the trainer trains step n: every tree is
                     trained one update after the weights that sampled it. One objective only.
"""

import asyncio
import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from sera_jax import (
    batching,
    credit,
    evaluate,
    hosts,
    losses,
    metrics,
    sampled,
    schedule,
    step_record,
    supervision,
    train_step,
)
from sera_jax.checkpoints import Checkpoints
from sera_jax.interrupt import Interrupt
from sera_jax.journal import Journal
from sera_jax.model import qwen3
from sera_jax.sampled import Sampled
from sera_jax.sampler import Sampler
from sera_jax.serving import weight_sync
from sera_jax.serving.errors import PolicyServerError, ServersLost
from sera_jax.trees import Tree

WEIGHTS = "weights"  # folder of a run, in which its servers find them


@dataclasses.dataclass
class Run:
    """What the phases of one run share. `state`, `step` and `pending` are of one moment."""

    config: Any
    folder: pathlib.Path
    model: qwen3.Config
    setup: train_step.Setup
    state: train_step.TrainState
    checkpoints: Checkpoints
    sampler: Sampler
    step: int = 0  # optimizer steps done, no-ops included
    pending: Sampled | None = None  # of `step`, where its trees are here before it begins
    ahead: asyncio.Task | None = None  # the sampling under way
    supervision: dict[str, Any] = dataclasses.field(default_factory=dict)  # of all that is here
    sampling_ended: float = 0.0  # when the servers ran out of work
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # by phase, all steps
    recent: list[float] = dataclasses.field(default_factory=list)  # seconds of this start's steps
    trouble: Exception | None = None  # for which the run saves and stops
    interrupt: Interrupt = dataclasses.field(default_factory=Interrupt)

    @contextlib.contextmanager
    def timed(self, phase: str, record: dict[str, Any] | None = None):
        """Adds the block's seconds to the run's, and to a step's record."""
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        if record is not None:
            record[f"seconds_{phase}"] = record.get(f"seconds_{phase}", 0.0) + seconds


async def train(run: Run) -> str | None:
    """From the run's present step to its last -> the closing table; None when interrupted."""
    config = run.config
    async with run.sampler:
        with run.interrupt, Journal(run.folder, run.step, config.run.tree_bytes) as journal:
            await sync(run)  # first of all: nobody knows what the servers hold
            fresh = run.step == 0 and goes_on(run)
            before = await held_out(run, "before") if fresh else read_back(run, "before")
            while run.step < config.train.steps and goes_on(run):
                if not await optimizer_step(run, journal):
                    break
            await stop_sampling(run)
            if run.trouble and not run.interrupt.asked:
                stop(run)
            save(run)
            run.checkpoints.wait()  # measured weights must not be lost and trained anew
            # Nothing was trained where there are no steps: one measurement says all.
            after = await held_out(run, "after") if config.train.steps else {}
    # Not by run.interrupt: an interrupt from here on may have reached some processes only.
    return None if before is None or after is None else closing_table(run, before, after)


async def optimizer_step(run: Run, journal: Journal) -> bool:
    """One step, written down and saved; False when interrupted, and then nothing has changed.

    A batch without any signal is a no-op that still counts as a step (METHOD 5).
    """
    config, start = run.config, time.monotonic()
    record: dict[str, Any] = {"objective": schedule.objective_at(run.step, config.cycle)}

    # ---- Sample: fresh trees of fresh tasks
    with run.timed("trainer_idle", record):
        got = run.pending or await next_trees(run)
    if got is None:
        return False
    if config.train.overlap:
        run.pending = got  # until they are trained
        start_sampling(run)  # of the step after this one

    # ---- Credit: rewards of each tree, advantages within each task or batch
    credited = credit.credit(record["objective"], got.groups, config, run.sampler.prompts.decode)

    # ---- Batch
    batches = batching.pack(
        credited.sequences,
        row_length=config.train.row_lengths,
        rows=config.train.rows,
        keep_idle=False,
        share_prefixes=config.train.share_prefixes,
    )
    record |= metrics.version_lag(got.trees, int(run.state.step))

    # ---- Trees for the report, with what the trainer makes of their tokens before the update
    some = slice(None, None, max(1, len(got.trees) // config.run.save_trees))  # of all tasks
    with run.timed("reporting", record):
        logprobs = await asyncio.to_thread(trainer_logprobs, run, got.trees[some])

    # ---- Update: state, step and pending trees change together
    with run.timed("training", record):
        state, updated = await asyncio.to_thread(update, run, credited, batches)
    following = None
    if config.train.overlap:
        with run.timed("trainer_idle", record):
            following = await next_trees(run, give_up=False)
    run.state, run.step, run.pending = state, run.step + 1, following

    # ---- Sync: the servers sample the next trees with the new weights
    with run.timed("syncing", record):
        if batches:
            record["sync"] = await sync(run)
    now = time.monotonic()
    record |= {"seconds_servers_idle": now - run.sampling_ended, "seconds_step": now - start}
    run.recent.append(now - start)
    start_sampling(run)

    # ---- Record and save, while the servers are at work again
    def write_down() -> None:
        nonlocal record
        record = (
            step_record.step_metrics(config, record["objective"], got, credited, batches)
            | record
            | updated
        )
        journal.write(
            run.step - 1,
            record,
            got.trees[some],
            rewards=credited.rewards[some],
            advantages=credited.advantages[some],
            trainer_logprobs=logprobs,
        )
        left = metrics.seconds_left(run.recent, config.train.steps - run.step)
        print(metrics.progress_line(run.step - 1, config.train.steps, record, left), flush=True)
        if run.step % config.run.checkpoint_every == 0:
            journal.flush()  # a run that goes on from the checkpoint writes none of it again
            save(run)

    await asyncio.to_thread(write_down)
    return True


def start_sampling(run: Run) -> None:
    """Has the servers sample the first step that has no trees, unless they are at it."""
    step = run.step + (run.pending is not None)
    if run.ahead or step >= run.config.train.steps or run.trouble or run.interrupt.asked:
        return

    async def sample() -> Sampled:
        try:
            return await sampled.sample(run.sampler, step)
        finally:
            run.sampling_ended = time.monotonic()

    run.ahead = asyncio.create_task(sample())


async def next_trees(run: Run, give_up: bool = True) -> Sampled | None:
    """The trees under way, of all processes; None where there are none, or the run has to stop.

    An interrupt ends the wait only if it may `give_up`: once the trainer has gone on, other
    weights would sample these trees anew.
    """
    start_sampling(run)
    own = None
    if run.ahead:
        try:
            own = await (run.interrupt.unless_asked(run.ahead) if give_up else run.ahead)
        except ServersLost as error:
            run.trouble = error
    elif run.step + (run.pending is not None) >= run.config.train.steps:
        return None
    run.ahead = None
    if not goes_on(run) and (give_up or run.trouble):
        return None
    shares = [own]
    if hosts.count() > 1:
        shares = [Sampled.from_text(t.decode()) for t in hosts.gather_bytes(own.to_text().encode())]
    got = sampled.joined(shares)
    run.supervision = got.supervision
    return got


async def stop_sampling(run: Run) -> None:
    """Ends the sampling under way, whose trees a resumed run samples again."""
    if run.ahead:
        run.ahead.cancel()
        await asyncio.gather(run.ahead, return_exceptions=True)
        run.ahead = None


def goes_on(run: Run) -> bool:
    """Whether no process was asked to stop or is in trouble; of either, all know from here on."""
    said = hosts.gather([run.interrupt.asked, str(run.trouble or "")])
    run.interrupt.asked = any(asked for asked, _ in said)
    for number, (_, trouble) in enumerate(said):
        if trouble:
            run.trouble = run.trouble or hosts.HostError(f"process {number}: {trouble}")
    return not (run.interrupt.asked or run.trouble)


def update(
    run: Run, credited: credit.Credit, batches: Sequence[batching.Batch]
) -> tuple[train_step.TrainState, dict[str, float]]:
    """The state after the step, which consumes the run's, and the metrics of the update."""
    if not batches:
        return run.state, {}
    loss = loss_function(
        run.config.train.loss, run.config.train.clip_low, run.config.train.clip_high
    )
    idle = batching.idle_tokens(credited.sequences)
    state, updated = train_step.update(run.state, batches, loss, run.setup, idle)
    return state, {name: float(value) for name, value in updated.items()}


def trainer_logprobs(run: Run, trees: Sequence[Tree]) -> list[dict[str, list[float]]]:
    """Node id -> the trainer's log-prob of every generated token, a dict a tree."""
    config, found = run.config.train, [{} for _ in trees]
    nodes = [(i, node) for i, tree in enumerate(trees) for node in tree.nodes if node.steps]
    for start in range(0, len(nodes), config.rows):
        some = nodes[start : start + config.rows]
        batch = batching.one_a_row([node for _, node in some], max(config.row_lengths), config.rows)
        placed = train_step.place_batch(batch, run.setup.mesh)
        scored = hosts.fetch(train_step.score(run.state.params, placed, run.setup))
        for (index, node), row, mask in zip(some, scored, batch.mask, strict=False):
            found[index][node.id] = row[mask].tolist()
    return found


async def held_out(run: Run, when: str) -> dict[str, list] | None:
    """Set name -> evaluation records; None when interrupted. Goes on from its own files.

    Each process plays its share of the tasks; the first one's files hold all in the end.
    """
    config = run.config
    settings = {"when": when, "rollout": config.rollout.to_dict(), "eval": config.eval.to_dict()}
    sets = run.sampler.worlds.evaluation_tasks(config.eval)
    with run.timed("evaluation"):
        results = await run.interrupt.unless_asked(
            evaluate.evaluate_sets(
                {name: hosts.share(tasks) for name, tasks in sets.items()},
                functools.partial(
                    run.sampler.tree, asked=credit.Sampling(), temperature=config.eval.temperature
                ),
                hosts.own_folder(run.folder) / f"evaluation_{when}",
                title=f"held-out success {when}",
                concurrency=config.server.max_concurrency,
                settings=settings,
            )
        )
    if not goes_on(run):
        return None
    if hosts.count() > 1:
        results = {name: hosts.interleaved(hosts.gather(own)) for name, own in results.items()}
        if hosts.is_first():
            for name, records in results.items():
                metrics.rewrite_lines(run.folder / f"evaluation_{when}_{name}.jsonl", records)
    return results


def read_back(run: Run, when: str) -> dict[str, list]:
    """Records that an earlier start of the run has measured."""
    sets = run.sampler.worlds.evaluation_tasks(run.config.eval)
    return evaluate.saved_sets(sets, run.folder / f"evaluation_{when}")


async def sync(run: Run) -> dict[str, float]:
    """Puts the present weights, named by their number of updates, on every server.

    -> the metrics of it. What goes wrong becomes the run's trouble: the step is still recorded.
    """
    try:
        synced = await run.interrupt.unless_asked(
            weight_sync.sync(
                run.sampler.client,
                run.state.params,
                run.model,
                run.folder / WEIGHTS,
                version=str(int(run.state.step)),
                dtype=run.config.model.dtype,
                mesh=run.setup.mesh,
            )
        )
    except PolicyServerError as error:
        run.trouble, synced = error, None
    return synced.record() if synced else {}


def stop(run: Run) -> NoReturn:
    """Saves the run, as far as the disk takes it, and raises its trouble."""
    try:
        save(run)
        run.checkpoints.wait()
    except Exception as error:  # orbax raises anything; the older checkpoints are whole
        print(f"step {run.step} could not be saved: {str(error).splitlines()[0][:300]}", flush=True)
    raise run.trouble


def restore(run: Run) -> bool:
    """Takes the run to its newest checkpoint; False where there is none."""
    restored = run.checkpoints.restore_latest(run.state)
    if restored is None:
        return False
    run.state, run.step, extras = restored.state, restored.step, restored.extras
    run.seconds, run.supervision = extras["seconds"], extras["supervision"]
    run.pending = Sampled.from_text(extras["pending"]) if extras["pending"] else None
    if hosts.is_first():  # the counters of all processes are summed
        run.sampler.counters = supervision.Counters(run.supervision)
    return True


def save(run: Run) -> None:
    """Checkpoints this moment, unless it is saved already."""
    if run.step and run.checkpoints.latest_step != run.step:
        pending = run.pending.to_text() if run.pending else ""
        extras = {"seconds": run.seconds, "supervision": run.supervision, "pending": pending}
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
    purposes = run.supervision
    if purposes:
        columns = list(next(iter(purposes.values())))
        rows = [[purpose, *map(str, used.values())] for purpose, used in purposes.items()]
        parts.append("Supervision\n" + evaluate.aligned([["", *columns], *rows]))
    times = ((name.replace("_", " "), metrics.short_time(s)) for name, s in run.seconds.items())
    parts.append("Wall clock: " + ", ".join(f"{name} {seconds}" for name, seconds in times))
    return "\n\n".join(parts)
