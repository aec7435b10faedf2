"""The operations on sessions with SQL: one function for each kind of operation.

A function raises a WarrenError only before its first change: the rest of its group is committed all the same. An error
of the database may come later; the transaction is then rolled back.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterator, Sequence
from typing import Final

import apsw

from warren.base.errors import WarrenError
from warren.calls.forking import relabelled
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.conversation.journal import LogItem, row_of
from warren.conversation.records import CompactionEntry, EventRow, MessageRow
from warren.storage.operations import (
    Archive,
    Claim,
    Claimed,
    Commit,
    Delete,
    Erased,
    Label,
    Labelled,
    Lease,
    LeaseHeld,
    Release,
    Reserve,
)
from warren.storage.refusals import built_on_sand, key_used, leased, name_taken, not_found, retired, taken_over
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    DELETED,
    OPEN,
    SEQ_STRIDE,
    before,
    corrupt,
    microseconds,
    number_in,
    record_to_row,
    row_to_record,
)
from warren.storage.sqlite import attachments, audit
from warren.storage.sqlite.columns import NEXT_CHANGE, raw
from warren.storage.sqlite.inbox import damaged, last_number, set_aside, store_outcome, waiting
from warren.storage.sqlite.lease import END_LEASE, Holder

PLACES: Final = ",".join("?" * len(COLUMNS.split(",")))
# The WHERE fences: a tombstone, and a session under another lease, are left alone, and then no key is returned. An
# archived session stays archived. Labels and a title that is there are kept: they may have changed during the turn.
# Parameters are numbered by `COLUMNS`, so that one row of values serves both statements.
_CHANGE: Final = f"""
    updated_at = ?3, state = max(state, ?4), model = ?5, turns = ?6, steps = ?7, message_count = ?8, last_seq = ?9,
    head = ?10, title = coalesce(title, ?12), details = ?13, change = {NEXT_CHANGE}
    WHERE state <> {DELETED} AND holder = ?16 AND epoch = ?17
"""
_SAVE: Final = f"""
    INSERT INTO sessions ({COLUMNS}, holder, epoch, change) VALUES ({PLACES},?,?,{NEXT_CHANGE})
    ON CONFLICT (session_id) DO UPDATE SET {_CHANGE} RETURNING key, change
"""
# A session that lacks what the turn follows is left alone too, and one that is not there is not made.
_SAVE_AFTER: Final = f"""
    UPDATE sessions SET {_CHANGE} AND session_id = ?1 AND message_count = ?18 AND last_seq = ?19 RETURNING key, change
"""
_NAME: Final = "UPDATE sessions SET peer = ? WHERE key = ? AND peer IS NULL"
# A session that is stored already has its name, or had it until it was archived.
_NAMESAKE: Final = f"""
    SELECT 1 FROM sessions WHERE tenant = ? AND peer = ? AND state = {OPEN}
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = ?)
"""
_ADD_CREATION: Final = "INSERT INTO creations (tenant, key, session, params) VALUES (?,?,?,?)"
_CREATED: Final = "SELECT 1 FROM creations WHERE tenant = ? AND key = ?"
_ADD_MESSAGE: Final = "INSERT INTO messages (session, position, created_at, body) VALUES (?,?,?,?)"
_ADD_EVENT: Final = "INSERT INTO events (session, seq, first_seq, timestamp, body, cuts) VALUES (?,?,?,?,?,?)"
_ADD_COMPACTION: Final = """
    INSERT INTO compactions (session, step, created_at, head, messages_before, messages_after, summary, summary_tokens)
    VALUES (?,?,?,?,?,?,?,?)
"""
_HOLDING: Final = f"SELECT key, {raw('state, holder, epoch')} FROM sessions WHERE session_id = ?"
_RECORD_OF: Final = f"SELECT {raw(COLUMNS)} FROM sessions WHERE key = ?"
_CLAIMED: Final = f"SELECT {raw(COLUMNS)}, key, {raw('state, holder, epoch')} FROM sessions WHERE session_id = ?"
# A holder that died may have shown events without storing them: their numbers are not given out again. Of a store that
# has gone back, neither are those of epochs.
_TAKE: Final = f"""
    UPDATE sessions SET holder = ?2, epoch = epoch + iif(updated_at <= ?3, {SEQ_STRIDE}, 1),
        last_seq = last_seq + iif(holder IS NULL AND updated_at > ?3, 0, {SEQ_STRIDE})
    WHERE key = ?1 RETURNING last_seq, epoch
