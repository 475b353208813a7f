import json
import random

import pytest

from sera_jax.serving.token_text import BLOCK, token_text


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_ids_are_written_as_json_writes_them(size):
    ids = [random.Random(size).randrange(-5, 150_000) for _ in range(size)]
    for prompt in (ids, tuple(ids), ids + [7]):
        text, low, high = token_text(prompt)
        assert json.loads(text) == list(prompt)
        assert (low, high) == (min(prompt), max(prompt))


def test_a_block_that_is_remembered_is_no_other_ones():
    first, second = [1] * BLOCK + [2], [1] * (BLOCK - 1) + [3, 2]
    assert json.loads(token_text(first)[0]) == first
    assert json.loads(token_text(second)[0]) == second
