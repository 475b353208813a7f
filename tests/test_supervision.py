"""What a delegated goal names, whether it is done, and the counting of judge calls."""

import asyncio
import dataclasses
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sera_jax.supervision import Counters, Judge, Usage, mentions, noisy


def dish(dish_id, *names):
    return SimpleNamespace(dish_id=dish_id, recipe=[SimpleNamespace(name=name) for name in names])


DISHES = [
    dish("dish_1", "black pepper", "carrot"),
    dish("dish_2", "pepper", "salt"),
    dish("dish_10", "red hot pepper"),
]


@dataclasses.dataclass
class Kitchen:
    """A world that only knows how far things are."""

    prepared: tuple[str, ...] = ()
    meals: tuple[str, ...] = ()
    eaten: tuple[str, ...] = ()
    task = SimpleNamespace(dishes=DISHES)

    def state(self, agent):
        keys = ("prepared", "meals_prepared", "meals_eaten")
        return dict(zip(keys, (self.prepared, self.meals, self.eaten), strict=True))


# A goal, and exactly what has to be done for it: (items, dishes prepared, dishes eaten).
GOALS = [
    ("Prepare dish_1", ((), ("dish_1",), ())),
    ("make Dish 1!", ((), ("dish_1",), ())),
    ("make dish_10", ((), ("dish_10",), ())),
    ("dish-1, then dish_2", ((), ("dish_1", "dish_2"), ())),
    ("prepare and eat dish_1", ((), ("dish_1",), ("dish_1",))),
    ("Serve dish_2 and dish_1", ((), ("dish_1", "dish_2"), ("dish_1", "dish_2"))),
    ("prepare dish_1 but do not eat it", ((), ("dish_1",), ())),
    ("prepare dish_1 and don't yet eat it", ((), ("dish_1",), ())),
    ("have dish_1 ready without eating it", ((), ("dish_1",), ())),
    ("get the carrot", (("carrot",), (), ())),
    ("chop the CARROT and the Black  Pepper", (("carrot", "black pepper"), (), ())),
    ("black pepper", (("black pepper",), (), ())),
    ("pepper", (("pepper",), (), ())),
    ("red hot pepper and pepper", (("red hot pepper", "pepper"), (), ())),
    ("make dish_1 from carrot and black pepper", (("carrot", "black pepper"), ("dish_1",), ())),
    ("make dish_1, also get salt", (("salt",), ("dish_1",), ())),
    ("prepare the ingredients for dish_1: carrot", (("carrot",), (), ())),
    ("prepare the ingredients for dish_1", (("carrot", "black pepper"), (), ())),
    ("collect dish_2's ingredients", (("pepper", "salt"), (), ())),
    ("ingredients of dish_2 and dish_10", (("pepper", "salt", "red hot pepper"), (), ())),
    ("chop carrot for dish_1 and get everything for dish_10 (ingredients)",
     (("carrot", "red hot pepper"), (), ())),
    ("get the ingredients for dish_1, then prepare dish_1", ((), ("dish_1",), ())),
    ("do all that is left for dish_1", ((), ("dish_1",), ())),
    ("get carrot for dish_1, prepare and eat it", (("carrot",), ("dish_1",), ("dish_1",))),
    ("eat dish_2 : pepper salt", (("pepper", "salt"), ("dish_2",), ("dish_2",))),
]  # fmt: skip


@pytest.mark.parametrize("goal, needed", GOALS, ids=[goal for goal, _ in GOALS])
def test_what_a_goal_asks_for(goal, needed):
    assert mentions(Kitchen(*needed), goal) is True
    for index, names in enumerate(needed):
        for name in names:  # each single thing missing is noticed
            rest = tuple(n for n in names if n != name)
            lacking = needed[:index] + (rest,) + needed[index + 1 :]
            assert mentions(Kitchen(*lacking), goal) is False


@pytest.mark.parametrize("goal", ["", "open the door", "dish_3", "carrots", "peppermint", "salty"])
def test_a_goal_that_names_nothing_cannot_be_told(goal):
    assert mentions(Kitchen(), goal) is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from("dish_1|dish 2|carrot|pepper|for|of|eat|not|,|and|'s|x".split("|")))
)
def test_any_goal_gets_an_answer(words):
    assert mentions(Kitchen(), " ".join(words)) in (False, None)


@pytest.mark.parametrize("unit", [" ", "for ", "dish_1 and ", "not  ", "black ", "x", "dish_1 , ,"])
def test_long_goals_take_linear_time(unit):
    started = time.perf_counter()
    mentions(Kitchen(), "ingredients of dish_1 " + unit * (32_000 // len(unit)) + "x dish_2")
    assert time.perf_counter() - started < 2.0


def test_calls_are_counted_by_purpose_and_survive_a_checkpoint():
    counters = Counters()
    judge = Judge(mentions, counters, purpose="child")
    assert judge(Kitchen(prepared=("salt",)), "get salt", "root") is True
    assert judge(Kitchen(), "nothing named", "root") is None
    counters.add("attempt", input_tokens=100, output_tokens=3)
    counters.add("attempt", input_tokens=50, output_tokens=4)
    assert counters.to_json()["child"]["calls"] == 2
    attempts = {"calls": 2, "input_tokens": 150, "output_tokens": 7}
    assert counters.to_json()["attempt"] == Usage(**attempts).__dict__
    restored = Counters(counters.to_json())
    assert restored.total() == counters.total() == Usage(4, 150, 7)


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
    flips = [not label for label in labels(noisy(mentions, 0.2, 7), AGENTS)]
    assert 330 < sum(flips) < 470
    assert flips == [not label for label in labels(noisy(mentions, 0.2, 7), AGENTS)]
    assert flips == labels(
        noisy(lambda *_: False, 0.2, 7), AGENTS
    )  # False is flipped where True is
    backwards = labels(noisy(mentions, 0.2, 7), AGENTS[::-1])
    assert flips == [not label for label in backwards[::-1]]
    more = [not label for label in labels(noisy(mentions, 0.4, 7), AGENTS)]
    assert all(after for before, after in zip(flips, more, strict=True) if before)
    assert labels(noisy(mentions, 0.5, 7), ["0.0"] * 3) in ([True] * 3, [False] * 3)
    for other in (noisy(mentions, 0.2, 8), noisy(mentions, 0.2, 7, tree_id="1/task/0")):
        agree = sum(label != flip for label, flip in zip(labels(other, AGENTS), flips, strict=True))
        assert 1_200 < agree < 1_500  # 0.2^2 + 0.8^2


def test_noise_leaves_alone_what_is_no_label_and_accepts_only_probabilities():
    assert noisy(mentions, 0.0, 7) is mentions
    assert labels(noisy(mentions, 1.0, 7), ["0", "1"]) == [False, False]
    assert noisy(mentions, 1.0, 7)(Kitchen(), "nothing \ud800 named", "0") is None
    for rate in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            noisy(mentions, rate, 7)


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
