"""Everything around the loop: a run folder, a first policy, servers, a clean end."""

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import importlib
import itertools
import pathlib
import shutil
from collections.abc import Iterator
from types import ModuleType

import jax

from sera_jax import checkpoints, credit, hosts, metrics, schedule, train, train_step
from sera_jax.evaluate import EvaluationError
from sera_jax.external.answers import ExternalError
from sera_jax.model import huggingface, sharding
from sera_jax.rollout.prompts import Prompts
from sera_jax.sampler import Sampler
from sera_jax.serving import embedded, sglang, weight_sync
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.errors import PolicyServerError
from sera_jax.serving.supervisor import Supervisor
from sera_jax.warmstart import build
from sera_jax.warmstart.tokenizer import load as load_tokenizer


class SetupError(Exception):
    """Something the run needs is not there; the message says how to get it."""


CHOICES = {
    "labels": ("judge", "rubric", "none"),
    "advantages": tuple(credit.EXECUTION_ADVANTAGES),
    "train.loss": ("cispo", "grpo"),
    "rubrics.writer": ("policy", "external", "global"),
    "rubrics.scorer": ("policy", "external"),
    "rubrics.weights": ("shared", "frozen"),
    "rubrics.baseline": ("batch", "task"),
    "rubrics.score_source": ("weighted", "stated"),
    "server.kind": ("embedded", "sglang"),
}

# What a user can cause: shown in a line or two, without a traceback.
USER_ERRORS = (
    SetupError,
    EvaluationError,
    ExternalError,
    PolicyServerError,
    checkpoints.CheckpointError,
    hosts.HostError,
    huggingface.CheckpointError,
)


def run(config, name: str) -> None:
    """One training run from its config to its closing table, all of it kept in one folder.

    Of several processes all call this, on one config and on one file system.
    """
    hosts.check_alike(config)
    check(config)
    folder = run_folder(config, name)
    with hosts.speaking_for_all(folder):
        _run(config, folder)


def run_folder(config, name: str) -> pathlib.Path:
    """The run's folder, the same for all processes; there from here on."""
    folder = ""
    if hosts.is_first():
        folder = pathlib.Path(config.run.folder) if config.run.folder else new_folder(config, name)
        folder.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(hosts.from_first(str(folder)))
    if not folder.is_dir():
        raise SetupError(
            f"{folder} is not there for every process: name a folder on a file system that all "
            "share (--config.run.folder)"
        )
    return folder


def _run(config, folder: pathlib.Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(build.cache_folder() / "xla"))
    print(f"run folder: {folder}")
    if hosts.is_first():
        metrics.write_config(folder, config)
        metrics.write_provenance(folder)
    first = first_policy(config)
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(shared_servers(config, first, folder))
        evaluator = None
        if config.rubrics.weights == "frozen":
            evaluator = stack.enter_context(shared_servers(config, first, folder, "evaluator"))
        training = prepare(config, folder, first, servers, evaluator)
        with training.checkpoints:
            try:
                closing = asyncio.run(train.train(training))
            except (PolicyServerError, EvaluationError) as error:
                raise type(error)(
                    f"{error}\nsaved up to step {training.checkpoints.latest_step or 0}; the same "
                    f"command with --config.run.folder={folder} goes on from there"
                ) from error
    if closing is None:
        print(
            f"stopped after step {training.step}; the same command with "
            f"--config.run.folder={folder} goes on from there"
        )
        return
    policy = folder / "policy"
    huggingface.export(training.state.params, training.model, policy, first, config.model.dtype)
    if hosts.is_first():
        (folder / "summary.txt").write_text(closing + "\n")
    print(f"\n{closing}\ntrained policy: {policy}")
    hosts.gather("done")  # the first one has written all that the others end with


def first_policy(config) -> pathlib.Path:
    """Folder of the policy that training starts from, by the warm start where none is named."""
    if config.model.path:
        return pathlib.Path(config.model.path)
    policy = build.place(config)

    def present() -> list[bool]:
        return hosts.gather((policy / "config.json").exists())

    if all(before := present()) or not any(before):
        build.prepare(config)
        if all(present()):
            return policy
    raise SetupError(f"{policy} is on some machines only: copy it to all, or share the folder")