"""
ANSWERED: Final = "DELETE FROM requests WHERE session = (SELECT key FROM sessions WHERE session_id = ?)"
_PUT_BACK: Final = "UPDATE sessions SET holder = NULL WHERE session_id = ? AND holder = ? AND epoch = ?"
_ARCHIVE: Final = f"UPDATE sessions SET state = 1, change = {NEXT_CHANGE} WHERE key = ?"
_LABEL: Final = f"UPDATE sessions SET labels = ?, title = ?, change = {NEXT_CHANGE} WHERE key = ? RETURNING change"
_BURY: Final = f"""
    UPDATE sessions SET state = {DELETED}, model = '', turns = 0, steps = 0, message_count = 0, last_seq = 0, head = 0,
        labels = '{{}}', details = '{{}}', title = NULL, peer = NULL, holder = NULL,
        messages_from = 0, events_after = 0, change = {NEXT_CHANGE}
    WHERE key = ?
"""


def commit(operation: Commit, db: apsw.Connection, holder: Holder) -> None:
    """Write the rows of a turn."""
    record, creation = operation.record, operation.creation
    peer = record.options.peer
    if creation is not None and db.execute(_CREATED, (record.tenant, creation.key)).get:
        raise key_used()
    if peer is not None and db.execute(_NAMESAKE, (record.tenant, peer.name, record.session_id)).get:
        raise name_taken(peer.name)
    row = (*record_to_row(record), holder.key, operation.lease.epoch)
    base = operation.base
    saved = (db.execute(_SAVE, row) if base is None else db.execute(_SAVE_AFTER, (*row, *base))).get
    if saved is None:
        raise _refused(operation, db, holder)
    holder.wrote = saved
    key, _ = saved
    if operation.messages:
        db.executemany(_ADD_MESSAGE, _message_values(key, operation.messages))
    if operation.events:
        db.executemany(_ADD_EVENT, _event_values(key, operation.events))
    if operation.compaction is not None:
        db.execute(_ADD_COMPACTION, _compaction_values(key, operation.compaction))
    if peer is not None:
        db.execute(_NAME, (peer.name, key))
    if creation is not None:
        db.execute(_ADD_CREATION, (record.tenant, creation.key, key, codec.encode(creation.params).decode()))
    store_outcome(db, key, operation.inputs)
    if operation.audit is not None:
        audit.add(db, (operation.audit,))


def _refused(operation: Commit, db: apsw.Connection, holder: Holder) -> WarrenError:
    session_id = operation.session_id
    row = db.execute(_HOLDING, (session_id,)).get
    if row is None or row[1] == DELETED:
        return not_found(session_id)
    if row[2:] == (holder.key, operation.lease.epoch):
        return built_on_sand(session_id)
    return taken_over(session_id, holder.rival(db, row[2]) if row[2] is not None else None)


def claim(operation: Claim, db: apsw.Connection, holder: Holder) -> Claimed | LeaseHeld | None:
    """Change the holder of a session's row."""
    session_id = operation.session_id
    found = db.execute(_CLAIMED, (session_id,)).get
    if found is None:
        return None
    *columns, key, state, owner, epoch = found
    if state == DELETED:
        return None
    rival = holder.rival(db, owner) if owner not in (None, holder.key) else None
    if rival is not None:
        return LeaseHeld(rival)
    record = row_to_record(tuple(columns))
    try:
        number_in(epoch, "epoch")
    except ValueError as exc:
        raise corrupt(f"session {session_id}", exc, session_id) from exc
    lost = damaged(db, session_id)
    set_aside(db, lost)
    inbox = tuple(waiting(db, session_id)), last_number(db), tuple(each.problem for each in lost)
    if owner == holder.key:
        return Claimed(record, Lease(epoch), *inbox)
    db.execute(ANSWERED, (session_id,))
    last_seq, epoch = db.execute(_TAKE, (key, holder.key, before(operation.went_back_at))).get
    return Claimed(record.changed(last_seq=last_seq), Lease(epoch), *inbox)


