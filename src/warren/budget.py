"""Budgets: limits of a turn or a session, what was spent of them, and when to warn."""

import math
from typing import Literal

import attrs

from warren.events import BudgetWarning
from warren.fields import positive
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

    max_tokens: int | None = attrs.field(default=None, validator=positive)
    max_seconds: float | None = attrs.field(default=None, validator=positive)
    max_tool_calls: int | None = attrs.field(default=None, validator=positive)
    max_steps: int | None = attrs.field(default=None, validator=positive)


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

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.used >= self.limit

    def warning(self) -> BudgetWarning:
        """Return the event that tells of it."""
        return BudgetWarning(self.budget_type, self.used, self.limit, round(100 * self.used / self.limit, 1))


def uses(budget: Budget, spent: Spent) -> list[Use]:
    """Return one entry a limit that is set."""
    figures: list[tuple[BudgetType, float, float | None]] = [
        ("tokens", spent.tokens, budget.max_tokens),
        ("time", spent.seconds, budget.max_seconds),
        ("tool_calls", spent.tool_calls, budget.max_tool_calls),
        ("steps", spent.steps, budget.max_steps),
    ]
    return [Use(kind, used, limit) for kind, used, limit in figures if limit is not None]


@attrs.define
class Meter:
    """Charges one turn against its own budget and its session's.

    Attributes:
        turn: limits of this turn.
        session: limits of the session, over all its turns.
        before: what the session had spent when the turn began.
        spent: what the turn has spent so far.
    """

    turn: Budget
    session: Budget
    before: Spent
    spent: Spent = attrs.field(factory=Spent)
    _warned: set[tuple[str, BudgetType]] = attrs.field(factory=set)

    def charge(self, usage: Usage | None = None, *, tool_calls: int = 0, steps: int = 0) -> None:
        """Book a model call's tokens, tool calls or steps."""
        tokens = usage.total_tokens if usage is not None else 0
        self.spent += Spent(tokens, 0.0, tool_calls, steps)

    def clock(self, seconds: float) -> None:
        """Book the turn's running time so far, in seconds."""
        self.spent = attrs.evolve(self.spent, seconds=seconds)

    def seconds_left(self) -> float:
        """Return how long the turn may still run (infinite without a time limit)."""
        return self._left("time")

    def tool_calls_left(self, wanted: int) -> int:
        """Return how many of the `wanted` tools may still run."""
        return max(0, int(min(wanted, self._left("tool_calls"))))

    def exhausted(self) -> Use | None:
        """Return the first limit that is used up."""
        return next((use for _, use in self._uses() if use.exhausted), None)

    def warnings(self) -> list[BudgetWarning]:
        """Return a warning for each limit that has passed 80 % since the last call."""
        due = [(scope, use) for scope, use in self._uses() if use.used >= WARN_AT * use.limit]
        fresh = [(scope, use) for scope, use in due if (scope, use.budget_type) not in self._warned]
        self._warned.update((scope, use.budget_type) for scope, use in fresh)
        return [use.warning() for _, use in fresh]

    def _left(self, kind: BudgetType) -> float:
        return min((use.limit - use.used for _, use in self._uses() if use.budget_type == kind), default=math.inf)

    def _uses(self) -> list[tuple[str, Use]]:
        turn = [("turn", use) for use in uses(self.turn, self.spent)]
        return turn + [("session", use) for use in uses(self.session, self.before + self.spent)]
