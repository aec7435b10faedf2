"""The ledger as stores keep it: sums of groups of turns, and reports."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from warren.conversation.usage import NO_USAGE
from warren.reports.ledger import COUNTS, NO_FIGURES, By, Figures, key_of
from warren.storage.operations import Commit
from warren.storage.rows import microseconds, number_in, text_in, time_in

Key = tuple[str, int, str, str]
"""A tenant, the beginning of an hour in microseconds, a payer (see `Charge`), and a model."""
Sums = list[Any]
"""The values of `Figures` in the order of `COLUMNS`, to which charges are added."""
HOUR: Final = 3_600_000_000
"""Microseconds of an hour."""
FIRST: Final = -(2**62)
LAST: Final = 2**62
"""Microseconds before and after all times."""
KEY: Final = "tenant, hour, payer, model, holder"
COLUMNS: Final = ", ".join((*COUNTS, "priced"))


def sums_of(commits: Iterable[Commit]) -> dict[Key, Sums]:
    """Return the sums of the charges of some turns."""
    sums: dict[Key, Sums] = {}
    for commit in commits:
        if commit.charges:
            add_charges(sums, commit)
    return sums


def add_charges(sums: dict[Key, Sums], commit: Commit) -> None:
    """Add the charges of a turn to sums."""
    # To lists, not `Figures`, of which each charge would make two: all turns of all sessions come through here.
    tenant, at = commit.record.tenant, microseconds(commit.record.updated_at)
    hour = at - at % HOUR
    for charge in commit.charges:
        key = tenant, hour, charge.payer, charge.model
        found = sums.get(key)
        if found is None:
            found = sums[key] = [0] * len(COUNTS) + [Decimal()]
        found[0] += charge.turns
        usage = charge.usage
        if usage is NO_USAGE:
            continue
        found[1] += usage.input_tokens
        found[2] += usage.output_tokens
        found[3] += usage.cache_read_tokens
        found[4] += usage.cache_creation_tokens
        if usage.cost is None:
            found[5] += usage.total_tokens
        else:
            found[6] += usage.cost


def figures_from(sums: Sums) -> Figures:
    """Return sums as figures."""
    *counts, priced = sums
    return Figures(*counts, priced=priced)


def values_of(sums: Sums) -> tuple[Any, ...]:
    """Return sums as the values of a row."""
    *counts, priced = sums
    return *counts, text_of(priced)


def figures_in(row: Iterable[Any]) -> Figures:
    """Return the figures of a row of `COLUMNS`. Raises ValueError."""
    *counts, priced = row
    numbers = [number_in(each, column) for each, column in zip(counts, COUNTS, strict=True)]
    return Figures(*numbers, priced=decimal_in(priced, "priced"))


def bounds_of(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Return the first microsecond that counts, which begins the hour of `since`, and the first one that does not."""
    first = FIRST if since is None else microseconds(since)
    return first - first % HOUR, LAST if until is None else microseconds(until)


def key_in(by: By, tenant: Any, hour: Any, model: Any) -> str:
    """Return the key of a row in a report. Raises ValueError."""
    if by in ("hour", "day"):
        return key_of(time_in(hour, "hour"), by)
    return text_in(tenant, "tenant") if by == "tenant" else text_in(model, "model")


def added(rows: Iterable[tuple[str, Figures]]) -> dict[str, Figures]:
    """Return the sums of figures with the same key."""
    sums: dict[str, Figures] = {}
    for key, figures in rows:
        sums[key] = sums.get(key, NO_FIGURES) + figures
    return sums


def decimal_in(value: Any, column: str) -> Decimal:
    """Return a decimal number. Raises ValueError."""
    try:
        number = Decimal(text_in(value, column))
    except InvalidOperation:
        raise ValueError(f"{column} is no decimal number") from None
    if not number.is_finite():
        raise ValueError(f"{column} is {number}, no finite number")
    return number


def text_of(number: Decimal) -> str:
    """Return a decimal number as stores keep it: without an exponent, and without zeros at its end."""
    return format(number.normalize(), "f")
