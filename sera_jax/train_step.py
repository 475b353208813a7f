"""One optimizer step: gradient sums over micro-batches, one division, clip, AdamW (METHOD 4, 7)."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from sera_jax import losses
from sera_jax.batching import Batch
from sera_jax.model import qwen3, sharding
from sera_jax.model.logprobs import loss_gradients, token_logprobs

LOSSES = {"cispo": losses.cispo, "grpo": losses.grpo, "cross_entropy": losses.cross_entropy}


@flax.struct.dataclass
class TrainState:
    params: Any
    opt_state: Any
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a step is compiled for. Build it once: an equal one with a new optimizer compiles anew.

    `dtype` is that of matrix products; parameters, gradient sums and moments stay float32.
    """

    config: qwen3.Config
    optimizer: optax.GradientTransformation
    dtype: str = "float32"
    remat: str = "none"
    chunk: int = 512
    temperature: float = 1.0
    mesh: jax.sharding.Mesh | None = None


def make_optimizer(
    learning_rate: float = 3e-6,
    *,
    warmup_steps: int = 0,
    cosine_steps: int | None = None,
    weight_decay: float = 0.017,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    clip_norm: float = 1.0,
    mu_dtype: str = "float32",
) -> optax.GradientTransformation:
    """AdamW after global-norm clipping, with METHOD 7's settings as defaults.

    Linear warm-up, then constant; with `cosine_steps` (the whole length, warm-up included) the
    rate falls to zero along a cosine. Weight decay reaches every parameter. `mu_dtype` is that of
    the first moment; "bfloat16" saves 2 bytes a parameter.
    """
    if cosine_steps is None:
        after = optax.constant_schedule(learning_rate)
    else:
        after = optax.cosine_decay_schedule(learning_rate, max(cosine_steps - warmup_steps, 1))

    def schedule(step):
        # The first step of a warm-up is not lost on a rate of zero.
        rising = learning_rate * (step + 1) / (warmup_steps + 1)
        return jnp.where(step < warmup_steps, rising, after(step - warmup_steps))

    return optax.chain(
        optax.clip_by_global_norm(clip_norm),
        optax.adamw(schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mu_dtype=mu_dtype),
    )


def init_state(params: Any, setup: Setup) -> TrainState:
    """A state at step 0, placed on the mesh where there is one. Leaves `params` usable."""

    def build(params):
        return TrainState(params, setup.optimizer.init(params), jnp.zeros((), jnp.int32))

    if setup.mesh is None:
        return jax.jit(build)(jax.tree.map(jnp.array, params))
    targets = state_shardings(setup)
    return jax.jit(build, out_shardings=targets)(sharding.place(params, targets.params))


def state_shardings(setup: Setup) -> TrainState:
    """Shardings of a whole state; moments lie where their parameters do."""
    declared = qwen3.parameters(setup.config)
    params = sharding.param_shardings(declared, setup.mesh)
    everywhere = sharding.replicated(setup.mesh)
    shapes = jax.eval_shape(functools.partial(qwen3.init, config=setup.config), jax.random.key(0))
    opt_state = optax.tree_map_params(
        setup.optimizer,
        lambda _, target: target,
        jax.eval_shape(setup.optimizer.init, shapes),
        params,
        transform_non_params=lambda _: everywhere,
    )
    return TrainState(params, opt_state, everywhere)


def place_batch(batch: Batch, mesh: jax.sharding.Mesh | None) -> Batch:
    """Moves a micro-batch to the devices, its rows split over data and fsdp."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, batch)
    rows, parts = batch.tokens.shape[0], mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        raise ValueError(
            f"{rows} rows a micro-batch do not divide over data x fsdp = {parts} devices; "
            "set rows to a multiple"
        )
    target = sharding.spec(("batch", None), batch.tokens.shape, mesh)
    target = jax.sharding.NamedSharding(mesh, target)
    return sharding.place(batch, jax.tree.map(lambda _: target, batch))


def update(
    state: TrainState,
    batches: Iterable[Batch],
    objective: str | Callable,
    setup: Setup,
    idle_tokens: int = 0,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer step on all micro-batches of one optimizer batch. Consumes `state`.

    `objective` names a loss of losses.py or is a function with the signature of losses.cispo.
    `idle_tokens` are trained tokens that no batch holds because their advantage is 0: they count
    in T (METHOD 4). Metrics are means over the tokens in the batches, but `tokens` (T) and
    `gradient_norm` (before clipping).
    """
    sums = None
    for batch in batches:
        if sums is None:
            sums = _zeros(state.params, _metric_names(objective), setup)
        sums = _accumulate(sums, state.params, place_batch(batch, setup.mesh), objective, setup)
    if sums is None:
        raise ValueError("update() got no micro-batch; a batch without signal is a step to skip")
    return _apply(state, sums, float(idle_tokens), setup)