def new_folder(config, name: str) -> pathlib.Path:
    """A folder under runs/ of its own, also for runs that start in the same second."""
    started = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    stem = f"{name}-{config.preset}-{config.variants.replace(',', '-')}-{started}"
    for number in itertools.count(1):
        folder = pathlib.Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


def check(config) -> None:
    """Stops at once, with what to do, where weights or servers are missing."""
    path = config.model.path
    if path and not (pathlib.Path(path) / "config.json").exists():
        raise SetupError(
            f"no checkpoint at {path} (config.model.path). Get one with\n"
            f"  hf download Qwen/{pathlib.Path(path).name} --local-dir {path}"
        )
    worlds = benchmark(config)
    for field, known in {"judge": (*worlds.VERIFIERS, "external"), **CHOICES}.items():
        value = config
        for part in field.split("."):
            value = value[part]
        if value not in known:
            raise SetupError(f"config.{field}={value!r} is unknown; there are {', '.join(known)}")
    trained = schedule.objectives(config.cycle)
    if config.train.overlap and len(trained) > 1:
        raise SetupError(
            f"config.train.overlap trains trees of older weights, which a cycle of "
            f"{len(trained)} objectives ({', '.join(trained)}) does not allow: leave it out"
        )
    if config.rollout.context_length > max(config.train.row_lengths):
        raise SetupError(
            f"a context of {config.rollout.context_length} tokens (config.rollout.context_length) "
            f"fits no row of {max(config.train.row_lengths)} (config.train.row_lengths)"
        )
    try:
        worlds.training_tasks(config.tasks, config.seed, 0, 1)
        worlds.evaluation_tasks(config.eval)
    except (KeyError, OSError, ValueError) as error:
        raise SetupError(f"the config asks for tasks that cannot be made: {error}") from error
    if config.server.url:
        asyncio.run(_check_servers(config))
    make_mesh(config)


def make_mesh(config) -> jax.sharding.Mesh:
    """The trainer's mesh over all devices of all hosts."""
    try:
        return sharding.make_mesh(fsdp=config.mesh.fsdp, tensor=config.mesh.tensor)
    except ValueError as error:
        raise SetupError(f"config.mesh: {error}") from None


def benchmark(config) -> ModuleType:
    """The package of the benchmark's world and tasks (worlds/base.py)."""
    try:
        return importlib.import_module(f"sera_jax.worlds.{config.benchmark}")
    except ImportError as error:
        raise SetupError(f"config.benchmark={config.benchmark!r}: {error}") from error


async def _check_servers(config) -> None:
    async with _client(config, Servers(config.server.url.split(",")), vocab_size=1) as client:
        if not await client.health():
            raise SetupError(
                f"no policy server answers at {config.server.url} (config.server.url). Start one "
                f"with\n  launch/sglang.sh {config.model.path or 'FOLDER'}"
            )
        await client.check_context()


@dataclasses.dataclass(frozen=True)
class Servers:
    """URLs of servers of one policy, and who keeps them alive where they are started here."""

    urls: list[str]
    keeper: Supervisor | None = None


@contextlib.contextmanager
def policy_servers(
    config, policy: pathlib.Path, folder: pathlib.Path, name: str = "server"
) -> Iterator[Servers]:
    """The configured servers, or some that are started here and live as long as the run.

    `name` "evaluator" asks for the servers of the frozen copy that scores rubrics (METHOD 9).
    """
    configured = config.server.url if name == "server" else config.server.evaluator_url
    if configured:
        yield Servers(configured.split(","))
        return
    weights = folder / train.WEIGHTS if name == "server" else None  # an evaluator keeps its own
    keeper = Supervisor(
        functools.partial(START[config.server.kind], config),
        policy,
        folder / f"{name}.log",
        count=config.server.count,
        last_synced=lambda: weight_sync.last_synced(weights) if weights else None,
        hang_timeout=config.server.hang_timeout,
    )
    with keeper:
        for child in keeper.children:
            print(f"policy {name}: {config.server.kind}, {child.url} (log: {child.log})")
        yield Servers(keeper.urls, keeper)


