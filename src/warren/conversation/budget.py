"""Budgets: the limits of a turn or a session, their use, and the warnings before they run out."""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import attrs

from warren.base.fields import LARGEST, Between, fits, is_whole, optional, positive
from warren.base.values import define, frozen, value
from warren.conversation.events import BudgetType, BudgetWarning
from warren.conversation.usage import NO_USAGE, Usage

WARN_AT = 0.8


@frozen
class Budget:
    """Limits of a turn or a session. None is no limit.

    Attributes:
        max_tokens: input plus output tokens. If the provider takes a cap, an answer is capped by the tokens that are
            left after an estimate of the input.
        max_seconds: wall time of running turns. Idle time is free, and so is the time in which a tool call waits for
            approval.
        max_tool_calls: number of tools run.
        max_steps: number of model calls.
        max_cost: US dollars, by the list prices of the models. The prices of the model have to be known.
    """

    max_tokens: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    max_seconds: float | None = attrs.field(default=None, validator=[positive, fits])
    max_tool_calls: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    max_steps: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    max_cost: float | None = attrs.field(default=None, validator=Between(0, LARGEST, without_low=True))

    def overridden(self, other: "Budget | None") -> "Budget":
        """Return these limits, replaced by those that `other` sets."""
        if other is None:
            return self
        given = {name: value for name, value in attrs.asdict(other).items() if value is not None}
        return attrs.evolve(self, **given)

    def within(self, other: "Budget | None") -> "Budget":
        """Return the smaller of each limit of the two."""
        if other is None:
            return self
        mine, theirs = attrs.asdict(self), attrs.asdict(other)
        both = {name: [each for each in (mine[name], theirs[name]) if each is not None] for name in mine}
        return Budget(**{name: min(each) for name, each in both.items() if each})

    @cached_property
    def limits(self) -> Sequence[tuple[BudgetType, str, float]]:
        """The limits that are set: for each its kind, the field of `Meter`, and mostly of `Spent`, for its use."""
        every = ((kind, figure, getattr(self, field)) for kind, field, figure in _FIGURES)
        return tuple(each for each in every if each[2] is not None)

    @cached_property
    def calm(self) -> float:
        """The steps of a turn below which it can have reached 80 % of no limit: 0 unless steps alone are limited."""
        return 0.0 if self.kinds - {"steps"} else WARN_AT * (self.max_steps or math.inf)

    @cached_property
    def kinds(self) -> frozenset[BudgetType]:
        """The kinds of the limits that are set."""
        return frozenset(kind for kind, _, _ in self.limits)


UNLIMITED: Final = Budget()


@value
class Spent:
    """The used part of a budget: tokens, seconds of running turns, tools run, and model calls."""

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


@frozen
class Expense:
    """What the children of a session have spent of its budget: as `Spent`, and US dollars."""

    tokens: int = 0
    seconds: float = 0.0
    tool_calls: int = 0
    steps: int = 0
    cost: float = 0.0

    def __add__(self, other: "Expense") -> "Expense":
        if other is NO_EXPENSE or self is NO_EXPENSE:
            return self if other is NO_EXPENSE else other
        return Expense(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.tool_calls + other.tool_calls,
            self.steps + other.steps,
            self.cost + other.cost,
        )

    def __sub__(self, other: "Expense") -> "Expense":
        return Expense(*(mine - theirs for mine, theirs in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))


NO_COST: Final = Decimal()
NOTHING_SPENT: Final = Spent()
NO_EXPENSE: Final = Expense()


def expense_in(figures: Mapping[str, Any] | None) -> Expense:
    """Return an expense of its figures, as JSON has them."""
    return Expense(**figures) if figures else NO_EXPENSE


@frozen
class Use:
    """One limit and its use; an `unknown` cost of a call counts as the whole limit."""

    budget_type: BudgetType
    used: float
    limit: float
    unknown: bool = False

    def warning(self) -> BudgetWarning:
        """Return the event that warns of this use."""
        return BudgetWarning(self.budget_type, self.used, self.limit, round(100 * self.used / self.limit, 1))