@functools.partial(jax.jit, static_argnames="setup")
def score(params: Any, batch: Batch, setup: Setup) -> jax.Array:
    """log p of the batch's targets, [B, T]."""
    return token_logprobs(
        params,
        _hidden(params, batch, setup),
        batch.targets,
        setup.config,
        setup.chunk,
        temperature=setup.temperature,
    )


def gradients(
    params: Any, batch: Batch, objective: str | Callable, setup: Setup
) -> tuple[Any, dict[str, jax.Array]]:
    """Gradient of the loss sum of one micro-batch, float32, and the sums of its metrics."""
    hidden, pull = jax.vjp(lambda params: _hidden(params, batch, setup), params)
    sums, d_head, d_hidden = loss_gradients(
        params,
        hidden,
        batch.replace(shared=None),
        functools.partial(_sums, objective=objective),
        setup.chunk,
        temperature=setup.temperature,
        mesh=setup.mesh,
    )
    (found,) = pull(d_hidden)
    name = "head" if "head" in params else "embed"
    return found | {name: found[name] + d_head}, sums


def _hidden(params: Any, batch: Batch, setup: Setup) -> jax.Array:
    return qwen3.forward(
        params,
        batch.tokens,
        batch.segment_ids,
        batch.positions,
        setup.config,
        dtype=jnp.dtype(setup.dtype),
        remat=setup.remat,
        mesh=setup.mesh,
        shared=batch.shared,
    )


def _sums(logprobs: jax.Array, batch: Batch, objective: str | Callable) -> dict[str, jax.Array]:
    """The loss and the metrics of some places, "loss" and "tokens" among them."""
    function = LOSSES[objective] if isinstance(objective, str) else objective
    if function is losses.cross_entropy:
        loss, count, metrics = function(logprobs, batch.mask)
    else:
        loss, count, metrics = function(
            logprobs, batch.behavior_logprobs, batch.advantages, batch.weights, batch.mask
        )
    return metrics | {"loss": loss, "tokens": count}


@functools.cache
def _metric_names(objective: str | Callable) -> tuple[str, ...]:
    """Names of the scalars that the objective sums up."""
    function = LOSSES[objective] if isinstance(objective, str) else objective
    example = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    arguments = 2 if function is losses.cross_entropy else 5
    metrics = jax.eval_shape(function, *[example] * arguments)[2]
    return (*sorted(metrics), "loss", "tokens")


@functools.partial(jax.jit, static_argnames=("names", "setup"))
def _zeros(params: Any, names: tuple[str, ...], setup: Setup):
    gradients = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return _pinned(gradients, setup), {name: jnp.zeros(()) for name in names}


# Traced once per bucket of row lengths; tests count on it.
@functools.partial(jax.jit, static_argnames=("objective", "setup"), donate_argnames="sums")
def _accumulate(sums, params: Any, batch: Batch, objective: str | Callable, setup: Setup):
    found, scalars = jax.tree.map(jnp.add, sums, gradients(params, batch, objective, setup))
    return _pinned(found, setup), scalars


@functools.partial(jax.jit, static_argnames="setup", donate_argnames="state")
def _apply(state: TrainState, sums, idle_tokens: float, setup: Setup):
    gradients, scalars = sums
    total = scalars["tokens"] + idle_tokens
    gradients = jax.tree.map(lambda g: g / jnp.maximum(total, 1.0), gradients)
    updates, opt_state = setup.optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    tokens = jnp.maximum(scalars["tokens"], 1.0)
    metrics = {name: value / tokens for name, value in scalars.items()}
    metrics |= {"tokens": total, "gradient_norm": optax.tree.norm(gradients)}
    new = TrainState(params, opt_state, state.step + 1)
    if setup.mesh is not None:
        new = jax.lax.with_sharding_constraint(new, state_shardings(setup))
    return new, metrics


def _pinned(gradients: Any, setup: Setup) -> Any:
    """Gradient sums lie where their parameters do."""
    if setup.mesh is None:
        return gradients
    declared = qwen3.parameters(setup.config)
    targets = sharding.param_shardings(declared, setup.mesh)
    return jax.lax.with_sharding_constraint(gradients, targets)
