"""The counting of judge calls, disagreement among programs, and labels made noisy."""

import asyncio

import pytest

from sera_jax.supervision import Counters, Judge, Usage, noisy


class Kitchen:
    """A world that only knows what is ready."""

    def __init__(self, prepared=()):
        self.prepared = prepared


def ready(world, goal, agent):
    """The last word of the goal is what has to be ready; None for a goal that gets nothing."""
    return goal.split()[-1] in world.prepared if goal.startswith("get ") else None


def test_calls_are_counted_by_purpose_and_survive_a_checkpoint():
    counters = Counters()
    judge = Judge(ready, counters, purpose="child")
    assert judge(Kitchen(prepared=("salt",)), "get salt", "root") is True
    assert judge(Kitchen(), "nothing named", "root") is None
    counters.add("attempt", input_tokens=100, output_tokens=3)
    counters.add("attempt", input_tokens=50, output_tokens=4)
    assert counters.to_json()["child"]["calls"] == 2
    attempts = {"calls": 2, "input_tokens": 150, "output_tokens": 7}
    assert counters.to_json()["attempt"] == Usage(**attempts).__dict__
    restored = Counters(counters.to_json())
    assert restored.total() == counters.total() == Usage(4, 150, 7)


def test_programs_that_would_have_answered_otherwise_are_counted_and_not_charged():
    counters = Counters()
    judge = Judge(ready, counters, others=(lambda *_: True, ready))
    assert counters.disagreement() is None
    for world in (Kitchen(("salt",)), Kitchen(), Kitchen()):
        judge(world, "get salt", "0.0")
    assert counters.total() == Usage(calls=3, disputed=2)
    assert counters.disagreement() == pytest.approx(2 / 3)


def test_other_numbers_are_counted_without_a_call():
    older = {"child": {"calls": 2, "input_tokens": 0, "output_tokens": 0}}  # of a checkpoint
    counters = Counters(older)
    counters.add("child", calls=0, cached=1, invalid=True)
    assert counters.total() == Usage(calls=2, cached=1, invalid=1)
    with pytest.raises(AttributeError):
        counters.add("child", tokens=1)


def labels(judge, agents, goal="get salt"):
    return [judge(Kitchen(prepared=("salt",)), goal, agent) for agent in agents]


AGENTS = [f"0.{n}" for n in range(2_000)]


def test_noise_flips_its_share_of_either_label_by_identity_alone():
    flips = [not label for label in labels(noisy(ready, 0.2, 7), AGENTS)]
    assert 330 < sum(flips) < 470
    assert flips == [not label for label in labels(noisy(ready, 0.2, 7), AGENTS)]
    assert flips == labels(
        noisy(lambda *_: False, 0.2, 7), AGENTS
    )  # False is flipped where True is
    backwards = labels(noisy(ready, 0.2, 7), AGENTS[::-1])
    assert flips == [not label for label in backwards[::-1]]
    more = [not label for label in labels(noisy(ready, 0.4, 7), AGENTS)]
    assert all(after for before, after in zip(flips, more, strict=True) if before)
    assert labels(noisy(ready, 0.5, 7), ["0.0"] * 3) in ([True] * 3, [False] * 3)
    for other in (noisy(ready, 0.2, 8), noisy(ready, 0.2, 7, tree_id="1/task/0")):
        agree = sum(label != flip for label, flip in zip(labels(other, AGENTS), flips, strict=True))
        assert 1_200 < agree < 1_500  # 0.2^2 + 0.8^2


def test_noise_leaves_alone_what_is_no_label_and_accepts_only_probabilities():
    assert noisy(ready, 0.0, 7) is ready
    assert labels(noisy(ready, 1.0, 7), ["0", "1"]) == [False, False]
    assert noisy(ready, 1.0, 7)(Kitchen(), "nothing \ud800 named", "0") is None
    for rate in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            noisy(ready, rate, 7)


def test_noise_waits_for_a_judge_that_takes_time():
    seen = []

    def later(world, goal, agent):
        seen.append(world.prepared)  # what it needs of the world is read in the call

        async def verdict():
            return agent == "0"

        return verdict()

    judged = [noisy(later, 1.0, 7)(Kitchen(), "get salt", agent) for agent in ("0", "1")]
    assert seen == [(), ()]

    async def both():
        return [await verdict for verdict in judged]

    assert asyncio.run(both()) == [False, True]
