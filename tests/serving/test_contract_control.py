"""What training relies on in the control of a server; the same for SGLang and embedded."""

import asyncio
import contextlib
import http.client
import json
import time
import urllib.parse

import numpy as np
import pytest
from conftest import ADMIN_KEY_ENV, API_KEY_ENV, CONFIG, KEYS, SERVED_CONTEXT, make_params
from contract import check_logprobs, generate, in_background, outputs, prompt_of, trained_logprobs

from sera_jax.model import huggingface
from sera_jax.serving import weight_sync
from sera_jax.serving.client import PolicyClient
from sera_jax.serving.errors import PolicyServerError, RequestRejected, UpdateRefused

LONG = 200  # tokens: time to meet a request half-way
DELAYS = [0.002 * 1.6**k for k in range(16)]  # seconds until it is tried; machines differ


def sglang_requests(endpoint):
    load = endpoint.call("/v1/loads")[1]["loads"][0]
    return load["num_running_reqs"] + load["num_waiting_reqs"]


# Requests that a server holds.
LIVE = {
    "embedded": lambda endpoint: endpoint.call("/server_info")[1]["num_requests"],
    "sglang": sglang_requests,
}


@contextlib.contextmanager
def paused(endpoint, mode="retract"):
    assert endpoint.call("/pause_generation", {"mode": mode})[0] == 200
    try:
        yield
    finally:
        assert endpoint.call("/continue_generation", {})[0] == 200


def update(endpoint, folder, version):
    body = {"model_path": str(folder), "weight_version": version, "flush_cache": True}
    return endpoint.call("/update_weights_from_disk", body)


@pytest.fixture
def restored(endpoint):
    """The first weights are back after the test."""
    yield
    endpoint.call("/continue_generation", {})
    assert update(endpoint, endpoint.checkpoint, "default")[0] == 200


def half_way(endpoint, act, met, prompt, body=None, prepare=lambda: None):
    """A long request's answer, `act` having run when some of its tokens, not all, were sampled.

    How long that takes varies with what else the machine does: tried until the answer is `met`.
    """
    for delay in DELAYS:
        prepare()
        wait = in_background(endpoint, prompt, body, max_new_tokens=LONG, temperature=1.0)
        time.sleep(delay)
        act()
        answer = wait()
        if met(answer):
            return answer
    raise AssertionError("no request was met half-way")


def test_a_request_in_flight_resumes_on_the_new_weights(endpoint, checkpoints, restored):
    def swap():
        with paused(endpoint):
            assert endpoint.call("/flush_cache")[0] == 200
            status, answer = update(endpoint, checkpoints[1], "two")
            assert status == 200 and answer["success"] and answer["num_paused_requests"] == 0
            # Both answer while it is paused.
            assert endpoint.call("/health")[0] == 200
            assert endpoint.call("/model_info")[1]["weight_version"] == "two"

    prompt = prompt_of(10)
    answer = half_way(
        endpoint,
        swap,
        lambda answer: len(answer["meta_info"]["weight_versions"]) == 2,
        prompt,
        prepare=lambda: update(endpoint, endpoint.checkpoint, "one"),
    )
    meta, tokens = answer["meta_info"], outputs(answer)
    one, two = meta["weight_versions"]
    at = two["start"]
    assert one == {"version": "one", "start": 0, "end": at}
    assert two == {"version": "two", "start": at, "end": LONG} and len(tokens) == LONG
    assert meta["weight_version"] == "two" and meta["num_retractions"] == 1
    logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
    old = trained_logprobs(endpoint.checkpoint, prompt + tokens)[len(prompt) - 1 :]
    new = trained_logprobs(checkpoints[1], prompt + tokens)[len(prompt) - 1 :]
    np.testing.assert_allclose(logprobs[:at], old[:at], atol=1e-4)
    np.testing.assert_allclose(logprobs[at:], new[at:], atol=1e-4)
    assert np.abs(old - new).min() < 1e-1 < np.abs(old - new).max()


