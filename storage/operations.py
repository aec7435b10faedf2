"""What the store can be asked to write: each operation is one value, applied whole or not at all."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from warren.errors import SessionNotFoundError
from warren.records import CompactionEntry, EventRow, MessageRow, SessionRecord
from warren.storage.rows import COLUMNS, DELETED, microseconds, record_to_row, row_to_record

if TYPE_CHECKING:
    import apsw

R_co = TypeVar("R_co", covariant=True)

# A tombstone is left alone, and so nothing is returned; what is archived stays so.
_SAVE: Final = f"""
    INSERT INTO sessions ({COLUMNS}, generation) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)
    ON CONFLICT (session_id) DO UPDATE SET
        updated_at = excluded.updated_at, state = max(state, excluded.state), model = excluded.model,
        turns = excluded.turns, steps = excluded.steps, message_count = excluded.message_count,
        last_seq = excluded.last_seq, head = excluded.head, labels = excluded.labels, details = excluded.details,
        generation = excluded.generation
    WHERE state <> {DELETED}
    RETURNING key
"""
_ADD_MESSAGE: Final = "INSERT INTO messages (session, position, created_at, body) VALUES (?,?,?,?)"
_ADD_EVENT: Final = "INSERT INTO events (session, seq, first_seq, timestamp, body, cuts) VALUES (?,?,?,?,?,?)"
_ADD_COMPACTION: Final = """
    INSERT INTO compactions (session, step, created_at, head, messages_before, messages_after, summary, summary_tokens)
    VALUES (?,?,?,?,?,?,?,?)
"""
_ARCHIVE: Final = f"UPDATE sessions SET state = 1 WHERE session_id = ? AND state <> {DELETED} RETURNING {COLUMNS}"
_BURY: Final = f"""
    UPDATE sessions SET state = {DELETED}, model = '', turns = 0, steps = 0, message_count = 0, last_seq = 0, head = 0,
        labels = '{{}}', details = '{{}}'
    WHERE session_id = ? RETURNING key
"""


class Operation(ABC, Generic[R_co]):
    """One change of the store; `R_co` is what it returns."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session it changes."""

    @abstractmethod
    def apply(self, db: "apsw.Connection", generation: int) -> R_co:
        """Make the change inside the transaction that the writer has opened on `db`.

        `generation` is that of the opening that writes. Raises a WarrenError or whatever `db` raises; the transaction
        is then rolled back.
        """


@attrs.frozen
class Commit(Operation[None]):
    """Store the end of a turn: the session's row and the rows that the turn added.

    The first commit of a session creates it. Fails with SessionNotFoundError on a deleted session, and with
    StoreError(cause="conflict") where a message of that position or an event of that number is there already.

    Attributes:
        record: the session as it is from now on; `created_at` counts on the first commit only, and a session that is
            archived in the store stays archived.
        messages: new messages.
        events: new rows of the event log.
        compaction: what moved the record's head, if something did.
    """

    record: SessionRecord
    messages: tuple[MessageRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    compaction: CompactionEntry | None = None

    @property
    def session_id(self) -> str:
        """The session it changes."""
        return self.record.session_id

    def apply(self, db: "apsw.Connection", generation: int) -> None:
        """Write the rows."""
        key = db.execute(_SAVE, (*record_to_row(self.record), generation)).get
        if key is None:
            raise _not_found(self.session_id)
        if self.messages:
            db.executemany(_ADD_MESSAGE, _message_values(key, self.messages))
        if self.events:
            db.executemany(_ADD_EVENT, _event_values(key, self.events))
        if self.compaction is not None:
            db.execute(_ADD_COMPACTION, _compaction_values(key, self.compaction))


@attrs.frozen
class Archive(Operation[SessionRecord]):
    """Retire a session and return its record. Idempotent; fails with SessionNotFoundError where there is none."""

    session_id: str

    def apply(self, db: "apsw.Connection", generation: int) -> SessionRecord:  # noqa: ARG002 - the row keeps its own
        """Mark the row."""
        row = db.execute(_ARCHIVE, (self.session_id,)).get
        if row is None:
            raise _not_found(self.session_id)
        return row_to_record(row)


@attrs.frozen
class Delete(Operation[None]):
    """Remove a session and all that is stored of it, except its id: no later write brings it back.

    Deleting it again does nothing. Fails with SessionNotFoundError for an id that was never here.
    """

    session_id: str

    def apply(self, db: "apsw.Connection", generation: int) -> None:  # noqa: ARG002 - nothing is numbered
        """Remove the rows, leave the tombstone."""
        key = db.execute(_BURY, (self.session_id,)).get
        if key is None:
            raise _not_found(self.session_id)
        db.execute("DELETE FROM messages WHERE session = ?", (key,))
        db.execute("DELETE FROM events WHERE session = ?", (key,))
        db.execute("DELETE FROM compactions WHERE session = ?", (key,))


def _message_values(key: int, rows: Sequence[MessageRow]) -> list[tuple[int, int, int, str]]:
    return [(key, row.position, microseconds(row.created_at), row.body.decode()) for row in rows]


def _event_values(key: int, rows: Sequence[EventRow]) -> list[tuple[int, int, int, int, str, str | None]]:
    return [
        (key, row.seq, row.first_seq, microseconds(row.timestamp), row.body.decode(), _text(row.cuts)) for row in rows
    ]


def _compaction_values(key: int, entry: CompactionEntry) -> tuple[int | str, ...]:
    counts = (entry.head, entry.messages_before, entry.messages_after)
    return (key, entry.step, microseconds(entry.created_at), *counts, entry.summary, entry.summary_tokens)


def _text(cuts: bytes | None) -> str | None:
    return None if cuts is None else cuts.decode()


def _not_found(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)
