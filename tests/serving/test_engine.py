"""The engine itself: independence of its batch, its slots, pauses, compilations."""

import asyncio
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from conftest import CONFIG, SHAPES, make_params

from sera_jax.serving.engine import CompileCounter, Engine, ShapeMismatch
from sera_jax.serving.requests import Request


@pytest.fixture(scope="module")
def engine():
    return Engine(make_params(0), CONFIG, **SHAPES)


def request(rid, seed, size=12, new=9, **options):
    ids = np.random.default_rng(seed).integers(0, 60, size).astype(np.int32)
    return Request(str(rid), ids, new, seed=seed, **options)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def together(engine, requests):
    return await asyncio.gather(*map(engine.generate, requests))


def test_tokens_depend_on_the_seed_and_not_on_company_or_slot(engine):
    seeds = range(20)  # more than there are slots
    alone = [run(engine.generate(request(f"a{s}", s))).output_ids for s in seeds]
    run(engine.flush())
    crowd = run(together(engine, [request(f"c{s}", s) for s in reversed(seeds)]))
    assert [done.output_ids for done in crowd] == alone[::-1]
    other = request("other", 0)
    other.seed = 99
    assert run(engine.generate(other)).output_ids != alone[0]


def test_sampling_follows_the_distribution(engine):
    """Frequencies of 600 first tokens against the log-probs that came with them."""
    done = []
    for part in range(6):
        batch = [request(f"{part}-{s}", 1, 4, 1) for s in range(100)]
        for index, one in enumerate(batch):
            one.seed = 100 * part + index
        done += run(together(engine, batch))
    probability = {r.output_ids[0]: np.exp(r.logprobs[0]) for r in done}
    tokens = [r.output_ids[0] for r in done]
    for token, p in probability.items():
        spread = np.sqrt(p * (1 - p) / 600)
        assert abs(tokens.count(token) / 600 - p) < 4 * spread + 1e-2


def test_a_sibling_copies_the_prefix_of_another_slot(engine):
    run(engine.flush())
    shared = request("p", 5, size=40).input_ids
    first = Request("first", shared, 4, seed=1)
    run(engine.generate(first))
    # The first slot's conversation goes on while two siblings branch off its prompt.
    longer = np.concatenate([shared, np.array(first.output_ids, np.int32)])
    batch = [
        Request("on", np.append(longer, 3).astype(np.int32), 6, temperature=0.0),
        Request("b", np.append(shared, [7, 8]).astype(np.int32), 6, temperature=0.0),
        Request("c", np.append(shared, [9]).astype(np.int32), 6, temperature=0.0),
    ]
    reused = run(together(engine, batch))
    assert [r.cached_tokens for r in reused] == [43, 40, 40]
    run(engine.flush())
    again = [Request(r.rid + "2", r.input_ids, 6, temperature=0.0) for r in batch]
    fresh = [run(engine.generate(one)) for one in again]
    for a, b in zip(reused, fresh, strict=True):
        assert a.output_ids == b.output_ids
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_more_conversations_than_slots_keep_their_prefixes(engine):
    """They wait in parked rows and come back; numbers stay those of a fresh prefill."""
    run(engine.flush())

    async def converse(name):
        turns, ids = [], request(name, name, 20).input_ids
        for turn in range(3):
            one = Request(f"{name}-{turn}", ids, 4, seed=name + turn)
            turns.append(await engine.generate(one))
            new = [*one.output_ids, name, turn, 3]
            ids = np.append(ids, new).astype(np.int32)
            await asyncio.sleep(0.02)  # let others take the slot
        return turns

    async def all_of_them():
        return await asyncio.gather(*map(converse, range(11)))

    assert len(engine.replicas[0].slots.lengths) == 12
    turns = [turn for turns in run(all_of_them()) for turn in turns]
    later = [turn for turn in turns if not turn.rid.endswith("-0")]
    assert np.mean([turn.cached_tokens == len(turn.input_ids) - 4 for turn in later]) > 0.8
    for turn in turns:
        run(engine.flush())
        fresh = run(engine.generate(Request("fresh", turn.input_ids, 4, seed=turn.seed)))
        assert fresh.output_ids == turn.output_ids
        np.testing.assert_allclose(fresh.logprobs, turn.logprobs, atol=1e-4)


