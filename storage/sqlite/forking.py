"""Forks with SQL. SQLite copies the rows; Python reads only the rows that decide whether the cut is allowed."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Any, Final

import apsw

from warren.base.values import frozen
from warren.calls.forking import forked
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, newest_answer
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.storage.operations import Fork
from warren.storage.refusals import not_found
from warren.storage.rows import (
    COLUMNS,
    COMPACTION,
    DELETED,
    bytes_in,
    compaction,
    corrupt,
    number_in,
    record_to_row,
    row_to_record,
)
from warren.storage.sqlite import attachments, audit
from warren.storage.sqlite.columns import BEGINS_TURN, NEXT_CHANGE, raw
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.operations import PLACES, set_agent

_SOURCE: Final = (
    f"SELECT {raw(COLUMNS)}, key, {raw('messages_from')} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
)
# Without a holder: the first turn claims the lease.
_ADD: Final = f"""
    INSERT INTO sessions ({COLUMNS}, messages_from, change)
    VALUES ({PLACES},?,{NEXT_CHANGE}) RETURNING key
"""
_COPY_MESSAGES: Final = """
    INSERT INTO messages (session, position, created_at, body)
    SELECT ?, position, created_at, body FROM messages WHERE session = ? AND position < ? ORDER BY position
"""
_COPY_COMPACTIONS: Final = f"""
    INSERT INTO compactions (session, {COMPACTION})
    SELECT ?, {COMPACTION} FROM compactions WHERE session = ? AND head <= ? ORDER BY rowid
"""
_MESSAGE: Final = f"SELECT {raw('body')} FROM messages WHERE session = ? AND position = ?"
_PROMPTS: Final = f"SELECT position FROM messages WHERE session = ? AND {BEGINS_TURN} ORDER BY position DESC LIMIT 1"
_ANSWERS: Final = f"""
    SELECT {raw("body")} FROM messages WHERE session = ? AND position < ? AND json_valid(body)
        AND body ->> '$.role' = 'assistant'
        AND instr(body, '"type":"text"') ORDER BY position DESC
"""
_MOVES: Final = "SELECT count(*), max(rowid) FROM compactions WHERE session = ? AND head <= ?"
_MOVE: Final = f"SELECT {raw(COMPACTION)} FROM compactions WHERE rowid = ?"


def fork(operation: Fork, db: apsw.Connection, _holder: Holder) -> SessionRecord:
    """Copy the rows of a session. The original does not change, so its lease does not matter."""
    source_id = operation.wanted.session_id
    found = db.execute(_SOURCE, (source_id,)).get
    if found is None:
        raise not_found(source_id)
    *columns, key, kept_from = found
    try:
        number_in(kept_from, "messages_from")
    except ValueError as exc:
        raise corrupt(f"session {source_id}", exc, source_id) from exc
    original = _Stored(db, key, row_to_record(tuple(columns)), kept_from)
    wanted, owner = operation.wanted, operation.owner
    record = forked(original, wanted, operation.session_id, operation.now, owner=owner, spoken=operation.spoken)
    count = record.message_count
    new = db.execute(_ADD, (*record_to_row(record), min(kept_from, count))).get
    set_agent(db, new, record)
    db.execute(_COPY_MESSAGES, (new, key, count))
    db.execute(_COPY_COMPACTIONS, (new, key, count))
    attachments.share(db, key, new)
    audit.add(db, (operation.audit,))
    return record


@frozen
class _Stored:
    """The session that is forked; see `warren.calls.forking.Original`."""

    db: apsw.Connection
    key: int
    record: SessionRecord
    kept_from: int

    def message(self, position: int) -> Message | None:
        row: Any = self.db.execute(_MESSAGE, (self.key, position)).fetchone()
        return None if row is None else self._decoded(row[0])

    def newest_prompt(self) -> int:
        return self.db.execute(_PROMPTS, (self.key,)).get or 0

    def last_answer(self, before: int) -> AssistantMessage | None:
        return newest_answer(self._decoded(body) for (body,) in self.db.execute(_ANSWERS, (self.key, before)))

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:
        count, newest = self.db.execute(_MOVES, (self.key, at)).get
        if newest is None:
            return 0, None
        row: Any = self.db.execute(_MOVE, (newest,)).fetchone()
        try:
            return count, compaction(row)
        except ValueError as exc:
            raise corrupt("a compaction", exc, self.record.session_id) from exc

    def _decoded(self, body: Any) -> Message:
        try:
            return codec.decode_message(bytes_in(body, "body"))
        except ValueError as exc:
            raise corrupt("a message", exc, self.record.session_id) from exc
