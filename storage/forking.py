"""Forks in the store: the rows are copied by SQLite, and only those are looked at that say where it may be cut."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import TYPE_CHECKING, Any, Final

import attrs

from warren import codec
from warren.errors import StoreError
from warren.forking import ForkRequest, forked
from warren.messages import AssistantMessage, Message
from warren.records import CompactionEntry, SessionRecord
from warren.storage.lease import Holder
from warren.storage.operations import Operation, not_found
from warren.storage.rows import COLUMNS, DELETED, moment, record_to_row, row_to_record

if TYPE_CHECKING:
    import apsw

_SOURCE: Final = f"SELECT {COLUMNS}, key, messages_from FROM sessions WHERE session_id = ? AND state <> {DELETED}"
# Nobody holds it: the first message to it takes its lease.
_ADD: Final = f"""
    INSERT INTO sessions ({COLUMNS}, messages_from, change)
    VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,(SELECT coalesce(max(change), 0) + 1 FROM sessions)) RETURNING key
"""
_COPY_MESSAGES: Final = """
    INSERT INTO messages (session, position, created_at, body)
    SELECT ?, position, created_at, body FROM messages WHERE session = ? AND position < ? ORDER BY position
"""
_COMPACTION: Final = "step, created_at, head, messages_before, messages_after, summary, summary_tokens"
_COPY_COMPACTIONS: Final = f"""
    INSERT INTO compactions (session, {_COMPACTION})
    SELECT ?, {_COMPACTION} FROM compactions WHERE session = ? AND head <= ? ORDER BY rowid
"""
_MESSAGE: Final = "SELECT body FROM messages WHERE session = ? AND position = ?"
_PROMPTS: Final = """
    SELECT position FROM messages WHERE session = ? AND body ->> '$.role' = 'user' ORDER BY position DESC LIMIT 1
"""
_ANSWERS: Final = """
    SELECT body FROM messages WHERE session = ? AND position < ? AND body ->> '$.role' = 'assistant'
        AND instr(body, '"type":"text"') ORDER BY position DESC
"""
_MOVES: Final = "SELECT count(*), max(rowid) FROM compactions WHERE session = ? AND head <= ?"
_MOVE: Final = f"SELECT {_COMPACTION} FROM compactions WHERE rowid = ?"


@attrs.frozen
class Fork(Operation[SessionRecord]):
    """Make a session of the beginning of another one, whichever process has that; returns its record.

    Fails with SessionNotFoundError where there is no such session, and with InvalidParamsError where it cannot be cut
    there.

    Attributes:
        source_id: the session that is forked.
        wanted: what the fork is to be.
    """

    source_id: str
    wanted: ForkRequest

    @property
    def session_id(self) -> str:
        """The session it makes."""
        return self.wanted.session_id

    def apply(self, db: "apsw.Connection", holder: Holder) -> SessionRecord:  # noqa: ARG002 - nothing of theirs changes
        """Copy the rows."""
        found = db.execute(_SOURCE, (self.source_id,)).get
        if found is None:
            raise not_found(self.source_id)
        *columns, key, kept_from = found
        record = forked(_Stored(db, key, row_to_record(tuple(columns)), kept_from), self.wanted)
        count = record.message_count
        new = db.execute(_ADD, (*record_to_row(record), min(kept_from, count))).get
        db.execute(_COPY_MESSAGES, (new, key, count))
        db.execute(_COPY_COMPACTIONS, (new, key, count))
        return record


@attrs.frozen
class _Stored:
    """The session that is forked; see `warren.forking.Original`."""

    db: "apsw.Connection"
    key: int
    record: SessionRecord
    kept_from: int

    def message(self, position: int) -> Message | None:
        body: str | None = self.db.execute(_MESSAGE, (self.key, position)).get
        return None if body is None else self._decoded(body)

    def newest_prompt(self) -> int:
        return self.db.execute(_PROMPTS, (self.key,)).get or 0

    def last_text(self, before: int) -> str | None:
        answers = (self._decoded(body) for (body,) in self.db.execute(_ANSWERS, (self.key, before)))
        return next((each.text for each in answers if isinstance(each, AssistantMessage) and each.text), None)

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:
        count, newest = self.db.execute(_MOVES, (self.key, at)).get
        if newest is None:
            return 0, None
        row: Any = self.db.execute(_MOVE, (newest,)).get
        step, created_at, *rest = row
        return count, CompactionEntry(step, moment(created_at), *rest)

    def _decoded(self, body: str) -> Message:
        try:
            return codec.decode_message(body)
        except ValueError as exc:
            raise StoreError(str(exc), session_id=self.record.session_id, cause="corrupt", retryable=False) from exc