@contextlib.contextmanager
def shared_servers(
    config, policy: pathlib.Path, folder: pathlib.Path, name: str = "server"
) -> Iterator[Servers]:
    """policy_servers for all processes: those that are started here the first one starts."""
    configured = config.server.url if name == "server" else config.server.evaluator_url
    if not configured and not hosts.on_one_machine():
        raise SetupError(
            "servers that a run starts itself are for its own machine: on several machines start "
            "them apart and name them (config.server.url, config.server.evaluator_url)"
        )
    if configured:
        yield Servers(configured.split(","))
    elif hosts.is_first():
        with policy_servers(config, policy, folder, name) as servers:
            hosts.from_first(servers.urls)
            yield servers
    else:
        yield Servers(hosts.from_first(None))


def _start_embedded(config, model: str, version: str, port: int, log: pathlib.Path):
    flags = {
        "weight_version": version,
        "context_length": config.rollout.context_length,
        "slots": config.server.slots,
        "replicas": config.server.replicas,
        "dtype": config.model.dtype,
    }
    return embedded.start(model, log, *(f"--{k}={v}" for k, v in flags.items()), port=port)


def _start_sglang(config, model: str, version: str, port: int, log: pathlib.Path):
    return sglang.start(
        model,
        log,
        context_length=config.rollout.context_length,
        slots=config.server.slots,
        port=port,
        weight_version=version,
    )


START = {"embedded": _start_embedded, "sglang": _start_sglang}


def prepare(
    config,
    folder: pathlib.Path,
    first: pathlib.Path,
    servers: Servers,
    evaluator: Servers | None = None,
) -> train.Run:
    """A run at its beginning, or at the newest checkpoint in `folder`."""
    mesh = make_mesh(config)
    params, model = huggingface.load(first, mesh=mesh)
    optimizer = train_step.make_optimizer(
        config.train.learning_rate,
        warmup_steps=config.train.warmup_steps,
        weight_decay=config.train.weight_decay,
        b1=config.train.b1,
        b2=config.train.b2,
        mu_dtype=config.train.mu_dtype,
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
    for name in huggingface.TOKENIZER_FILES:  # what trees say is read with it, also later
        if hosts.is_first() and (first / name).is_file():
            shutil.copyfile(first / name, folder / name)
    training = train.Run(
        config=config,
        folder=folder,
        model=model,
        setup=setup,
        state=train_step.init_state(params, setup),
        checkpoints=checkpoints.Checkpoints(
            folder / "checkpoints", config.run.keep_checkpoints, config.run.keep_every
        ),
        sampler=make_sampler(config, first, model.vocab_size, servers, evaluator),
    )
    if train.restore(training):
        print(f"resuming after step {training.step}")
    return training


def make_sampler(
    config,
    policy: pathlib.Path,
    vocab_size: int,
    servers: Servers,
    evaluator: Servers | None = None,
) -> Sampler:
    """A sampler of the policy that the servers hold; its tokenizer is read here."""
    return Sampler(
        config=config,
        worlds=benchmark(config),
        prompts=Prompts(load_tokenizer(policy), config.benchmark, config.prompts),
        client=_client(config, servers, vocab_size),
        evaluator=_client(config, evaluator, vocab_size) if evaluator else None,
    )


def _client(config, servers: Servers, vocab_size: int) -> PolicyClient:
    return PolicyClient(
        servers.urls,
        vocab_size=vocab_size,
        context_length=config.rollout.context_length,
        max_concurrency=config.server.max_concurrency,
        timeout=config.server.timeout,
        total_timeout=config.server.total_timeout,
        patience=config.server.patience,
        keeper=servers.keeper,
        api_key_env=config.server.api_key_env,
        admin_key_env=config.server.admin_key_env,
    )
