"""What a delegated goal names, and whether it is done."""

import dataclasses
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sera_jax.worlds.textworld_sync.verifiers import mentions


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