def release(operation: Release, db: apsw.Connection, holder: Holder) -> None:
    """Take the holder out of a session's row."""
    db.execute(_PUT_BACK, (operation.session_id, holder.key, operation.lease.epoch))
    db.execute(ANSWERED, (operation.session_id,))


def reserve(operation: Reserve, db: apsw.Connection, _holder: Holder) -> None:
    """Have the log of the file grow by the bytes, and take them back: the next commit finds their room in the log."""
    db.execute("SAVEPOINT room; CREATE TABLE room (bytes)")
    db.execute("INSERT INTO room VALUES (zeroblob(?))", (operation.size,))
    db.cache_flush()  # else a transaction that is taken back writes nothing
    db.execute("ROLLBACK TO room; RELEASE room")


def archive(operation: Archive, db: apsw.Connection, holder: Holder) -> None:
    """Mark a session's row."""
    key, state = writable(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if state != ARCHIVED:
        db.execute(END_LEASE, (key, holder.key))
        db.execute(_ARCHIVE, (key,))
        db.execute("DELETE FROM inbox WHERE session = ?", (key,))
        audit.add(db, (operation.audit,))


def label(operation: Label, db: apsw.Connection, holder: Holder) -> Labelled:
    """Change the labels and the title of a session's row."""
    key, state = writable(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if state == ARCHIVED:
        raise retired(operation.session_id)
    record = row_to_record(db.execute(_RECORD_OF, (key,)).get)
    record = relabelled(record, operation.changes, operation.title)
    return Labelled(record, db.execute(_LABEL, (codec.encode(record.labels).decode(), record.title, key)).get)


def delete(operation: Delete, db: apsw.Connection, holder: Holder) -> None:
    """Remove the rows of a session, leave the tombstone."""
    key, state = writable(db, holder, operation.session_id)
    if state == DELETED:
        return
    db.execute(_BURY, (key,))
    db.execute("DELETE FROM messages WHERE session = ?", (key,))
    db.execute("DELETE FROM events WHERE session = ?", (key,))
    db.execute("DELETE FROM inbox WHERE session = ?", (key,))
    db.execute("DELETE FROM compactions WHERE session = ?", (key,))
    attachments.drop(db, key)
    db.execute("INSERT OR IGNORE INTO erasures VALUES (?)", (operation.session_id,))
    audit.add(db, (operation.audit,))


def erased(operation: Erased, db: apsw.Connection, _holder: Holder) -> None:
    """Drop the note that copies of a session are due for deletion; any process may."""
    db.execute("DELETE FROM erasures WHERE session_id = ?", (operation.session_id,))


def writable(db: apsw.Connection, holder: Holder, session_id: str) -> tuple[int, int]:
    """Return the key and the state of a session. Raises LeasedError if another living process has it."""
    key, state, rival = holding(db, holder, session_id)
    if rival is not None:
        raise leased(session_id, rival)
    return key, state


def holding(db: apsw.Connection, holder: Holder, session_id: str) -> tuple[int, int, str | None]:
    """Return the key and the state of a session, and the name of another living process that has it, or None."""
    found = db.execute(_HOLDING, (session_id,)).get
    if found is None:
        raise not_found(session_id)
    key, state, owner, _ = found
    return key, state, holder.rival(db, owner) if owner not in (None, holder.key) else None


def _message_values(key: int, rows: Sequence[MessageRow]) -> list[tuple[int, int, int, str]]:
    return [(key, row.position, microseconds(row.created_at), row.body.decode()) for row in rows]


def _event_values(
    key: int, items: Sequence[EventRow | LogItem]
) -> Iterator[tuple[int, int, int, int, str, str | None]]:
    for item in items:
        if type(item) is Envelope:  # most are, and need no row in between
            seq = item.seq
            yield key, seq, seq, microseconds(item.timestamp), codec.encode_event(item).decode(), None
        else:
            row = row_of(item)
            yield key, row.seq, row.first_seq, microseconds(row.timestamp), row.body.decode(), _text(row.cuts)


def _compaction_values(key: int, entry: CompactionEntry) -> tuple[int | str, ...]:
    counts = (entry.head, entry.messages_before, entry.messages_after)
    return (key, entry.step, microseconds(entry.created_at), *counts, entry.summary, entry.summary_tokens)


def _text(cuts: bytes | None) -> str | None:
    return None if cuts is None else cuts.decode()
