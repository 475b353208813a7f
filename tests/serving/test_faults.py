"""Servers that go away, hang, restart, refuse and lie: what is seen, what is counted, what is kept.

A faulty server is a script or a process that ends at a signal; test_recovery.py does the same to
real ones while trees grow.
"""

import asyncio
import contextlib
import http.server
import math
import os
import signal
import subprocess
import threading

import pytest
from fake_server import (
    NEVER,
    PROBE,
    Fake,
    answer,
    answers,
    error,
    exports,
    generate,
    serve,
    start_fake,
    until,
    with_client,
)

from sera_jax.serving import fleet, weight_sync
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.control import Weights
from sera_jax.serving.errors import PolicyServerError, ServersLost
from sera_jax.serving.supervisor import Child, Supervisor, listens

pytestmark = pytest.mark.usefixtures("no_waiting")


def counted(policy, *names):
    return tuple(policy.record()[name] for name in names)


def alone(urls, use, **options):
    return with_client([], use, urls=urls, **options)


# ---- servers of others -----------------------------------------------------------------------


def test_others_stand_in_for_a_server_and_its_trees_come_home(capsys):
    async def use():
        fakes = [Fake(version="7"), Fake(version="7")]
        (first, url), (second, other) = [await serve(fake) for fake in fakes]
        async with PolicyClient([url, other], vocab_size=10, context_length=8) as policy:
            await policy.update_weights("/weights/7", "7", PROBE)
            assert await answers(policy) == {"7"}
            homes = [len(fake.bodies) for fake in fakes]
            await first.cleanup()
            assert await answers(policy) == {"7"}
            assert len(fakes[0].bodies) == homes[0]
            assert f"policy server {url} did not answer" in capsys.readouterr().out
            # It comes back as whoever started it did: with the weights it had then.
            fakes[0].version, fakes[0].calls = "default", []
            again, _ = await serve(fakes[0], int(url.rsplit(":")[-1]))
            await until(lambda: len(policy.fleet.up) == 2)
            assert fakes[0].calls[:3] == ["/model_info", "/pause_generation", "/flush_cache"]
            before = len(fakes[0].bodies)
            assert await answers(policy) == {"7"} and len(fakes[0].bodies) > before
            assert counted(policy, "outages", "resyncs", "stale", "given_up") == (1, 1, 0, 0)
            for runner in (again, second):
                await runner.cleanup()

    asyncio.run(use())
    out = capsys.readouterr().out
    assert "holds weights 'default': putting '7' on it" in out and "is back after" in out


def test_a_server_restarted_unseen_with_old_weights_is_refused_and_given_the_new_ones(capsys):
    fake = Fake()

    async def use(policy):
        await policy.update_weights("/weights/6", "6", PROBE)
        await policy.update_weights("/weights/7", "7", PROBE)
        fake.version = "6"
        assert await answers(policy) == {"7"}
        stale, *rest = counted(policy, "stale", "resyncs", "given_up", "requests")
        assert 1 <= stale <= 12 and rest == [1, 0, 12]

    with_client([fake], use)
    assert "holds weights '6': putting '7' on it" in capsys.readouterr().out


def test_weights_that_nobody_knows_are_refused_too():
    fake = Fake()

    async def use(policy):
        await policy.update_weights("/weights/7", "7", PROBE)
        fake.version = "8"  # of another run
        assert await answers(policy, 1) == {"7"}
        assert counted(policy, "stale", "resyncs") == (1, 1)

    with_client([fake], use)


def test_a_request_may_finish_on_the_weights_of_a_sync_that_it_saw():
    entered, leave = asyncio.Event(), asyncio.Event()
    spans = [{"version": "6", "start": 0, "end": 1}, {"version": "7", "start": 1, "end": 2}]

    async def across():
        entered.set()
        await leave.wait()
        return answer(weight_versions=spans)

    async def use(policy):
        policy.adopt(Weights("/weights/6", "6", PROBE))
        running = asyncio.create_task(generate(policy))
        await entered.wait()
        await policy.update_weights("/weights/7", "7", PROBE)
        leave.set()
        assert (await running).versions == (("6", 1), ("7", 1))
        assert counted(policy, "stale", "retries") == (0, 0)

    with_client([Fake(across, version="6")], use)


