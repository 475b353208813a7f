"""Keeps the policy servers of a run alive: child processes that are watched and restarted.

A server that ended, or that does not answer for a while (a stopped process, a deadlock), is
killed and started again on the same port with the weights of the last complete sync. Its client
asks again what was in flight. A server that keeps ending is given up.
"""

import http.client
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sera_jax.serving.control import Weights
from sera_jax.serving.errors import PolicyServerError

# (checkpoint, version, port, log file) -> the process; it binds to loopback.
Start = Callable[[str, str, int, pathlib.Path], subprocess.Popen]


@dataclass(eq=False)
class Child:
    """One server; `deaths` are the moments of its restarts."""

    port: int
    log: pathlib.Path
    process: subprocess.Popen
    deadline: float  # it has to answer before
    complaint: str = ""  # of its client
    loading: str = ""  # the checkpoint that it starts from, until it answers
    deaths: deque[float] = field(default_factory=deque)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Supervisor:
    """Context manager: `count` servers, ready when it is entered, ended when it is left.

    The children are started by threads that live as long as they do, for the kernel ends a child
    with the thread that started it (embedded.die_with_parent).
    """

    def __init__(
        self,
        start: Start,
        first: str | pathlib.Path,
        log: str | pathlib.Path,
        *,
        count: int = 1,
        last_synced: Callable[[], Weights | None] = lambda: None,
        ready_timeout: float = 600.0,
        hang_timeout: float = 60.0,
        interval: float = 1.0,
        restarts: int = 5,
        window: float = 600.0,
    ):
        """Servers of the checkpoint `first`, until `last_synced` names newer weights.

        A server may take `ready_timeout` seconds to start, and be without an answer for
        `hang_timeout`; it is looked at every `interval`. More than `restarts` of one server within
        `window` seconds are taken for a fault that will not pass.
        """
        self._start, self._last_synced = start, last_synced
        self._first = Weights(str(first), "default")
        self._log, self._count = pathlib.Path(log), count
        self._ready_timeout, self._hang_timeout = ready_timeout, hang_timeout
        self._interval, self._restarts, self._window = interval, restarts, window
        self.children: list[Child] = []
        self.counters = {"servers_ended": 0, "servers_hung": 0, "server_restarts": 0}
        self.failure = ""  # why a server was given up
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    @property
    def urls(self) -> list[str]:
        return [child.url for child in self.children]

    def complain(self, url: str, problem: str) -> None:
        """The server says that it is well, and its client knows better."""
        for child in self.children:
            if child.url == url:
                child.complaint = problem

    def loading(self) -> set[str]:
        """Checkpoints that must stay where they are: servers are starting from them."""
        return {child.loading for child in self.children}

    def __enter__(self) -> "Supervisor":
        try:
            for number in range(self._count):
                port = free_port()
                stem = f"{self._log.stem}{number if self._count > 1 else ''}"
                log = self._log.with_name(f"{stem}{self._log.suffix}")
                process = self._start(self._first.path, self._first.version, port, log)
                deadline = time.monotonic() + self._ready_timeout
                self.children.append(Child(port, log, process, deadline))
            for child in self.children:
                self._wait_until_ready(child)
        except BaseException:
            self._end_all()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._leaving.set()
        self._thread.join(self._hang_timeout)
        self._end_all()

    def _wait_until_ready(self, child: Child) -> None:
        while health(child.url, timeout=5.0) != 200:
            if child.process.poll() is not None:
                raise PolicyServerError(
                    f"the policy server {how_it_ended(child.process)}: {last_line(child.log)} "
                    f"(log: {child.log})"
                )
            if time.monotonic() > child.deadline:
                raise PolicyServerError(
                    f"the policy server was not ready after {self._ready_timeout:g} s "
                    f"(log: {child.log})"
                )
            time.sleep(0.1)
        child.deadline = time.monotonic() + self._hang_timeout

    # ---- the thread ----------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._leaving.wait(self._interval):
            for child in self.children:
                problem = self._problem(child)
                if problem and not self.failure and not self._leaving.is_set():
                    self._restart(child, problem)

    def _problem(self, child: Child) -> str:
        """What is wrong with the server, "" while nothing is."""
        if child.process.poll() is not None:
            self.counters["servers_ended"] += 1
            return how_it_ended(child.process)
        if child.complaint:
            self.counters["servers_hung"] += 1
            return f"is of no use ({child.complaint})"
        status = health(child.url, timeout=min(self._hang_timeout, 10.0))
        if status == 200:
            child.deadline, child.loading = time.monotonic() + self._hang_timeout, ""
            return ""
        now = time.monotonic()
        if now > child.deadline:
            self.counters["servers_hung"] += 1
            return "did not answer in time"
        if not status and listens(child.port):  # it has started, even if nobody saw it answer
            child.deadline = min(child.deadline, now + self._hang_timeout)
        return ""

    def _restart(self, child: Child, problem: str) -> None:
        end(child.process, grace=0.0)
        now = time.monotonic()
        child.deaths.append(now)
        while now - child.deaths[0] > self._window:
            child.deaths.popleft()
        if len(child.deaths) > self._restarts:
            self.failure = (
                f"the policy server {child.url} {problem}, after {self._restarts} restarts within "
                f"{self._window:g} s: {last_line(child.log)} (log: {child.log})"
            )
            return
        weights = self._last_synced() or self._first
        child.loading = weights.path
        self.counters["server_restarts"] += 1
        number = self.counters["server_restarts"]
        _say(
            f"policy server {child.url} {problem} (log: {child.log}): restarting it with weights "
            f"{weights.version!r}"
        )
        child.log = self._log.with_name(f"{self._log.stem}-restart{number}{self._log.suffix}")
        try:
            child.process = self._start(weights.path, weights.version, child.port, child.log)
        except (OSError, PolicyServerError) as error:
            self.failure = f"the policy server {child.url} cannot be restarted: {error}"
            return
        child.complaint = ""
        child.deadline = time.monotonic() + self._ready_timeout

    def _end_all(self) -> None:
        for child in self.children:
            child.process.terminate()
        for child in self.children:
            end(child.process, grace=10.0)


def health(url: str, timeout: float) -> int:
    """The status of the server's answer, 200 where it is well; 0 without one."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=timeout) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code  # SGLang's is 503 while it warms up
    except (OSError, http.client.HTTPException):
        return 0


def listens(port: int) -> bool:
    """Whether a process has the port, be it stopped: then the kernel still takes connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def end(process: subprocess.Popen, grace: float) -> None:
    """Ends a process and all of its session, after `grace` seconds by force."""
    if grace:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # servers of several processes leave some behind
    except ProcessLookupError:
        pass
    process.wait()


def how_it_ended(process: subprocess.Popen) -> str:
    code = process.returncode
    return f"ended with status {code}" if code >= 0 else f"was ended by {_signal(-code)}"


def last_line(log: str | pathlib.Path) -> str:
    path = pathlib.Path(log)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _say(text: str) -> None:
    print(text, flush=True)