def test_a_request_that_waits_out_an_update_runs_on_the_new_weights(
    endpoint, checkpoints, restored
):
    prompt = prompt_of(11)
    generate(endpoint, prompt)  # a prefix that the update has to forget
    with paused(endpoint):
        wait = in_background(endpoint, prompt, max_new_tokens=5, temperature=1.0)
        time.sleep(0.2)
        assert update(endpoint, checkpoints[1], "two")[0] == 200
    answer = wait()
    assert answer["meta_info"]["weight_versions"] == [{"version": "two", "start": 0, "end": 5}]
    assert answer["meta_info"]["cached_tokens"] == 0
    check_logprobs(endpoint, prompt, answer, 1.0, checkpoints[1])


def test_a_bad_path_is_refused_and_the_old_weights_stay(endpoint):
    status, answer = update(endpoint, "/nonexistent", "bad")
    assert status == 400 and answer["success"] is False and "/nonexistent" in answer["message"]
    assert endpoint.call("/model_info")[1]["weight_version"] == "default"
    prompt = prompt_of(13)
    check_logprobs(endpoint, prompt, generate(endpoint, prompt, temperature=1.0), 1.0)


def test_a_sharded_bfloat16_checkpoint_is_served(endpoint, tmp_path, restored):
    folder = tmp_path / "bfloat16"
    huggingface.export(make_params(1), CONFIG, folder, dtype="bfloat16", max_shard_bytes=20_000)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert update(endpoint, folder, "shards")[0] == 200
    prompt = prompt_of(22)
    answer = generate(endpoint, prompt, temperature=1.0)
    check_logprobs(endpoint, prompt, answer, 1.0, folder)


def test_a_sync_is_recognised_by_its_logprobs(endpoint, monkeypatch, tmp_path, restored):
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)

    async def talk():
        async with PolicyClient(
            endpoint.url, vocab_size=CONFIG.vocab_size, context_length=SERVED_CONTEXT
        ) as client:
            synced = await weight_sync.sync(
                client, make_params(1), CONFIG, tmp_path, version="synced"
            )
            others = weight_sync.make_probe(make_params(0), CONFIG, "float32")
            with pytest.raises(UpdateRefused, match="does not have the trainer's weights"):
                await client.fleet.servers[0].verify(others)
            return synced

    assert asyncio.run(talk()).logprob_gap < 1e-4
    assert endpoint.call("/model_info")[1]["weight_version"] == "synced"


def test_an_abort_by_id_answers_with_what_there_is(endpoint):
    answer = half_way(
        endpoint,
        lambda: endpoint.call("/abort_request", {"rid": "fixed-width-01"}),
        lambda answer: answer["meta_info"]["finish_reason"]["type"] == "abort" and outputs(answer),
        prompt_of(14),
        {"rid": "fixed-width-01"},
    )
    assert 0 < answer["meta_info"]["completion_tokens"] == len(outputs(answer)) < LONG
    check_logprobs(endpoint, prompt_of(14), answer, 1.0)


def test_an_abort_takes_all_ids_that_begin_so_once_that_one_is_live(endpoint):
    def abort():
        assert endpoint.call("/abort_request", {"rid": "t"})[0] == 200  # nobody's id
        assert endpoint.call("/abort_request", {"rid": "t7"})[0] == 200

    ends = {"t7": "abort", "t70": "abort", "t8": "length"}
    assert put_back(endpoint, abort, ends) == ends


def test_all_can_be_aborted(endpoint):
    everything = {"rid": "", "abort_all": True}
    ends = {"a": "abort", "b": "abort"}
    assert put_back(endpoint, lambda: endpoint.call("/abort_request", everything), ends) == ends


def put_back(endpoint, act, wanted):
    """How long requests end that `act` meets in the queue, where a pause has put them back.

    Some may have ended before the pause, or come after it: tried until they end as `wanted`.
    """
    for delay in DELAYS:
        waits = {
            rid: in_background(endpoint, prompt_of(15), {"rid": rid}, max_new_tokens=LONG)
            for rid in wanted
        }
        time.sleep(delay)
        with paused(endpoint):
            act()
        ends = {rid: wait()["meta_info"]["finish_reason"]["type"] for rid, wait in waits.items()}
        if ends == wanted:
            break
    return ends


