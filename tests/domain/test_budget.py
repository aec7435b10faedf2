"""Budgets: what is left, what is used up, who is warned and how often."""

import math
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.base.fields import LARGEST, FieldValueError
from warren.conversation.budget import Budget, Meter, Spent, Use
from warren.conversation.events import BudgetWarning
from warren.conversation.usage import Usage

NONE: Final = Budget()
KINDS: Final = {
    "tokens": "max_tokens",
    "time": "max_seconds",
    "tool_calls": "max_tool_calls",
    "steps": "max_steps",
    "cost": "max_cost",
}
ENDING: Final = ("steps", "time", "tokens", "cost")
counts: Final = st.integers(0, 10**6)


def metered(turn: Budget, session: Budget, before: Spent, cost: Decimal | None = Decimal()) -> Meter:
    """Return the meter of a turn in a session that has used this much, and whose tokens have cost this much."""
    return Meter(turn, session, before, Usage(1, 1, cost=cost))


def charged(meter: Meter, kind: str, amount: int) -> Meter:
    """Book an amount of one kind."""
    match kind:
        case "tokens":
            meter.usage += Usage(amount // 2, amount - amount // 2)
        case "cost":
            meter.usage += Usage(1, 1, cost=Decimal(amount))
        case "time":
            meter.clock = lambda: float(amount)
        case "tool_calls":
            meter.tool_calls += amount
        case _:
            meter.steps += amount
    return meter


def test_without_limits_nothing_ends() -> None:
    """No budget: no end, no warning, all the time and all the tools in the world."""
    meter = metered(NONE, NONE, Spent(10**9, 1e9, 10**9, 10**9))
    meter.usage += Usage(10**9, 10**9)
    meter.tool_calls += 10**6
    meter.steps += 10**6
    meter.clock = lambda: 1e9
    assert (meter.exhausted(), meter.warnings()) == (None, [])
    assert (meter.seconds_left(), meter.tool_calls_left(7)) == (math.inf, 7)


@pytest.mark.parametrize("kind", ENDING)
@pytest.mark.parametrize("scope", ["turn", "session"])
def test_each_limit_holds(kind: str, scope: str) -> None:
    """Each limit of turn and session ends the turn when it is reached, not before, and says which it was."""
    budget = Budget(**{KINDS[kind]: 10})
    turn, session = (budget, NONE) if scope == "turn" else (NONE, budget)
    assert charged(metered(turn, session, Spent()), kind, 9).exhausted() is None
    used_up = charged(metered(turn, session, Spent()), kind, 10).exhausted()
    assert used_up is not None
    assert (used_up.budget_type, used_up.used, used_up.limit) == (kind, 10, 10)


def test_the_last_tool_call_does_not_end_the_turn() -> None:
    """A model that used its tool calls up may still answer: there are no more, but nothing is exhausted."""
    meter = metered(Budget(max_tool_calls=2), NONE, Spent())
    meter.tool_calls += 2
    assert (meter.exhausted(), meter.tool_calls_left(1)) == (None, 0)
    assert meter.use("tool_calls") == Use("tool_calls", 2, 2)


@given(counts, counts, st.integers(1, 10**6), st.sampled_from(ENDING))
def test_the_session_counts_earlier_turns(before: int, now: int, limit: int, kind: str) -> None:
    """A session's limit is charged with all its turns, a turn's limit with that turn alone."""
    budget = Budget(**{KINDS[kind]: limit})
    spent = charged(metered(NONE, NONE, Spent()), kind, before).spent
    assert (charged(metered(NONE, budget, spent), kind, now).exhausted() is not None) == (before + now >= limit)
    assert (charged(metered(budget, NONE, spent), kind, now).exhausted() is not None) == (now >= limit)


@pytest.mark.parametrize(("before", "tightest"), [(0, Use("tokens", 3, 10)), (15, Use("tokens", 18, 20))])
def test_the_tightest_limit(before: int, tightest: Use) -> None:
    """Of the turn's limit and the session's, the one with less left is named."""
    meter = metered(Budget(max_tokens=10, max_steps=1), Budget(max_tokens=20), Spent(before))
    meter.usage += Usage(3)
    assert meter.use("tokens") == tightest


@given(counts, st.integers(1, 10**6), st.sampled_from(sorted(KINDS)))
def test_a_warning_at_eighty_percent(used: int, limit: int, kind: str) -> None:
    """The warning comes at 80 % exactly, with the figures, and once."""
    meter = charged(
        metered(Budget(**{KINDS[kind]: limit}), NONE, Spent()),
        kind,
        used,
    )
    expected = [BudgetWarning(kind, used, limit, round(100 * used / limit, 1))]  # type: ignore[arg-type] # a kind
    assert meter.warnings() == (expected if used * 10 >= limit * 8 else [])
    assert meter.warnings() == []


def test_each_limit_warns_for_itself() -> None:
    """Turn and session are two limits: each has its own warning, whenever it comes."""
    meter = metered(Budget(max_tokens=10, max_steps=2), Budget(max_tokens=100), Spent(tokens=70))
    meter.usage += Usage(8)
    meter.steps += 1
    assert [(warning.budget_type, warning.limit) for warning in meter.warnings()] == [("tokens", 10)]
    meter.usage += Usage(2)
    meter.steps += 1
    assert [(warning.budget_type, warning.limit) for warning in meter.warnings()] == [("steps", 2), ("tokens", 100)]


def test_what_is_left() -> None:
    """The tighter of turn and session decides; what is overdrawn leaves no tools."""
    meter = metered(Budget(max_seconds=10, max_tool_calls=5), Budget(max_seconds=60, max_tool_calls=7), Spent(0, 55, 4))
    assert (meter.seconds_left(), meter.tool_calls_left(9), meter.tool_calls_left(2)) == (5, 3, 2)
    meter.tool_calls += 8
    meter.clock = lambda: 6.0
    assert (meter.seconds_left(), meter.tool_calls_left(9)) == (-1, 0)


def test_the_clock_is_read_not_added() -> None:
    """The turn's time is what the clock says now; the other figures stay."""
    meter = metered(NONE, NONE, Spent())
    meter.usage += Usage(1, 2, cache_read_tokens=100)
    meter.tool_calls += 3
    meter.steps += 4
    times = iter([1.5, 2.5, 2.5])
    meter.clock = lambda: next(times)
    assert meter.spent.seconds == 1.5
    assert meter.spent == Spent(3, 2.5, 3, 4)
    assert Spent(1, 0.5, 2, 3) + meter.spent == Spent(4, 3.0, 5, 7)


@pytest.mark.parametrize("field", KINDS.values())
@pytest.mark.parametrize("value", [0, -1, "12", True, [5], math.nan, math.inf, 10**400])
def test_a_limit_is_a_number_above_zero(field: str, value: Any) -> None:
    """A value that is no limit is refused with the field's name, also where a program passes it."""
    with pytest.raises(FieldValueError, match=f"^{field} must be ") as caught:
        Budget(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", KINDS.values())
def test_the_largest_limit_can_be_metered(field: str) -> None:
    """The arithmetic of a turn copes with every limit that is let in."""
    budget = Budget(**{field: LARGEST})
    meter = metered(budget, budget, Spent(1, 1.0, 1, 1))
    assert (meter.warnings(), meter.exhausted(), meter.tool_calls_left(1)) == ([], None, 1)
    assert meter.seconds_left() > 10**9


def test_costs_are_summed_exactly() -> None:
    """Ten calls of ten cents use up a dollar, which they would not as floats; one cent less is left over."""
    meter = metered(Budget(max_cost=1.0), NONE, Spent())
    for _call in range(9):
        meter.usage += Usage(1, 1, cost=Decimal("0.1"))
    assert meter.exhausted() is None
    meter.usage += Usage(1, 1, cost=Decimal("0.1"))
    assert meter.exhausted() == Use("cost", 1.0, 1.0)


@pytest.mark.parametrize("before", [None, Decimal(0)])
def test_an_unknown_cost_uses_all_up(before: Decimal | None) -> None:
    """An unknown cost, of the turn or of the session before it, ends the budget: nothing is spent uncounted."""
    meter = metered(NONE, Budget(max_cost=5.0), Spent(), before)
    if before is not None:
        meter.usage += Usage(1, 1)
    assert meter.exhausted() == Use("cost", 5.0, 5.0, unknown=True)


def test_the_cost_before_the_turn_counts_for_the_session() -> None:
    """A turn's own budget begins at 0, that of the session at its cost so far."""
    before = Decimal("4.5")
    assert metered(Budget(max_cost=4.0), NONE, Spent(), before).exhausted() is None
    meter = metered(NONE, Budget(max_cost=5.0), Spent(), before)
    assert [warning.percent for warning in meter.warnings()] == [90.0]
    meter.usage += Usage(1, 1, cost=Decimal("0.5"))
    assert meter.exhausted() == Use("cost", 5.0, 5.0)