def test_a_retracted_request_names_both_versions(engine):
    async def play():
        work = asyncio.create_task(engine.generate(request("long", 3, 6, 80)))
        while not engine.replicas[0].running:
            await asyncio.sleep(0.001)
        await engine.pause("retract")
        await engine.update(make_params(1), "new")
        await engine.resume()
        return await work

    done = run(play())
    spans = done.version_spans()
    assert [span["version"] for span in spans] == ["default", "new"]
    assert spans[0]["end"] == spans[1]["start"] and spans[1]["end"] == len(done.logprobs) == 80
    assert done.retractions == 1
    run(engine.update(make_params(0), "default"))


def test_an_update_without_a_pause_waits_for_running_requests(engine):
    async def play():
        work = asyncio.create_task(engine.generate(request("wait", 4, 6, 60)))
        while not engine.replicas[0].running:
            await asyncio.sleep(0.001)
        await engine.update(make_params(0), "later")
        return await work

    assert [span["version"] for span in run(play()).version_spans()] == ["default"]
    run(engine.update(make_params(0), "default"))


def test_pause_abort_and_cancellation_free_the_slots(engine):
    async def play():
        work = [asyncio.create_task(engine.generate(request(f"x{s}", s, 6, 80))) for s in range(9)]
        while not engine.replicas[0].running:
            await asyncio.sleep(0.001)
        work[0].cancel()
        await engine.pause("abort")
        await engine.resume()
        return await asyncio.gather(*work, return_exceptions=True)

    done = run(play())
    assert isinstance(done[0], asyncio.CancelledError)
    assert all(r.finish_reason["type"] == "abort" for r in done[1:])
    assert engine.load == 0 and not engine.replicas[0].slots.busy.any()


def test_abort_matches_by_prefix_once_the_id_is_live(engine):
    async def play():
        await engine.pause("retract")
        work = [asyncio.create_task(engine.generate(request(f"t{n}", 1))) for n in (7, 70, 8)]
        await asyncio.sleep(0.05)
        engine.abort("t")  # no such request: nothing happens
        engine.abort("t7")
        await engine.resume()
        return [done.finish_reason["type"] for done in await asyncio.gather(*work)]

    assert run(play()) == ["abort", "abort", "length"]


def test_nothing_compiles_after_the_start(engine):
    counter = CompileCounter()
    sizes = [(1, 1), (3, 20), (9, 5), (33, 9), (60, 30), (70, 1), (95, 1)]
    work = [request(f"n{n}", n, size, new) for n, (size, new) in enumerate(sizes)]
    work += [request("s", 50, 30, 0, logprob_start_len=0), request("m", 51, 60, 2)]
    run(together(engine, work))
    run(engine.update(make_params(1), "two"))
    run(together(engine, [request(f"again{n}", n, 20, 4) for n in range(9)]))
    run(engine.update(make_params(0), "default"))
    assert counter.count == 0


def test_weights_of_another_shape_are_refused(engine):
    params = make_params(0)
    params["final_norm"] = params["final_norm"][:-1]
    with pytest.raises(ShapeMismatch, match="final_norm"):
        run(engine.update(params, "bad"))


def test_replicas_share_the_work_and_agree_with_one(engine, tmp_path):
    """Two host devices need a process of their own."""
    code = """
import asyncio
from tests.serving import test_engine as t
engine = t.Engine(t.make_params(0), t.CONFIG, replicas=2, **t.SHAPES)
done = t.run(t.together(engine, [t.request(n, n) for n in range(12)]))
assert all(replica.slots.lengths.any() for replica in engine.replicas)
print([r.output_ids for r in done])
"""
    here = pathlib.Path(__file__).parent
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": f"{here.parents[1]}:{here}",
    }
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert out.returncode == 0, out.stderr
    one = run(together(engine, [request(n, n) for n in range(12)]))
    assert out.stdout.strip() == str([r.output_ids for r in one])
