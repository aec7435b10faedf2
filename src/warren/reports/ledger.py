"""The ledger of a store: the use of models by tenant, hour and model, kept longer than the sessions are."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.values import frozen, value
from warren.conversation.usage import NO_USAGE, Usage

By = Literal["hour", "day", "model", "tenant", "session", "label"]
GROUPS: Final[tuple[By, ...]] = get_args(By)
OF_SESSIONS: Final[frozenset[By]] = frozenset({"session", "label"})
"""Groups that are made of the sessions that are stored, not of the ledger."""


@value
class Charge:
    """An entry for the ledger: the tokens of a model call, or a turn that has ended.

    Attributes:
        model: the model.
        usage: the tokens.
        turns: turns that have ended.
        payer: the name of the principal whose own limit of tokens they count for; empty if it has none.
    """

    model: str
    usage: Usage = NO_USAGE
    turns: int = 0
    payer: str = ""


@frozen
class Figures:
    """Sums of the ledger.

    Attributes:
        turns: turns that have ended, failed ones included.
        input_tokens: tokens sent to models, cached ones included. The tokens of all calls count: of failed attempts
            that have answered in part, of compactions, and of answers as data.
        output_tokens: tokens that models produced.
        cache_read_tokens: input tokens that providers read from their prompt caches.
        cache_creation_tokens: input tokens that providers wrote to their prompt caches.
        unpriced_tokens: input and output tokens of calls whose price is unknown.
        priced: the cost of all other calls in US dollars.
    """

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    unpriced_tokens: int = 0
    priced: Decimal = attrs.field(factory=Decimal, kw_only=True)

    def __add__(self, other: "Figures") -> "Figures":
        counts = (getattr(self, name) + getattr(other, name) for name in COUNTS)
        return Figures(*counts, priced=self.priced + other.priced)

    @property
    def tokens(self) -> int:
        """Input plus output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def cost(self) -> Decimal | None:
        """The cost in US dollars; None if there are tokens, and the price of all of them is unknown."""
        return None if self.unpriced_tokens and self.unpriced_tokens == self.tokens else self.priced


COUNTS: Final = tuple(name for name in attrs.fields_dict(Figures) if name != "priced")
"""The fields of `Figures` that are whole numbers."""
NO_FIGURES: Final = Figures()


def figures_of(usage: Usage, turns: int = 0) -> Figures:
    """Return the figures of some tokens. If a part of their cost is unknown, all of them are unpriced."""
    cost, tokens = usage.known_cost, usage.total_tokens
    return Figures(
        turns,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_creation_tokens,
        tokens if cost is None else 0,
        priced=cost or Decimal(),
    )


def hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour (UTC) that a time is in."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def keys_of(by: By, session_id: str, labels: Mapping[str, str]) -> list[str]:
    """Return the keys of a session in a report by session or by label."""
    return [f"{name}={value}" for name, value in labels.items()] if by == "label" else [session_id]


def key_of(hour: datetime, by: By) -> str:
    """Return the key of an hour in a report by hour or by day."""
    return f"{hour:%Y-%m-%d}" if by == "day" else f"{hour:%Y-%m-%dT%H:00:00Z}"


@frozen(kw_only=True)
class UsageSums:
    """Tokens and their cost.

    Attributes:
        turns: turns that have ended, failed ones included.
        input_tokens: tokens sent to models, cached ones included.
        output_tokens: tokens that models produced.
        cache_read_tokens: input tokens that providers read from their prompt caches.
        cache_creation_tokens: input tokens that providers wrote to their prompt caches.
        cost: US dollars, without the tokens of an unknown price; null if the price of all of them is unknown.
        unpriced_tokens: input and output tokens of an unknown price.
    """

    turns: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    cost: Decimal | None
    unpriced_tokens: int


@frozen(kw_only=True)
class UsageRow(UsageSums):
    """One row of a report.

    Attributes:
        key: the hour, as `2026-03-01T12:00:00Z`, the day (UTC), the model, the tenant, the id of the session, or the
            name and value of the label, as `team=red`.
    """

    key: str


@frozen
class UsageReport:
    """The answer to `usage`.

    Attributes:
        by: the group of each row.
        rows: the rows of the page: hours and days in order, of all others those with the most tokens first.
        total: the sums of all rows, those of other pages included. By `label`, a session counts for each of its labels.
        count: number of all rows.
    """

    by: By
    rows: tuple[UsageRow, ...]
    total: UsageSums
    count: int


def report_of(by: By, sums: Mapping[str, Figures], offset: int, limit: int) -> UsageReport:
    """Return a page of a report."""
    keys = sorted(sums) if by in ("hour", "day") else sorted(sums, key=lambda key: (-sums[key].tokens, key))
    page = (UsageRow(key=key, **_sums_in(sums[key])) for key in keys[offset : offset + limit])
    return UsageReport(by, tuple(page), UsageSums(**_sums_in(sum(sums.values(), NO_FIGURES))), len(keys))


def _sums_in(figures: Figures) -> dict[str, Any]:
    return {**{name: getattr(figures, name) for name in COUNTS}, "cost": figures.cost}