def test_a_pause_can_abort(endpoint):
    def pause():
        with paused(endpoint, "abort"):
            pass

    answer = half_way(
        endpoint,
        pause,
        lambda answer: answer["meta_info"]["finish_reason"]["type"] == "abort" and outputs(answer),
        prompt_of(17),
    )
    check_logprobs(endpoint, prompt_of(17), answer, 1.0)


def test_a_client_that_goes_away_aborts_its_requests(endpoint):
    """SGLang looks every 4 s whether a client is there still."""
    address = urllib.parse.urlsplit(endpoint.url).netloc
    body = {"input_ids": [prompt_of(18)] * 64, "sampling_params": {"max_new_tokens": LONG}}
    headers = {"Authorization": f"Bearer {KEYS[API_KEY_ENV]}", "Content-Type": "application/json"}
    live, client = LIVE[endpoint.kind], http.client.HTTPConnection(address)
    client.request("POST", "/generate", json.dumps(body), headers)
    assert until(lambda: live(endpoint) > 32)
    client.close()
    # Left alone they would take several times as long.
    assert until(lambda: live(endpoint) == 0, 10.0 if endpoint.kind == "sglang" else 0.5)


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_flush_forgets_prefixes(endpoint):
    prompt = prompt_of(19, 25)
    generate(endpoint, prompt)
    assert until(lambda: endpoint.call("/flush_cache")[0] == 200)  # refused while anything runs
    assert generate(endpoint, prompt)["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "body", "opens", "refused"),
    [
        ("/model_info", None, API_KEY_ENV, ADMIN_KEY_ENV),
        ("/generate", {"input_ids": [1]}, API_KEY_ENV, ADMIN_KEY_ENV),
        ("/flush_cache", None, ADMIN_KEY_ENV, API_KEY_ENV),
        ("/continue_generation", {}, ADMIN_KEY_ENV, API_KEY_ENV),
        ("/abort_request", {"rid": "nobody"}, ADMIN_KEY_ENV, API_KEY_ENV),
    ],
)
def test_each_call_has_its_key(endpoint, path, body, opens, refused):
    assert endpoint.call(path, body, key=None)[0] == 401
    assert endpoint.call(path, body, key=KEYS[refused])[0] == 401
    assert endpoint.call(path, body, key=KEYS[opens])[0] == 200


def test_health_needs_no_key_and_keys_stay_secret(endpoint):
    assert endpoint.call("/health", key=None)[0] == 200
    printed = endpoint.log.read_text()
    assert not any(key in printed for key in KEYS.values())


def test_the_client_speaks_this_api(endpoint, checkpoints, monkeypatch, restored):
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    prompt, options = prompt_of(20), {"stop_token_ids": (), "seed": 1, "temperature": 1.0}

    async def talk():
        async with PolicyClient(
            endpoint.url, vocab_size=CONFIG.vocab_size, context_length=SERVED_CONTEXT
        ) as client:
            assert await client.health()
            await client.check_context()
            one = await client.generate(prompt, max_new_tokens=9999, **options)
            scores = await client.score([*prompt, *one.token_ids[:-1]])
            with pytest.raises(RequestRejected, match="outside the vocabulary"):
                await client.generate([1, CONFIG.vocab_size], max_new_tokens=1, **options)
            await client.update_weights(str(checkpoints[1]), "next")
            two = await client.generate(prompt, max_new_tokens=4, **options)
            return one, scores, two, client.counters

    async def ask_for_more():
        async with PolicyClient(
            endpoint.url, vocab_size=CONFIG.vocab_size, context_length=SERVED_CONTEXT + 1
        ) as client:
            await client.check_context()

    with pytest.raises(PolicyServerError, match="--context-length=263 or more"):
        asyncio.run(ask_for_more())
    one, scores, two, counters = asyncio.run(talk())
    assert one.finish_reason == "length" and len(one.token_ids) == SERVED_CONTEXT - 20
    np.testing.assert_allclose(scores[19:], one.logprobs[:-1], atol=1e-4)
    assert one.versions == (("default", len(one.token_ids)),)
    assert two.versions == (("next", 4),)
    assert counters["requests"] == 3 and counters["retries"] == 0