@pytest.mark.parametrize("fault", [error(500), "garbage", '{"meta_info": {"finish', error(502)])
def test_servers_that_only_fail_are_waited_for_and_no_request_is_lost(fault, capsys):
    fake = Fake(*[fault] * 40)

    async def use(policy):
        assert await answers(policy) == {"v"}
        assert counted(policy, "given_up", "outages", "requests") == (0, 1, 12)
        failures, malformed = counted(policy, "failures", "malformed")
        assert 12 <= failures + malformed <= 40

    with_client([fake], use)
    out = capsys.readouterr().out
    assert out.count("waiting up to 600 s for it") == 1 and "is back after" in out


def test_servers_that_stay_away_stop_the_run_in_one_line(capsys):
    async def use(policy):
        got = await asyncio.gather(
            *(generate(policy, sticky=str(n)) for n in range(8)), return_exceptions=True
        )
        assert all(isinstance(one, ServersLost) for one in got)
        assert len({str(one) for one in got}) == 1 and "\n" not in str(got[0])
        assert "no policy server could be used for 0.2 s" in str(got[0])
        assert counted(policy, "given_up", "requests") == (8, 0)

    alone(["http://127.0.0.1:9", "http://127.0.0.1:10"], use, patience=0.2)
    assert "waiting up to 0.2 s for it" in capsys.readouterr().out


def test_a_stopped_process_is_noticed_and_used_again_when_it_goes_on(tmp_path, capsys):
    with server_process(tmp_path) as (process, url):

        async def use(policy):
            await answers(policy)
            process.send_signal(signal.SIGSTOP)
            running = asyncio.create_task(answers(policy))
            await until(lambda: policy.counters["outages"])
            assert not running.done()
            process.send_signal(signal.SIGCONT)
            assert await running == {"v"}
            assert counted(policy, "timeouts", "given_up", "requests") == (12, 0, 24)

        fleet_look = pytest.MonkeyPatch()
        fleet_look.setattr(fleet, "LOOK_TIMEOUT", 0.3)
        alone(url, use, timeout=0.5)
        fleet_look.undo()
    assert "did not answer /model_info" in capsys.readouterr().out


@contextlib.contextmanager
def server_process(tmp_path):
    with Supervisor(versioned, "/w", tmp_path / "server.log", hang_timeout=NEVER) as keeper:
        yield keeper.children[0].process, keeper.urls[0]


def versioned(model, version, port, log):
    return start_fake(model, "v" if version == "default" else version, port, log)


# ---- servers started here --------------------------------------------------------------------


def supervised(tmp_path, use, start=start_fake, weights=None, **options):
    options = {"interval": 0.05, "hang_timeout": 0.5, "ready_timeout": NEVER} | options
    last = lambda: weights  # noqa: E731
    with Supervisor(start, "/w", tmp_path / "s.log", last_synced=last, **options) as keeper:

        async def main():
            sizes = {"vocab_size": 10, "context_length": 8}
            async with PolicyClient(keeper.urls, **sizes, keeper=keeper) as policy:
                return await use(policy, keeper)

        return asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_server_is_restarted_with_the_last_good_weights(how, tmp_path, capsys):
    async def use(policy, keeper):
        await policy.update_weights("/weights/7", "7", PROBE)
        child = keeper.children[0]
        pid, url = child.process.pid, child.url
        assert await answers(policy) == {"7"}
        os.kill(pid, how)
        assert await answers(policy) == {"7"}
        assert child.process.pid != pid and child.url == url
        assert child.process.args[2:4] == ["/weights/7", "7"]
        assert counted(policy, "given_up", "resyncs", "server_restarts", "requests") == (
            0,
            0,
            1,
            24,
        )
        dead = (1, 0) if how == signal.SIGKILL else (0, 1)
        assert counted(policy, "servers_ended", "servers_hung") == dead

    supervised(tmp_path, use, weights=Weights("/weights/7", "7"))
    out = capsys.readouterr().out
    seen = "was ended by SIGKILL" if how == signal.SIGKILL else "did not answer in time"
    assert seen in out and "restarting it with weights '7'" in out and "is back after" in out


