import pytest

from sera_jax.rollout.protocol import parse
from sera_jax.rollout.spans import token_span
from sera_jax.warmstart import tokenizer as small

PIECES = ["so ", "I say <", "dele", 'gate>{"goal": "x', '"}</delegate>!', " bye"]


def decode(ids):
    return "".join(PIECES[i] for i in ids)


def test_tokens_that_straddle_an_edge_belong_to_the_span():
    ids = range(len(PIECES))
    text = decode(ids)
    span = parse(text).span
    assert text[slice(*span)] == '<delegate>{"goal": "x"}</delegate>'
    # "I say <" and '"}</delegate>!' reach beyond the block on either side.
    assert token_span(decode, ids, *span) == (1, 5)


def test_edges_between_tokens_take_no_neighbour():
    assert token_span(lambda ids: "ab" * len(ids), [0, 0, 0], 2, 4) == (1, 2)
    assert token_span(lambda ids: "ab" * len(ids), [0, 0, 0], 0, 6) == (0, 3)


@pytest.fixture(scope="module")
def tokenizer():
    return small.train(["dish_1 eat"], [" salt"], 300)


@pytest.mark.parametrize("before", ["", "thought ", "☃é🍲", "a 🍲"])
@pytest.mark.parametrize("goal", ["eat dish_1 : salt", "é🍲"])
def test_the_small_tokenizer_and_characters_of_several_tokens(tokenizer, before, goal):
    text = f'{before}<delegate>{{"goal": "{goal}"}}</delegate> then'
    ids = tokenizer.encode(text, add_special_tokens=False)
    a, b = token_span(tokenizer.decode, ids, *parse(text).span)
    block = tokenizer.decode(ids[a:b])
    assert block == text[len(before) : text.index(" then")]
