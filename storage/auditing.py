"""The rows of the audit, the same in each home with a database."""

from collections.abc import Sequence
from typing import Any, Final, get_args

from warren.calls.operators import AuditRequest
from warren.conversation import codec
from warren.reports.audit import ACTIONS, AuditEntry, AuditPage, By, Outcome, cursor_of
from warren.storage.results import Rows
from warren.storage.rows import bytes_in, microseconds, number_in, text_in, time_in

COLUMNS: Final = "at, tenant, who, action, outcome, session_id, node, source, details"
"""The columns of an entry, besides its number."""
BY: Final = "by"
"""The kind of the actor among the details: entries of earlier releases have none."""
RETENTION: Final = "retention"
"""The kind of the retention, and its name, for all that it removes."""
_OUTCOMES: Final = get_args(Outcome)
_KINDS: Final = get_args(By)


def row_of(entry: AuditEntry) -> tuple[int | str | None, ...]:
    """Return the values of an entry in the order of `COLUMNS`."""
    return (
        microseconds(entry.at),
        entry.tenant,
        entry.who,
        entry.action,
        entry.outcome,
        entry.session_id,
        entry.node,
        entry.source,
        codec.encode(dict(entry.details) if entry.by is None else {**entry.details, BY: entry.by}).decode(),
    )


def entry_of(row: tuple[Any, ...]) -> AuditEntry:
    """Return the entry of a row: its number, and `COLUMNS`. Raises ValueError."""
    number, at, tenant, who, action, outcome, session_id, node, source, details = row
    told = codec.decode_stored(dict[str, str], bytes_in(details, "details"))
    by = told.pop(BY, None)
    return AuditEntry(
        at=time_in(at, "at"),
        action=_one_of(action, "action", ACTIONS),
        who=text_in(who, "who"),
        tenant=_text_or_none(tenant, "tenant"),
        by=_unnoted(text_in(who, "who")) if by is None else _one_of(by, BY, _KINDS),
        outcome=_one_of(outcome, "outcome", _OUTCOMES),
        session_id=_text_or_none(session_id, "session_id"),
        node=_text_or_none(node, "node"),
        source=_text_or_none(source, "source"),
        details=told,
        number=number_in(number, "number"),
    )


def page_of(rows: Sequence[Any], wanted: AuditRequest) -> AuditPage:
    """Return the page of rows."""
    found: Rows[AuditEntry] = Rows(rows, entry_of, lambda row: str(row[0]))
    # The cursor is that of the last row, even of a damaged one, as long as its place can be read.
    places = [(row[1], row[0]) for row in rows if type(row[0]) is int and type(row[1]) is int]
    cursor = cursor_of(*places[-1]) if places else wanted.cursor
    return AuditPage(tuple(found), cursor, tuple(found.damaged))


def _one_of(value: Any, column: str, choices: Sequence[str]) -> Any:
    text = text_in(value, column)
    if text not in choices:
        raise ValueError(f"{column} is none of {', '.join(choices)}")
    return text


def _unnoted(who: str) -> By | None:
    """Return the kind of the actor of an entry of an earlier release; None if its name may be that of several."""
    return "principal" if who and "/" not in who and who != RETENTION else None


def _text_or_none(value: Any, column: str) -> str | None:
    return None if value is None else text_in(value, column)
