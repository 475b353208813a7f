"""Batched sampling in JAX: an engine over the local devices, one replica each.

`Engine.generate` takes a request and answers when it is finished; everything between is the
replicas' (replica.py). Requests go to the replica that holds the longest part of their prompt,
unless it has much more to do than another.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp

from sera_jax.model import qwen3
from sera_jax.serving.device import Device, Shapes
from sera_jax.serving.replica import Replica
from sera_jax.serving.requests import Request

# One request in front of ours costs about as much as prefilling this many tokens.
TOKENS_A_REQUEST = 4


class ShapeMismatch(ValueError):
    """New weights do not fit the model that is being served."""


class Engine:
    def __init__(
        self,
        params: qwen3.Params,
        config: qwen3.Config,
        *,
        slots: int = 64,
        context: int = 768,
        replicas: int = 1,
        version: str = "default",
        dtype=jnp.float32,
        warm_up: bool = True,
        **shapes,
    ):
        """`slots` are shared out over `replicas` local devices; `shapes` as in device.Shapes."""
        devices = jax.local_devices()[:replicas]
        if len(devices) < replicas:
            raise ValueError(
                f"{replicas} replicas need as many devices, and JAX sees {len(devices)}; on a CPU "
                f"set XLA_FLAGS=--xla_force_host_platform_device_count={replicas}"
            )
        self.config, self.context = config, context
        self._futures: dict[str, tuple[asyncio.Future, Request, Replica]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        each = Shapes(slots=-(-slots // replicas), context=context, **shapes)
        units = [Device(params, config, each, device, dtype) for device in devices]
        if warm_up:
            with ThreadPoolExecutor(len(units)) as pool:
                list(pool.map(Device.warm_up, units))
        self.replicas = [Replica(unit, self._deliver, version) for unit in units]
        for replica in self.replicas:
            replica.start()

    @property
    def version(self) -> str:
        return self.replicas[0].version

    @property
    def load(self) -> int:
        return sum(replica.load for replica in self.replicas)

    @property
    def failure(self) -> str | None:
        return next((r.failure for r in self.replicas if r.failure), None)

    # ---- requests: from one event loop -----------------------------------------------------------

    async def generate(self, request: Request) -> Request:
        """Runs the request; it comes back with its outputs and its finish reason.

        Cancelling the call aborts the request.
        """
        if request.rid in self._futures:
            raise ValueError(f"Duplicate request ID: {request.rid}")
        self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        replica = self._route(request)
        self._futures[request.rid] = future, request, replica
        replica.submit(request)
        try:
            return await future
        finally:
            if self._futures.pop(request.rid, None) and request.finish_reason is None:
                replica.call(replica.abort, lambda other: other is request)

    def _route(self, request: Request) -> Replica:
        if len(self.replicas) == 1:
            return self.replicas[0]

        def cost(replica: Replica) -> int:
            # Read from another thread: at worst an old answer, and a poorer choice.
            reused = int(replica.slots.common_prefixes(request.input_ids).max())
            return TOKENS_A_REQUEST * replica.load - reused

        return min(self.replicas, key=cost)

    def _deliver(self, finished: list[Request]) -> None:
        self._loop.call_soon_threadsafe(self._resolve, finished)

    def _resolve(self, finished: Iterable[Request]) -> None:
        for request in finished:
            entry = self._futures.get(request.rid)
            if entry and not entry[0].done():
                entry[0].set_result(request)

    def abort(self, rid: str = "", everything: bool = False) -> None:
        """Aborts by prefix, once the very id is live, as SGLang does."""
        if everything or rid in self._futures:
            self._everywhere("abort", lambda request: everything or request.rid.startswith(rid))

    # ---- control: each waits until every replica has done it -------------------------------------

    async def pause(self, mode: str) -> None:
        await _all(self._everywhere("pause", mode))

    async def resume(self) -> None:
        await _all(self._everywhere("resume"))

    async def flush(self) -> None:
        await _all(self._everywhere("flush"))

    async def update(self, params: qwen3.Params, version: str, flush: bool = True) -> None:
        """Swaps the weights: at once while paused, else when no request runs any more."""
        check_shapes(params, self.config)
        done = []
        for replica in self.replicas:
            applied: Future = Future()
            weights = replica.device.place(params)
            replica.call(replica.update, weights, version, flush, applied)
            done.append(applied)
        await _all(done)

    def _everywhere(self, method: str, *args) -> list[Future]:
        return [replica.call(getattr(replica, method), *args) for replica in self.replicas]


async def _all(futures: list[Future]) -> None:
    await asyncio.gather(*map(asyncio.wrap_future, futures))


def check_shapes(params: qwen3.Params, config: qwen3.Config) -> None:
    """Raises where `params` differ from what the served model's config declares."""
    declared = qwen3.parameters(config)
    wanted = jax.tree.leaves_with_path(declared, is_leaf=qwen3.is_parameter)
    got = {jax.tree_util.keystr(path): leaf.shape for path, leaf in _leaves(params)}
    for path, leaf in wanted:
        name = jax.tree_util.keystr(path)
        if got.pop(name, None) != leaf.shape:
            raise ShapeMismatch(f"{name} does not have the served model's shape {leaf.shape}")
    if got:
        raise ShapeMismatch(f"{', '.join(got)} not in the served model")


def _leaves(params: qwen3.Params):
    return jax.tree.leaves_with_path(params)


class CompileCounter:
    """Counts XLA compilations of this process, to show that serving causes none."""

    def __init__(self):
        self.count = 0
        self._lock = threading.Lock()
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, name: str, *_, **__) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            with self._lock:
                self.count += 1


def seeds(start: int) -> Callable[[], int]:
    """A stream of 31-bit seeds for requests that name none."""
    state = start

    def next_seed() -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return state >> 33

    return next_seed