_FIGURES: Final[tuple[tuple[BudgetType, str, str], ...]] = (
    ("tokens", "max_tokens", "tokens"),
    ("time", "max_seconds", "seconds"),
    ("tool_calls", "max_tool_calls", "tool_calls"),
    ("steps", "max_steps", "steps"),
    ("cost", "max_cost", "cost"),
)
"""For each kind of limit the field of Budget that sets it, and the field of Meter, and mostly of Spent, for its use."""
FIELDS: Final = {kind: field for kind, field, _ in _FIGURES}
"""For each kind of limit the field of Budget that sets it."""


def shares(left: Mapping[str, float], asked: Sequence[Budget]) -> Sequence[Budget | None]:
    """Share out what a session's limits leave among children that begin at once, and the session itself.

    A child that asks for less than an equal share gets what it asks for, and leaves the rest to the others. So the
    shares follow from the limits and the wishes alone, in whichever process and order the children begin.

    Args:
        left: what the limits leave, by the fields of `Budget`.
        asked: the wish of each child.

    Returns:
        The budget of each child; None for one that nothing is left for.
    """
    given: list[dict[str, Any]] = [{name: getattr(each, name) for _, name, _ in _FIGURES} for each in asked]
    empty = [False] * len(asked)
    for name, whole in left.items():
        rest = whole
        wishes: list[float] = [math.inf if each[name] is None else each[name] for each in given]
        takers = len(asked) + 1
        for at in sorted(range(len(asked)), key=wishes.__getitem__):
            share = min(wishes[at], rest / takers)
            given[at][name] = share if name in ("max_seconds", "max_cost") else math.floor(share)
            empty[at] |= given[at][name] <= 0
            rest, takers = rest - share, takers - 1
    return [None if none else Budget(**each) for each, none in zip(given, empty, strict=True)]


@define
class _Limit:
    """One limit that is set, of the turn (`before` is 0) or of the session.

    Attributes:
        name: the kind, with its owner.
        figure: the field of Meter that is limited.
        before: the session's use before the turn.
        of_children: the use of children before the turn; None for a limit that does not count them.
    """

    name: str
    budget_type: BudgetType
    figure: str
    limit: float
    before: float | Decimal | None
    of_children: float | None = None

    def used(self, meter: "Meter") -> float:
        """Return the use. An unknown cost counts as the whole limit."""
        now: Any = getattr(meter, self.figure)
        if now is None or self.before is None:
            return self.limit
        used: Any = self.before + now
        total = float(used) if isinstance(used, Decimal) else used
        if self.of_children is None or (meter.delegated is NO_EXPENSE and not self.of_children):
            return total
        children: float = getattr(meter.delegated, self.figure)
        return float(total) + self.of_children + children

    def left(self, meter: "Meter") -> float:
        return self.limit - self.used(meter)

    def use(self, meter: "Meter") -> Use:
        unknown = getattr(meter, self.figure) is None or self.before is None
        return Use(self.budget_type, self.used(meter), self.limit, unknown)


