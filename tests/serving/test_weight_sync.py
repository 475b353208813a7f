"""Weights on their way to servers: refused, wrong, half done, and with no room on the disk."""

import asyncio
import pathlib
import shutil
import subprocess

import pytest
from conftest import CONFIG, make_params
from fake_server import PROBE, Fake, answers, exports, serve, until, with_client

from sera_jax.serving import weight_sync
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.control import Server
from sera_jax.serving.errors import UpdateRefused

pytestmark = pytest.mark.usefixtures("no_waiting")


def sync(policy, folder, version, **options):
    return weight_sync.sync(policy, make_params(1), CONFIG, folder, version=version, **options)


@pytest.fixture
def known_probe(monkeypatch):
    monkeypatch.setattr(weight_sync, "make_probe", lambda *_: PROBE)


def test_an_update_refused_once_is_tried_again(tmp_path, known_probe):
    fakes = [Fake(refusals=[400]), Fake()]

    async def use(policy):
        await sync(policy, tmp_path, "1")
        return await answers(policy)

    assert with_client(fakes, use) == {"1"}
    assert [fake.version for fake in fakes] == ["1", "1"]


def test_an_update_that_is_always_refused_stops_and_leaves_the_servers_running(
    tmp_path, known_probe
):
    fakes = [Fake(refusals=[400] * 9), Fake()]

    async def use(policy):
        with pytest.raises(UpdateRefused, match="answered 400: no such folder"):
            await sync(policy, tmp_path, "1")

    with_client(fakes, use)
    assert not any(fake.paused for fake in fakes)
    assert weight_sync.last_synced(tmp_path) is None


def test_weights_that_are_not_the_trainers_are_found_out(tmp_path, known_probe):
    async def use(policy):
        with pytest.raises(UpdateRefused, match="differ by 0.2 on the mean"):
            await sync(policy, tmp_path, "1")

    with_client([Fake(logprob=-0.7)], use)


def test_a_server_that_is_away_gets_the_weights_when_it_is_back(tmp_path, known_probe):
    async def use():
        here, gone = Fake(), Fake()
        runner, url = await serve(here)
        away, other = await serve(gone)
        async with PolicyClient([url, other], vocab_size=10, context_length=8) as policy:
            await sync(policy, tmp_path, "1")
            await away.cleanup()
            await sync(policy, tmp_path, "2")
            assert await answers(policy) == {"2"} and gone.version == "1"
            away, _ = await serve(gone, int(other.rsplit(":")[-1]))
            await until(lambda: len(policy.fleet.up) == 2)
            assert gone.version == "2" and await answers(policy) == {"2"}
            for one in (runner, away):
                await one.cleanup()

    asyncio.run(use())


class Crash(BaseException):
    """The trainer's process ends here: nothing after it happens."""


CALLS = ["export", "/pause_generation", "/flush_cache", "/update_weights_from_disk"]
CALLS += ["/model_info", "/continue_generation", "verify", "last"]


@pytest.mark.parametrize("last", CALLS)
def test_a_crash_after_any_call_is_made_good_by_the_next_sync(
    last, tmp_path, known_probe, monkeypatch
):
    fakes, crashed = [Fake(), Fake()], []

    def crashing(original, name):
        async def call(*args, **kwargs):
            if crashed:
                raise Crash
            result = await original(*args, **kwargs)
            if last in (name, *args):
                crashed.append(name)
                raise Crash
            return result

        return call

    def after(original):
        def call(*args, **kwargs):
            original(*args, **kwargs)
            raise Crash

        return call

    async def first(policy):
        await sync(policy, tmp_path, "1")
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Server, "call", crashing(Server.call, "call"))
            patch.setattr(Server, "verify", crashing(Server.verify, "verify"))
            if last == "export":
                patch.setattr(pathlib.Path, "rename", after(lambda *_: None))
            if last == "last":
                patch.setattr(weight_sync, "_write_last", after(weight_sync._write_last))
            await sync(policy, tmp_path, "2")
        assert len(exports(tmp_path)) == 2  # bounded, whatever happened

    async def second(policy):
        await sync(policy, tmp_path, "2")
        assert exports(tmp_path) == [weight_sync.last_synced(tmp_path).path.rsplit("/")[-1]]
        assert [(fake.version, fake.paused) for fake in fakes] == [("2", False)] * 2
        return await answers(policy)

    with_client(fakes, first)
    assert with_client(fakes, second) == {"2"}


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("runs where a small file system may be mounted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_a_clear_line_and_harms_nothing(full_disk, known_probe):
    folder = full_disk / "weights"
    fake = Fake()

    async def use(policy):
        size = (await sync(policy, folder, "1")).bytes
        free = shutil.disk_usage(folder).free
        assert free > size
        (full_disk / "other").write_bytes(bytes(free - size // 2))
        with pytest.raises(weight_sync.ExportFailed, match="No space left") as caught:
            await sync(policy, folder, "2")
        assert "\n" not in str(caught.value) and "MiB free" in str(caught.value)
        assert {path.name for path in folder.iterdir()} == {"version-1", "last.json"}
        assert await answers(policy) == {"1"} and not fake.paused
        (full_disk / "other").unlink()
        await sync(policy, folder, "2")
        return await answers(policy)

    assert with_client([fake], use) == {"2"}
