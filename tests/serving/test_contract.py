"""What sampling relies on in a policy server, over HTTP; the same for SGLang and embedded."""

import numpy as np
import pytest
from conftest import CONFIG, SERVED_CONTEXT
from contract import check_logprobs, generate, greedy, outputs, prompt_of, trained_logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("size", [1, 8, 33, 200])
def test_logprobs_are_the_trainers_at_the_temperature(endpoint, size, temperature):
    prompt = prompt_of(size, size)
    answer = generate(endpoint, prompt, temperature=temperature, max_new_tokens=10)
    check_logprobs(endpoint, prompt, answer, temperature)
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 10}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (size, 10)
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 10}]


def test_greedy_takes_the_best_token_and_gives_raw_logprobs(endpoint):
    prompt = prompt_of(2)
    answer = generate(endpoint, prompt, temperature=0)
    assert outputs(answer) == greedy(endpoint.checkpoint, prompt, 6)
    check_logprobs(endpoint, prompt, answer, 1.0)


def test_samples_of_one_prompt_differ(endpoint):
    prompt = prompt_of(20)
    seeds = [{"sampling_seed": seed, "temperature": 1.0} for seed in range(4)]
    assert len({tuple(outputs(generate(endpoint, prompt, **seed))) for seed in seeds}) > 1


def test_a_conversation_reuses_its_prefix_and_gives_the_same_numbers(endpoint):
    ids = prompt_of(3)
    for turn in range(3):
        answer = generate(endpoint, ids, temperature=1.0)
        check_logprobs(endpoint, ids, answer, 1.0)
        # All but the last generated token, which was never fed.
        cached = answer["meta_info"]["cached_tokens"]
        assert cached >= (len(ids) - 6 if turn else 0)
        ids = ids + outputs(answer) + prompt_of(turn, 5)


def test_a_known_prompt_is_cached_but_for_its_last_token(endpoint):
    prompt = prompt_of(4, 30)
    first = generate(endpoint, prompt, temperature=0)
    again = generate(endpoint, prompt, temperature=0)
    assert again["meta_info"]["cached_tokens"] == 29
    assert outputs(first) == outputs(again)


def test_stop_tokens_end_the_answer_and_are_part_of_it(endpoint):
    prompt = prompt_of(5)
    tokens = outputs(generate(endpoint, prompt, temperature=0, max_new_tokens=12))
    stop = tokens[4]
    sampling = {"stop_token_ids": [stop], "ignore_eos": False, "temperature": 0}
    sampling |= {"no_stop_trim": True, "skip_special_tokens": False}
    answer = generate(endpoint, prompt, max_new_tokens=12, **sampling)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert outputs(answer) == answer["output_ids"] == tokens[: tokens.index(stop) + 1]
    sampling["ignore_eos"] = True  # of every stop token
    assert outputs(generate(endpoint, prompt, max_new_tokens=12, **sampling)) == tokens


def test_a_prompt_is_scored_without_its_temperature(endpoint):
    prompt = prompt_of(6, 50)
    generate(endpoint, prompt)  # now its prefix is known, and must not be used
    answer = generate(
        endpoint, prompt, max_new_tokens=0, temperature=0.5, body={"logprob_start_len": 0}
    )
    entries = answer["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in entries] == prompt and entries[0][0] is None
    wanted = trained_logprobs(endpoint.checkpoint, prompt)
    np.testing.assert_allclose([entry[0] for entry in entries[1:]], wanted, atol=1e-4)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert answer["output_ids"] == [] and answer["meta_info"]["cached_tokens"] == 0
    assert answer["meta_info"]["output_token_logprobs"] == []


def test_prompt_logprobs_from_the_middle(endpoint):
    prompt = prompt_of(7, 40)
    answer = generate(endpoint, prompt, max_new_tokens=3, body={"logprob_start_len": 35})
    entries = answer["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in entries] == prompt[35:] and entries[0][0] is None
    wanted = trained_logprobs(endpoint.checkpoint, prompt)[35:]
    np.testing.assert_allclose([entry[0] for entry in entries[1:]], wanted, atol=1e-4)


def test_a_list_of_prompts_answers_in_order(endpoint):
    prompts = [prompt_of(8, 9), prompt_of(9, 17)]
    both = [{"max_new_tokens": 20}, {"max_new_tokens": 3}]
    body = {"input_ids": prompts, "sampling_params": both, "return_logprob": True}
    status, answers = endpoint.call("/generate", body)
    assert status == 200
    assert [a["meta_info"]["prompt_tokens"] for a in answers] == [9, 17]
    assert [len(outputs(a)) for a in answers] == [20, 3]


@pytest.mark.parametrize("new", [1, 4])
def test_the_whole_context_can_be_used(endpoint, new):
    prompt = prompt_of(21, SERVED_CONTEXT - new)
    answer = generate(endpoint, prompt, max_new_tokens=new)
    assert len(outputs(answer)) == new
    check_logprobs(endpoint, prompt, answer, 1.0)


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ([], {}, "empty"),
        ([1] * 5000, {}, "longer than the model's context length"),
        ([1, 2], {"max_new_tokens": 5000}, "exceeds the model's maximum context length"),
        ([1, 2], {"max_new_tokens": -1}, "max_new_tokens"),
        ([1, 2], {"temperature": -1}, "temperature must be a non-negative finite number"),
        ([1, 2], {"foo": 1}, "unknown field `foo`"),
    ],
)
def test_a_wrong_request_is_a_400_that_says_why(endpoint, ids, sampling, message):
    answer = generate(endpoint, ids, 400, **sampling)
    error = answer["error"]
    assert message in (error["message"] if isinstance(error, dict) else error)


@pytest.mark.parametrize(
    ("ids", "sampling", "body", "message"),
    [
        ([1, CONFIG.vocab_size], {}, {}, "outside the vocabulary of 64"),
        ([1, -1], {}, {}, "outside the vocabulary"),
        ([1, "a"], {}, {}, "flat list of integers"),
        ([1, 2], {"top_p": 0.9}, {}, "sampling_params.top_p = 0.9 is not served here"),
        ([1, 2], {"stop": ["x"]}, {}, "tokenizer.json"),
        ([1, 2], {}, {"stream": True}, "stream"),
        ([1, 2], {}, {"logprob_start_len": 2}, "past the prompt"),
    ],
)
def test_what_the_embedded_server_alone_refuses(endpoint, ids, sampling, body, message):
    if endpoint.kind == "sglang":
        pytest.skip("of the embedded server alone: SGLang serves some of these, and dies of others")
    assert message in generate(endpoint, ids, 400, body, **sampling)["error"]["message"]