def test_a_server_that_hangs_before_it_was_seen_to_answer_is_restarted_too(tmp_path):
    """NEVER is what a start may take: whoever has the port has started."""

    async def use(policy, keeper):
        child = keeper.children[0]
        for how in (signal.SIGKILL, signal.SIGSTOP):
            before = child.process
            os.kill(before.pid, how)
            await until(lambda old=before: child.process is not old and listens(child.port))
        assert await answers(policy) == {"default"}
        assert counted(policy, "servers_ended", "servers_hung") == (1, 1)

    supervised(tmp_path, use, interval=0.5)


def test_a_starting_server_that_says_it_is_not_ready_keeps_its_time(tmp_path):
    class NotReady(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(503)

        def log_message(self, *_):
            pass

    keeper = Supervisor(start_fake, "/w", tmp_path / "s.log", hang_timeout=0.2)
    with (
        http.server.HTTPServer(("127.0.0.1", 0), NotReady) as server,
        subprocess.Popen(["sleep", "60"]) as process,
    ):
        child = Child(server.server_port, tmp_path / "s.log", process, deadline=math.inf)
        assert keeper._problem(child) == "" and child.deadline < math.inf  # it takes connections
        child.deadline = math.inf
        threading.Thread(target=server.serve_forever).start()
        assert keeper._problem(child) == "" and child.deadline == math.inf
        server.shutdown()
        process.kill()


def test_what_a_restarting_server_reads_is_kept_until_it_answers(tmp_path):
    """SGLang takes half a minute to start, in which training goes on."""

    async def use(policy, keeper):
        weights = weight_sync.last_synced(tmp_path)
        assert weights.version == "1" and keeper.loading() == {""}
        os.kill(keeper.children[0].process.pid, signal.SIGKILL)
        await until(lambda: keeper.loading() == {weights.path})
        weight_sync._write_last(tmp_path, tmp_path / "version-2", "2")
        weight_sync._keep_last(tmp_path, policy)
        assert exports(tmp_path) == ["version-1", "version-2"]
        await until(lambda: keeper.loading() == {""})
        weight_sync._keep_last(tmp_path, policy)
        assert exports(tmp_path) == ["version-2"]

    for version in ("1", "2"):
        (tmp_path / f"version-{version}").mkdir()
    weight_sync._write_last(tmp_path, tmp_path / "version-1", "1")
    supervised(tmp_path, use, weights=weight_sync.last_synced(tmp_path))


def test_a_server_that_is_well_and_of_no_use_is_restarted(tmp_path, capsys):
    async def use(policy, keeper):
        pid = keeper.children[0].process.pid
        keeper.complain(keeper.urls[0], "a log-prob is NaN")
        await until(lambda: keeper.children[0].process.pid != pid)
        assert await answers(policy) == {"default"}

    supervised(tmp_path, use)
    assert "is of no use (a log-prob is NaN)" in capsys.readouterr().out


def test_restarts_without_end_are_given_up_with_the_logs_last_line(tmp_path):
    async def use(policy, keeper):
        os.kill(keeper.children[0].process.pid, signal.SIGKILL)
        with pytest.raises(ServersLost, match="after 3 restarts .* no checkpoint at /missing"):
            await answers(policy)
        assert counted(policy, "server_restarts", "servers_ended") == (3, 4)

    supervised(tmp_path, use, weights=Weights("/missing", "7"), restarts=3)


def test_a_server_that_never_starts_says_why(tmp_path):
    with pytest.raises(PolicyServerError, match="ended with status 1: no checkpoint at /missing"):
        with Supervisor(start_fake, "/missing", tmp_path / "server.log"):
            pass


def test_servers_end_with_their_supervisor(tmp_path):
    with Supervisor(start_fake, "/w", tmp_path / "server.log", count=2) as keeper:
        processes = [child.process for child in keeper.children]
        assert len({child.log for child in keeper.children}) == 2
        processes[1].send_signal(signal.SIGSTOP)  # deaf to SIGTERM
    assert all(process.returncode is not None for process in processes)
