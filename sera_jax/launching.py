"""Everything around the loop: a run folder, a first policy, servers, a clean end."""

import asyncio
import contextlib
import importlib
import pathlib
from collections.abc import Iterator
from types import ModuleType

import jax

from sera_jax import checkpoints, metrics, supervision, train, train_step
from sera_jax.evaluate import EvaluationError
from sera_jax.model import huggingface, sharding
from sera_jax.rollout.prompts import Prompts
from sera_jax.serving.client import PolicyClient, PolicyServerError
from sera_jax.serving.embedded import embedded_server
from sera_jax.warmstart import build
from sera_jax.warmstart.tokenizer import load as load_tokenizer


class SetupError(Exception):
    """Something the run needs is not there; the message says how to get it."""


# What a user can cause: shown in a line or two, without a traceback.
USER_ERRORS = (
    SetupError,
    EvaluationError,
    PolicyServerError,
    checkpoints.CheckpointError,
    huggingface.CheckpointError,
)


def run(config, folder: pathlib.Path) -> None:
    """One training run from its config to its closing table, all of it kept in `folder`."""
    check(config)
    jax.config.update("jax_compilation_cache_dir", str(build.cache_folder() / "xla"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"run folder: {folder}")
    metrics.write_config(folder, config)
    metrics.write_provenance(folder)
    first = pathlib.Path(config.model.path) if config.model.path else build.prepare(config)
    with policy_servers(config, first, folder) as urls:
        training = prepare(config, folder, first, urls)
        with training.checkpoints:
            closing = asyncio.run(train.train(training))
    if closing is None:
        print(f"stopped after step {training.step}; to go on: --config.run.folder={folder}")
        return
    policy = folder / "policy"
    huggingface.export(training.state.params, training.model, policy, first, config.model.dtype)
    (folder / "summary.txt").write_text(closing + "\n")
    print(f"\n{closing}\ntrained policy: {policy}")


def check(config) -> None:
    """Stops at once, with what to do, where weights or servers are missing."""
    path = config.model.path
    if path and not (pathlib.Path(path) / "config.json").exists():
        raise SetupError(
            f"no checkpoint at {path} (config.model.path). Get one with\n"
            f"  hf download Qwen/{pathlib.Path(path).name} --local-dir {path}"
        )
    if config.judge not in train.JUDGES:
        known = ", ".join(train.JUDGES)
        raise SetupError(f"config.judge={config.judge!r} is unknown; there are {known}")
    try:
        worlds = benchmark(config)
        worlds.training_tasks(config.tasks, config.seed, 0, 1)
        worlds.evaluation_tasks(config.eval)
    except (ImportError, KeyError, OSError, ValueError) as error:
        raise SetupError(f"the config asks for tasks that cannot be made: {error}") from error
    if config.server.url:
        asyncio.run(_check_servers(config))


def benchmark(config) -> ModuleType:
    """The package of the benchmark's world and tasks."""
    return importlib.import_module(f"sera_jax.worlds.{config.benchmark}")


async def _check_servers(config) -> None:
    async with _client(config, config.server.url.split(","), vocab_size=1) as client:
        if not await client.health():
            raise SetupError(
                f"no policy server answers at {config.server.url} (config.server.url). "
                "Start one, in SGLang's own environment, with\n  python -m sglang.launch_server "
                f"--model-path {config.model.path} --host 127.0.0.1 --port 30000"
            )


@contextlib.contextmanager
def policy_servers(config, first: pathlib.Path, folder: pathlib.Path) -> Iterator[list[str]]:
    """URLs of the configured servers, or of one that lives as long as the run."""
    if config.server.url:
        yield config.server.url.split(",")
        return
    options = (
        f"--context_length={config.rollout.context_length}",
        f"--slots={config.server.slots}",
        f"--replicas={config.server.replicas}",
    )
    with embedded_server(first, folder / "server.log", *options) as url:
        print(f"policy server: embedded, {url} (log: {folder / 'server.log'})")
        yield [url]


def prepare(config, folder: pathlib.Path, first: pathlib.Path, urls: list[str]) -> train.Run:
    """A run at its beginning, or at the newest checkpoint in `folder`."""
    mesh = sharding.make_mesh()
    params, model = huggingface.load(first, mesh=mesh)
    optimizer = train_step.make_optimizer(
        config.train.learning_rate,
        warmup_steps=config.train.warmup_steps,
        weight_decay=config.train.weight_decay,
        b1=config.train.b1,
        b2=config.train.b2,
        eps=config.train.eps,
        clip_norm=config.train.clip_norm,
    )
    setup = train_step.Setup(
        model,
        optimizer,
        dtype=config.model.dtype,
        remat=config.train.remat,
        chunk=config.train.logprob_chunk,
        temperature=config.rollout.temperature,
        mesh=mesh,
    )
    training = train.Run(
        config=config,
        folder=folder,
        worlds=benchmark(config),
        prompts=Prompts(load_tokenizer(first), config.benchmark, config.prompts),
        model=model,
        setup=setup,
        state=train_step.init_state(params, setup),
        checkpoints=checkpoints.Checkpoints(folder / "checkpoints", config.run.keep_checkpoints),
        client=_client(config, urls, model.vocab_size),
    )
    restored = training.checkpoints.restore_latest(training.state)
    if restored:
        training.state, training.step = restored.state, restored.step
        training.seconds = restored.extras["seconds"]
        training.counters = supervision.Counters(restored.extras["supervision"])
        print(f"resuming after step {training.step}")
    return training


def _client(config, urls: list[str], vocab_size: int) -> PolicyClient:
    return PolicyClient(
        urls,
        vocab_size=vocab_size,
        context_length=config.rollout.context_length,
        max_concurrency=config.server.max_concurrency,
        timeout=config.server.timeout,
        api_key_env=config.server.api_key_env,
        admin_key_env=config.server.admin_key_env,
    )
