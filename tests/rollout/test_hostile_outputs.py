"""A sample of what benchmarks/hostile_outputs.py reads by the hundred thousand."""

import time

from benchmarks.hostile_outputs import CRITERIA, outputs, read_all
from sera_jax.rollout.rubric_text import read_rubric, read_score


def test_no_output_raises_or_takes_long():
    slowest, counts = 0.0, [0, 0, 0]
    for text in outputs(10_000, seed=1):
        start = time.perf_counter()
        usable = read_all(text)
        slowest = max(slowest, time.perf_counter() - start)
        counts = [total + one for total, one in zip(counts, usable, strict=True)]
    assert slowest < 1.0
    assert min(counts) > 200  # the damaged answers are not all beyond reading


def test_what_is_read_from_hostile_outputs_means_something():
    for text in outputs(3_000, seed=2):
        rubric, problem = read_rubric(text)
        assert (rubric is None) == bool(problem)
        if rubric:
            weights = [criterion.weight for criterion in rubric.criteria]
            assert len(weights) >= 2 and min(weights) >= 0 and abs(sum(weights) - 1) < 1e-9
            assert all(c.name.encode() and c.description.encode() is not None
                       for c in rubric.criteria)  # fmt: skip
        score, problem = read_score(text, CRITERIA)
        assert (score is None) == bool(problem)
        if score:
            assert score.gate in (0, 1) and len(score.criteria) == CRITERIA
            assert all(0 <= c <= 1 for c in score.criteria)
