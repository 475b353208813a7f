import collections

import pytest

from sera_jax import schedule


def test_default_cycle_trains_sixteen_two_two_in_order():
    steps = [schedule.objective_at(step) for step in range(20)]
    assert steps == ["execution"] * 16 + ["decomposition"] * 2 + ["rubric"] * 2
    assert [schedule.objective_at(step) for step in range(20, 40)] == steps


def test_first_and_last_step_of_a_paper_run():
    assert schedule.objective_at(0) == "execution"
    assert schedule.objective_at(399) == "rubric"
    counts = collections.Counter(schedule.objective_at(step) for step in range(400))
    assert counts == {"execution": 320, "decomposition": 40, "rubric": 40}


def test_variants_leave_objectives_out():
    with_decomposition = (("execution", 12), ("decomposition", 4))
    with_rubric = (("execution", 16), ("decomposition", 0), ("rubric", 2))
    assert schedule.objective_at(12, with_decomposition) == "decomposition"
    assert schedule.objective_at(16, with_decomposition) == "execution"
    assert schedule.objective_at(16, with_rubric) == "rubric"
    assert schedule.objective_at(18, with_rubric) == "execution"
    assert schedule.objective_at(7, cycle=(("execution", 1),)) == "execution"


def test_objectives_of_a_cycle():
    assert schedule.objectives(schedule.SERA_CYCLE) == ("execution", "decomposition", "rubric")
    assert schedule.objectives((("execution", 16), ("decomposition", 0))) == ("execution",)


@pytest.mark.parametrize("cycle", [(), (("execution", 0),), (("execution", 2), ("rubric", -1))])
def test_a_cycle_that_trains_nothing_is_refused(cycle):
    with pytest.raises(ValueError, match="at least one above 0"):
        schedule.objective_at(0, cycle)


def test_negative_steps_are_refused():
    with pytest.raises(ValueError, match="count from 0"):
        schedule.objective_at(-1)
