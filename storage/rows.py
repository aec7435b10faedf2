"""A session's record as a row of its table, and back."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import attrs

from warren import codec
from warren.budget import UNLIMITED, Budget, Spent
from warren.categories import Gates, Switches
from warren.compaction import CompactionConfig
from warren.errors import StoreError
from warren.peers import Peer
from warren.records import Parent, SessionRecord, Span
from warren.usage import Usage

OPEN: Final = 0
ARCHIVED: Final = 1
DELETED: Final = 2
SEQ_STRIDE: Final = 1_000_000
"""How far event numbers jump over those that a dead holder may have shown and not stored: more than one turn has."""
COLUMNS: Final = (
    "session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq, head, labels, title, "
    "details"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@attrs.frozen
class _Details:
    """The part of a record that no query looks at; each field is the record's own."""

    provider: str | None = None
    max_tokens: int | None = None
    tools: tuple[str, ...] | None = None
    overrides: Switches | None = None
    approvals: Gates | None = None
    output_schema: Mapping[str, Any] | None = None
    structured_output_retries: int = 2
    peer: Peer | None = None
    budget: Budget = UNLIMITED
    spent: Spent = attrs.field(factory=Spent)
    usage: Usage = attrs.field(factory=Usage)
    last_assistant_text: str | None = None
    compaction: CompactionConfig | None = None
    compactions: int = 0
    last_compaction_step: int | None = None
    last_input_tokens: int = 0
    turn_open: bool = False
    parent: Parent | None = None
    left_out: tuple[Span, ...] = ()


_DETAILS: Final = tuple(field.name for field in attrs.fields(_Details))
_DEFAULTS: Final = attrs.astuple(_Details(), recurse=False)
_details_of: Final = attrgetter(*_DETAILS)


def microseconds(moment: datetime) -> int:
    """Return a time as whole microseconds since 1970 UTC, exactly. Raises TypeError for a time without a zone."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(stored: int) -> datetime:
    """Return the time (UTC) that `microseconds` made a number of."""
    return _EPOCH + stored * _MICROSECOND


def record_to_row(record: SessionRecord) -> tuple[Any, ...]:
    """Return the record's values in the order of `COLUMNS`."""
    # What `_Details` reads, without making one: this runs beside the event loop, for every turn.
    each = zip(_DETAILS, _details_of(record), _DEFAULTS, strict=True)
    details = {name: value for name, value, default in each if value is not default and value != default}
    return (
        record.session_id,
        microseconds(record.created_at),
        microseconds(record.updated_at),
        ARCHIVED if record.archived else OPEN,
        record.model,
        record.turns,
        record.steps,
        record.message_count,
        record.last_seq,
        record.head,
        codec.encode(record.labels).decode() if record.labels else "{}",
        record.title,
        codec.encode_whole(details).decode(),
    )


def row_to_record(row: tuple[Any, ...]) -> SessionRecord:
    """Return the record of a row read as `COLUMNS`. Raises StoreError(cause="corrupt") naming a damaged session."""
    session_id, created_at, updated_at, state, model, turns, steps, message_count, last_seq, head, *rest = row
    labels, title, stored = rest
    try:
        details = codec.decode_stored(_Details, stored)
        marks = codec.decode_stored(dict[str, str], labels)
    except ValueError as exc:
        message = f"session {session_id} is damaged in the store: {exc}"
        raise StoreError(message, session_id=session_id, cause="corrupt", retryable=False) from exc
    return SessionRecord(
        session_id=session_id,
        created_at=moment(created_at),
        updated_at=moment(updated_at),
        archived=state == ARCHIVED,
        model=model,
        turns=turns,
        steps=steps,
        message_count=message_count,
        last_seq=last_seq,
        head=head,
        labels=marks,
        title=title,
        **{name: getattr(details, name) for name in _DETAILS},
    )