@define
class Meter:
    """Charges one turn against its own budget and its session's.

    Attributes:
        turn: the turn's budget.
        session: the session's budget.
        before: the use of the session's budget before the turn.
        usage_before: the tokens of the session before the turn.
        usage: tokens of the turn's model calls so far.
        tool_calls: number of tools run.
        steps: number of model calls.
        clock: returns the running time of the turn so far, in seconds; 0 until the turn begins.
        warned: the names of the limits of which the turn has warned.
        asked: the limits of the turn that its caller has set. Children count for them, and for those of the session,
            and not for a runtime's own limits of each turn.
        delegated_before: the part of the session's budget that its children had spent before the turn.
        delegated: the part of both budgets that the children of the turn's calls have spent.
    """

    turn: Budget
    session: Budget
    before: Spent
    usage_before: Usage
    usage: Usage = NO_USAGE
    tool_calls: int = 0
    steps: int = 0
    clock: Callable[[], float] = lambda: 0.0
    warned: tuple[str, ...] = ()
    asked: Budget = UNLIMITED
    delegated_before: Expense = NO_EXPENSE
    delegated: Expense = NO_EXPENSE
    _made: list[_Limit] | None = None

    @property
    def _limits(self) -> list[_Limit]:
        """The limits that are set, made when the first is asked for: most turns end long before they come near one."""
        if self._made is None:
            self._made = [
                _Limit(f"turn.{kind}", kind, figure, limit, NO_COST if kind == "cost" else 0, self._asked(kind))
                for kind, figure, limit in self.turn.limits
            ]
            for kind, figure, limit in self.session.limits:
                before = self.usage_before.known_cost if kind == "cost" else getattr(self.before, figure)
                children = float(getattr(self.delegated_before, figure))
                self._made.append(_Limit(f"session.{kind}", kind, figure, limit, before, children))
        return self._made

    def _asked(self, kind: BudgetType) -> float | None:
        return 0.0 if kind in self.asked.kinds else None

    @property
    def seconds(self) -> float:
        """Running time of the turn so far."""
        return self.clock()

    @property
    def tokens(self) -> int:
        """Input plus output tokens of the turn so far."""
        return self.usage.total_tokens

    @property
    def cost(self) -> Decimal | None:
        """Cost of the turn so far in US dollars; None if it is unknown."""
        return self.usage.known_cost

    @property
    def spent(self) -> Spent:
        """The turn's use so far."""
        return Spent(self.tokens, self.seconds, self.tool_calls, self.steps)

    def spend(self, expense: Expense) -> None:
        """Count what a child has spent."""
        self.delegated += expense

    def charge(self, expense: Expense) -> None:
        """Count what a child has spent that none of the turn's calls has made: for the session's budget alone."""
        self.delegated_before += expense
        self._made = None

    @property
    def left(self) -> Mapping[str, float]:
        """What those limits leave that count children, too, by the fields of `Budget`."""
        left = dict[str, float]()
        for limit in self._limits:
            if limit.of_children is not None:
                field = FIELDS[limit.budget_type]
                left[field] = min(left.get(field, math.inf), max(0, limit.left(self)))
        return left

    def lent(self, asked: Budget) -> "Budget | Use":
        """Return the budget of a child that asks for one: at most what those limits leave.

        If it asks for no limit of a kind, it gets a half of what is left. Returns the use of a limit instead if that
        one leaves nothing.
        """
        given: dict[str, Any] = attrs.asdict(asked)
        for kind, field in FIELDS.items():
            if field in self.left:
                left, whole = self.left[field], kind not in ("time", "cost")
                most = math.floor(left) if whole else left
                if most <= 0:
                    return self.use(kind)
                half = math.ceil(left / 2) if whole else left / 2
                given[field] = half if given[field] is None else min(given[field], most)
        return Budget(**given)

    def seconds_left(self) -> float:
        """Return the seconds that the turn may still run; infinite without a time limit."""
        return self._left("time")

    def tokens_left(self) -> int | None:
        """Return the tokens that may still be used; None without a limit."""
        left = self._left("tokens")
        return None if math.isinf(left) else int(left)

    def tool_calls_left(self, wanted: int) -> int:
        """Return the number of tools that may still run, at most `wanted`."""
        return max(0, int(min(wanted, self._left("tool_calls"))))

    @property
    def low(self) -> bool:
        """Whether the use of a limit has reached 80 %: there is nothing to warn of and nothing used up before."""
        return any(limit.used(self) >= WARN_AT * limit.limit for limit in self._limits)

    def has_steps(self, count: int) -> bool:
        """Tell whether `count` more steps may begin. The tokens that they will use are not known yet."""
        return self.exhausted() is None and self._left("steps") >= count

    def exhausted(self) -> Use | None:
        """Return the first limit that is used up, or None.

        The limit of tool calls never is: a turn that has used it may still answer. It counts when the model asks for
        one tool too many.
        """
        for limit in self._limits:
            if limit.left(self) <= 0 and limit.budget_type != "tool_calls":
                return limit.use(self)
        return None

    def use(self, kind: BudgetType) -> Use:
        """Return the tightest limit of a kind; at least one of that kind must be set."""
        tightest = min(
            (limit for limit in self._limits if limit.budget_type == kind), key=lambda limit: limit.left(self)
        )
        return tightest.use(self)

    def warnings(self) -> list[BudgetWarning]:
        """Return a warning for each limit whose use has reached 80 %, once in a turn."""
        found = []
        for limit in self._limits:
            if limit.name not in self.warned and limit.used(self) >= WARN_AT * limit.limit:
                self.warned = (*self.warned, limit.name)
                found.append(limit.use(self).warning())
        return found

    def _left(self, kind: BudgetType) -> float:
        left = math.inf
        for limit in self._limits:
            if limit.budget_type == kind:
                left = min(left, limit.left(self))
        return left
