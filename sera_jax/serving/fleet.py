"""Which policy servers can be asked: trees stick to one, and the others stand in while it is away.

A server that fails is not asked again before it has passed a test: it answers, holds the newest
weights (they are put on it where it does not), is not left paused, and its log-probs of a fixed
prompt are the trainer's. While no server is up, whoever asks waits, at most `patience` seconds.
"""

import asyncio
import functools
import hashlib
import time
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Protocol

from sera_jax.serving.control import Server, Weights
from sera_jax.serving.errors import PolicyServerError, ServersLost

AGAIN = 1.0  # seconds between two looks at a server that is away
LOOK_TIMEOUT = 10.0  # seconds that a server has to say which weights it holds


class Keeper(Protocol):
    """Whoever restarts the servers; supervisor.py is one."""

    counters: Mapping[str, int]
    failure: str  # why no server will come back, "" while one may

    def complain(self, url: str, problem: str) -> None: ...

    def loading(self) -> Collection[str]: ...


class Fleet:
    """The servers of one policy. Use inside a running event loop, and close."""

    def __init__(
        self,
        servers: Sequence[Server],
        counters: dict[str, float],
        *,
        patience: float,
        keeper: Keeper | None = None,
    ):
        self.servers = list(servers)
        self.target: Weights | None = None  # what every server should hold
        self._counters, self._patience, self._keeper = counters, patience, keeper
        self._order = functools.lru_cache(65_536)(self._rank)
        self._some = asyncio.Event()  # a server is up, or all hope is gone
        self._some.set()
        self._lost = ""
        self._away_since = 0.0  # of the last one that was up
        self._watches: dict[Server, asyncio.Task] = {}

    @property
    def up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    async def route(self, sticky: str, avoid: Container[Server] = ()) -> Server:
        """The server of a tree, or its next choice while that one is away or to be avoided."""
        if len(self.servers) == 1 and self.servers[0].up:
            return self.servers[0]
        while True:
            up = self.up
            if up:
                choices = {server for server in up if server not in avoid} or set(up)
                return next(server for server in self._order(sticky) if server in choices)
            await self.some_up()

    async def some_up(self) -> None:
        """Returns when a server is up; ServersLost when that took too long."""
        if not self._some.is_set():
            begin = time.monotonic()
            await self._some.wait()
            self._counters["seconds_waited"] += time.monotonic() - begin
        if self._lost:
            raise ServersLost(self._lost)

    def suspect(self, server: Server, problem: str) -> None:
        """Asks nothing of the server until it has passed the test."""
        if not server.up:
            return
        server.up, server.faults = False, 0
        if not self.up:
            self._away_since = time.monotonic()
            self._some.clear()
        self._watches[server] = asyncio.create_task(self._watch(server, problem))

    async def close(self) -> None:
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)

    async def _watch(self, server: Server, problem: str) -> None:
        begin, told = time.monotonic(), False
        while True:
            try:
                await self._test(server)
                break
            except PolicyServerError as error:
                problem = str(error)
            if not told:
                told = True
                self._counters["outages"] += 1
                _say(f"{problem}; {self._what_now()}")
            if not self.up and self._is_hopeless(problem):
                return
            await asyncio.sleep(AGAIN)
        server.up = True
        self._some.set()
        if told:
            _say(f"policy server {server.url} is back after {time.monotonic() - begin:.0f} s")

    async def _test(self, server: Server) -> None:
        """Returns when the server can be used with the newest weights."""
        async with server.lock:
            while True:
                target = self.target
                version = (await server.info(LOOK_TIMEOUT))["weight_version"]
                if target and version != target.version:
                    self._counters["resyncs"] += 1
                    _say(
                        f"policy server {server.url} holds weights {version!r}: putting "
                        f"{target.version!r} on it"
                    )
                    await server.put(target)
                else:
                    # Whoever put weights on it may have ended in between.
                    await server.command("/continue_generation", {}, LOOK_TIMEOUT)
                    await self._verify(server, target)
                if target is self.target:
                    return

    async def _verify(self, server: Server, target: Weights | None) -> None:
        try:
            await server.verify(target.probe if target else None)
        except PolicyServerError as error:
            if self._keeper:  # it answers, and yet it is of no use
                self._keeper.complain(server.url, str(error))
            raise

    def _rank(self, sticky: str) -> tuple[Server, ...]:
        """All servers, the tree's own first: one that leaves moves no tree but its own."""

        def weight(server: Server) -> bytes:
            return hashlib.blake2b(f"{sticky} {server.url}".encode(), digest_size=8).digest()

        return tuple(sorted(self.servers, key=weight))

    def _what_now(self) -> str:
        if self.up:
            return "its trees go to the others meanwhile"
        return f"waiting up to {self._patience:g} s for it"

    def _is_hopeless(self, problem: str) -> bool:
        """Tells all who wait once there is nothing to wait for."""
        reason = self._keeper.failure if self._keeper else ""
        if not reason and time.monotonic() - self._away_since > self._patience:
            reason = f"no policy server could be used for {self._patience:g} s ({problem})"
        if reason:
            self._lost = reason
            self._some.set()
        return bool(reason)


def _say(text: str) -> None:
    print(text, flush=True)
