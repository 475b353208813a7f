"""Reading rubrics and scores: lenient about what surrounds the JSON, strict about what it says."""

import json
import time

import pytest

from sera_jax.rollout.rubric_text import read_rubric, read_score, spell_rubric, spell_score
from sera_jax.trees import Score

GOOD = json.dumps(
    {
        "criteria": [
            {"name": " fetched ", "weight": 3, "description": "the onion is there"},
            {"name": "chopped", "weight": 1.0},
        ]
    }
)


def weights(text):
    rubric, problem = read_rubric(text)
    assert not problem
    return [criterion.weight for criterion in rubric.criteria]


def test_weights_are_normalised_and_names_stripped():
    rubric, problem = read_rubric(GOOD)
    assert problem == "" and rubric.text == GOOD
    first, second = rubric.criteria
    assert (first.name, first.description, first.weight) == ("fetched", "the onion is there", 0.75)
    assert (second.name, second.description, second.weight) == ("chopped", "", 0.25)


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"Here {{is}} my rubric: {GOOD} I hope {{it}} helps.",
        f'{{"rubric": {GOOD}, "note": 1}}',
        f'{{"title": {{"x": {{}}}}, {GOOD[1:]}',
        f'First "criteria" come to mind, {{"criteria": []}}, but better:\n{GOOD}',
        f'{GOOD}\nDo you like these "criteria"?',
    ],
)
def test_surroundings_do_not_matter(text):
    assert weights(text) == [0.75, 0.25]


def test_zero_weights_are_fine_beside_others():
    one = '{"name": "a", "weight": 0}'
    assert weights(f'{{"criteria": [{one}, {{"name": "b", "weight": 1e308}}]}}') == [0.0, 1.0]


@pytest.mark.parametrize(
    "items",
    [
        '[{"name": "a", "weight": 1}]',
        '[{"name": "a", "weight": 0}, {"name": "b", "weight": 0}]',
        '[{"name": "a", "weight": -1}, {"name": "b", "weight": 2}]',
        '[{"name": "a", "weight": NaN}, {"name": "b", "weight": 1}]',
        '[{"name": "a", "weight": 1e999}, {"name": "b", "weight": 1}]',
        f'[{{"name": "a", "weight": {"9" * 5000}}}, {{"name": "b", "weight": 1}}]',
        '[{"name": "a", "weight": "1"}, {"name": "b", "weight": 1}]',
        '[{"name": "a", "weight": true}, {"name": "b", "weight": 1}]',
        '[{"name": "a"}, {"name": "b", "weight": 1}]',
        '[{"weight": 1}, {"name": "b", "weight": 1}]',
        '[{"name": " ", "weight": 1}, {"name": "b", "weight": 1}]',
        '[{"name": "\\ud800", "weight": 1}, {"name": "b", "weight": 1}]',
        '[{"name": "a", "description": 3, "weight": 1}, {"name": "b", "weight": 1}]',
        '[["a", 1], ["b", 1]]',
        '{"a": 1, "b": 2}',
        "null",
    ],
)
def test_rubrics_that_mean_nothing_are_refused(items):
    rubric, problem = read_rubric(f'{{"criteria": {items}}}')
    assert rubric is None and problem.startswith("rubric: ")


@pytest.mark.parametrize("text", ["", "no", "{}", '{"criteria": [', '"criteria"', GOOD[:-2]])
def test_no_object_no_rubric(text):
    assert read_rubric(text)[0] is None and read_score(text, 2)[0] is None


def test_scores_with_and_without_a_total():
    assert read_score('so {"gate": 1, "criteria": [1, 0.5]}', 2) == (Score(1, (1.0, 0.5)), "")
    text = '{"gate": 0.0, "criteria": [0, 1.0], "total": 0.25}'
    assert read_score(text, 2) == (Score(0, (0.0, 1.0), 0.25), "")
    assert isinstance(read_score(text, 2)[0].gate, int)


@pytest.mark.parametrize(
    "answer",
    [
        '{"criteria": [1, 1]}',
        '{"gate": 0.5, "criteria": [1, 1]}',
        '{"gate": true, "criteria": [1, 1]}',
        '{"gate": "1", "criteria": [1, 1]}',
        '{"gate": 1, "criteria": [1]}',
        '{"gate": 1, "criteria": [1, 1, 1]}',
        '{"gate": 1, "criteria": [1, 1.01]}',
        '{"gate": 1, "criteria": [1, -0.1]}',
        '{"gate": 1, "criteria": [1, NaN]}',
        '{"gate": 1, "criteria": [1, null]}',
        '{"gate": 1, "criteria": {"a": 1, "b": 1}}',
        '{"gate": 1, "criteria": [1, 1], "total": 80}',
        '{"gate": 1, "criteria": [1, 1], "total": "0.8"}',
    ],
)
def test_scores_that_mean_nothing_are_refused(answer):
    score, problem = read_score(answer, 2)
    assert score is None and problem.startswith("score: ")


def test_what_is_spelled_is_read():
    rubric, _ = read_rubric(spell_rubric([('made "x"', 2), ("eaten dish_1", 6)]))
    assert [(c.name, c.weight) for c in rubric.criteria] == [
        ('made "x"', 0.25),
        ("eaten dish_1", 0.75),
    ]
    assert spell_score(1, [1.0, 0.5, 0]) == '{"gate": 1, "criteria": [1, 0.5, 0]}'
    assert read_score(spell_score(0, [1, 0.5]), 2)[0] == Score(0, (1.0, 0.5))


@pytest.mark.parametrize(
    "unit", ['{"criteria": ', '{"criteria": [', '{"a":', "{", '"criteria"', '[{"criteria":{', "\\"]
)
@pytest.mark.parametrize("end", ["", '"criteria"', GOOD])
def test_hostile_texts_take_little_time(unit, end):
    text = unit * (32_000 // len(unit)) + end
    started = time.perf_counter()
    read_rubric(text), read_score(text, 2)
    assert read_rubric("x" * 2_000_000)[0] is None
    assert time.perf_counter() - started < 1.0
