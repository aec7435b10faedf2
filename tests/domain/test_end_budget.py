"""The shares of an end's time."""

import pytest

from warren.base.end_budget import EndBudget


@pytest.mark.parametrize("seconds", [1.0, 2.0, 10.0, 30.0, 3600.0])
def test_the_phases_fit_into_the_time(seconds: float) -> None:
    """They follow each other, each has some time, and the last one ends before the whole is over."""
    budget = EndBudget(100.0, seconds)
    moments = (budget.turns, budget.cut_off, budget.interrupts, budget.connections, budget.last)
    assert list(moments) == sorted(set(moments))
    assert moments[0] > 100.0 + 0.4 * seconds
    assert 0.03 <= 100.0 + seconds - moments[-1] <= 0.51


def test_more_time_goes_to_the_turns() -> None:
    """What comes after them needs no more than some seconds, however much there is."""
    assert EndBudget(0.0, 60.0).turns == 60.0 - 7.5
