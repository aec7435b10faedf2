"""Budgets: limits of a turn or a session, what was spent of them, and when to warn."""

import math
from collections.abc import Iterator
from typing import Final, Self

import attrs

from warren.errors import BudgetCause
from warren.events import BudgetWarning
from warren.fields import fits, is_whole_or_none, positive
from warren.usage import NO_USAGE, Usage
from warren.values import value

BudgetType = BudgetCause
WARN_AT = 0.8


@attrs.frozen
class Budget:
    """Limits; None is no limit.

    Attributes:
        max_tokens: input plus output tokens. An answer is capped by what is left after an estimate of the input, if
            its provider takes a cap.
        max_seconds: wall time of running turns; idle time is free, as is the time in which a tool call waits for
            somebody's word.
        max_tool_calls: tools run.
        max_steps: model calls.
    """

    max_tokens: int | None = attrs.field(default=None, validator=[is_whole_or_none, positive, fits])
    max_seconds: float | None = attrs.field(default=None, validator=[positive, fits])
    max_tool_calls: int | None = attrs.field(default=None, validator=[is_whole_or_none, positive, fits])
    max_steps: int | None = attrs.field(default=None, validator=[is_whole_or_none, positive, fits])

    def overridden(self, other: "Budget | None") -> "Budget":
        """Return these limits with those that `other` sets in their place."""
        if other is None:
            return self
        given = {name: value for name, value in attrs.asdict(other).items() if value is not None}
        return attrs.evolve(self, **given)


UNLIMITED: Final = Budget()


@value
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


NOTHING: Final = Spent()


@attrs.frozen
class Use:
    """One limit and its use."""

    budget_type: BudgetType
    used: float
    limit: float

    def warning(self) -> BudgetWarning:
        """Return the event that tells of it."""
        return BudgetWarning(self.budget_type, self.used, self.limit, round(100 * self.used / self.limit, 1))


_FIGURES: Final[tuple[tuple[BudgetType, str, str], ...]] = (
    ("tokens", "max_tokens", "tokens"),
    ("time", "max_seconds", "seconds"),
    ("tool_calls", "max_tool_calls", "tool_calls"),
    ("steps", "max_steps", "steps"),
)
"""The kinds of limits: the field that sets one, and what it is about."""


@attrs.define
class _Limit:
    """One limit that is set, of the turn (`before` is 0) or of the session; `figure` names what it is about."""

    budget_type: BudgetType
    figure: str
    limit: float
    before: float
    warned: bool = False

    def used(self, meter: "Meter") -> float:
        used: float = self.before + getattr(meter, self.figure)
        return used

    def left(self, meter: "Meter") -> float:
        return self.limit - self.used(meter)

    def use(self, meter: "Meter") -> Use:
        return Use(self.budget_type, self.used(meter), self.limit)


@attrs.define
class Meter:
    """Charges one turn against its own budget and its session's.

    Attributes:
        usage: tokens of the turn's model calls so far.
        seconds: how long it has run, as of the last `clock`.
        tool_calls: tools it has run.
        steps: model calls it has made.
    """

    _limits: list[_Limit]
    usage: Usage = NO_USAGE
    seconds: float = 0.0
    tool_calls: int = 0
    steps: int = 0

    @classmethod
    def of(cls, turn: Budget, session: Budget, before: Spent) -> Self:
        """Return a meter for a turn with a budget of its own, in a session that had spent `before`."""
        return cls([*_set_limits(turn, NOTHING), *_set_limits(session, before)])

    @property
    def tokens(self) -> int:
        """Input plus output tokens so far."""
        return self.usage.total_tokens

    @property
    def spent(self) -> Spent:
        """What the turn has spent so far."""
        return Spent(self.tokens, self.seconds, self.tool_calls, self.steps)

    def charge(self, usage: Usage | None = None, *, tool_calls: int = 0, steps: int = 0) -> None:
        """Book a model call's tokens, tool calls or steps."""
        if usage is not None:
            self.usage += usage
        self.tool_calls += tool_calls
        self.steps += steps

    def clock(self, seconds: float) -> None:
        """Book the turn's running time so far, in seconds."""
        self.seconds = seconds

    def seconds_left(self) -> float:
        """Return how long the turn may still run (infinite without a time limit)."""
        return self._left("time")

    def tokens_left(self) -> int | None:
        """Return how many tokens may still be used; None without a limit."""
        left = self._left("tokens")
        return None if math.isinf(left) else int(left)

    def tool_calls_left(self, wanted: int) -> int:
        """Return how many of the `wanted` tools may still run."""
        return max(0, int(min(wanted, self._left("tool_calls"))))

    def has_steps(self, count: int) -> bool:
        """Tell whether so many more steps may be made, as far as is known before they are."""
        return self.exhausted() is None and self._left("steps") >= count

    def exhausted(self) -> Use | None:
        """Return the first limit that is used up; of tool calls none is, until the model asks for one too many."""
        for limit in self._limits:
            if limit.left(self) <= 0 and limit.budget_type != "tool_calls":
                return limit.use(self)
        return None

    def use(self, kind: BudgetType) -> Use:
        """Return the tightest limit of that kind, which has to be set."""
        tightest = min(
            (limit for limit in self._limits if limit.budget_type == kind), key=lambda limit: limit.left(self)
        )
        return tightest.use(self)

    def warnings(self) -> list[BudgetWarning]:
        """Return a warning for each limit that has passed 80 % since the last call."""
        found = []
        for limit in self._limits:
            if not limit.warned and limit.used(self) >= WARN_AT * limit.limit:
                limit.warned = True
                found.append(limit.use(self).warning())
        return found

    def _left(self, kind: BudgetType) -> float:
        return min((limit.left(self) for limit in self._limits if limit.budget_type == kind), default=math.inf)


def _set_limits(budget: Budget, before: Spent) -> Iterator[_Limit]:
    if budget is UNLIMITED:  # most sessions' own
        return
    for kind, field, figure in _FIGURES:
        limit: float | None = getattr(budget, field)
        if limit is not None:
            yield _Limit(kind, figure, limit, getattr(before, figure))
