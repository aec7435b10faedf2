"""Budgets: limits of a turn or a session, what was spent of them, and when to warn."""

import math
from collections.abc import Iterator
from typing import Literal, Self

import attrs

from warren.events import BudgetWarning
from warren.fields import fits, positive
from warren.usage import Usage

BudgetType = Literal["tokens", "time", "tool_calls", "steps"]
WARN_AT = 0.8


@attrs.frozen
class Budget:
    """Limits; None is no limit.

    Attributes:
        max_tokens: input plus output tokens.
        max_seconds: wall time of running turns; idle time is free.
        max_tool_calls: tools run.
        max_steps: model calls.
    """

    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    max_seconds: float | None = attrs.field(default=None, validator=[positive, fits])
    max_tool_calls: int | None = attrs.field(default=None, validator=[positive, fits])
    max_steps: int | None = attrs.field(default=None, validator=[positive, fits])


@attrs.frozen
class Spent:
    """What was used of a budget."""

    tokens: int = 0
    seconds: float = 0.0
    tool_calls: int = 0
    steps: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.tool_calls + other.tool_calls,
            self.steps + other.steps,
        )


@attrs.frozen
class Use:
    """One limit and its use."""

    budget_type: BudgetType
    used: float
    limit: float

    def warning(self) -> BudgetWarning:
        """Return the event that tells of it."""
        return BudgetWarning(self.budget_type, self.used, self.limit, round(100 * self.used / self.limit, 1))


@attrs.define
class _Limit:
    """One limit that is set: of the turn (`before` is 0) or of the session."""

    budget_type: BudgetType
    limit: float
    before: float
    warned: bool = False


@attrs.define
class Meter:
    """Charges one turn against its own budget and its session's.

    Attributes:
        spent: what the turn has spent so far; its `seconds` as of the last `clock`.
    """

    spent: Spent
    _limits: list[_Limit]

    @classmethod
    def of(cls, turn: Budget, session: Budget, before: Spent) -> Self:
        """Return a meter for a turn with a budget of its own, in a session that had spent `before`."""
        return cls(Spent(), [*_set_limits(turn, Spent()), *_set_limits(session, before)])

    def charge(self, usage: Usage | None = None, *, tool_calls: int = 0, steps: int = 0) -> None:
        """Book a model call's tokens, tool calls or steps."""
        tokens = usage.total_tokens if usage is not None else 0
        self.spent += Spent(tokens, 0.0, tool_calls, steps)

    def clock(self, seconds: float) -> None:
        """Book the turn's running time so far, in seconds."""
        spent = self.spent
        self.spent = Spent(spent.tokens, seconds, spent.tool_calls, spent.steps)

    def seconds_left(self) -> float:
        """Return how long the turn may still run (infinite without a time limit)."""
        return self._left("time")

    def tool_calls_left(self, wanted: int) -> int:
        """Return how many of the `wanted` tools may still run."""
        return max(0, int(min(wanted, self._left("tool_calls"))))

    def exhausted(self) -> Use | None:
        """Return the first limit that is used up; of tool calls none is, until the model asks for one too many."""
        return next((use for _, use in self._uses() if use.used >= use.limit and use.budget_type != "tool_calls"), None)

    def use(self, kind: BudgetType) -> Use:
        """Return the tightest limit of that kind, which has to be set."""
        return min((use for _, use in self._uses() if use.budget_type == kind), key=lambda use: use.limit - use.used)

    def warnings(self) -> list[BudgetWarning]:
        """Return a warning for each limit that has passed 80 % since the last call."""
        due = [(limit, use) for limit, use in self._uses() if use.used >= WARN_AT * use.limit and not limit.warned]
        for limit, _ in due:
            limit.warned = True
        return [use.warning() for _, use in due]

    def _left(self, kind: BudgetType) -> float:
        return min((use.limit - use.used for _, use in self._uses() if use.budget_type == kind), default=math.inf)

    def _uses(self) -> Iterator[tuple[_Limit, Use]]:
        for limit in self._limits:
            yield limit, Use(limit.budget_type, limit.before + _figure(self.spent, limit.budget_type), limit.limit)


def _figure(spent: Spent, kind: BudgetType) -> float:
    return spent.seconds if kind == "time" else float(getattr(spent, kind))


def _set_limits(budget: Budget, before: Spent) -> Iterator[_Limit]:
    limits: dict[BudgetType, float | None] = {
        "tokens": budget.max_tokens,
        "time": budget.max_seconds,
        "tool_calls": budget.max_tool_calls,
        "steps": budget.max_steps,
    }
    for kind, limit in limits.items():
        if limit is not None:
            yield _Limit(kind, limit, _figure(before, kind))
