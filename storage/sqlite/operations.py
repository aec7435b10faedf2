"""The operations on sessions with SQL: one function for each kind of operation.

A function raises a WarrenError only before its first change: the rest of its group is committed all the same. An error
of the database may come later; the transaction is then rolled back.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from typing import Any, Final

import apsw

from warren.base.errors import WarrenError
from warren.calls.forking import relabelled
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.conversation.inputs import retiring
from warren.conversation.log_rows import LogItem, row_of
from warren.conversation.records import CompactionEntry, EventRow, SessionRecord
from warren.conversation.waits import forgetting
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
    StoreAnswer,
)
from warren.storage.refusals import built_on_sand, key_used, leased, name_taken, not_found, retired, taken_over
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    DELETED,
    DELETES,
    OPEN,
    SEQ_STRIDE,
    Continued,
    before,
    continued,
    corrupt,
    details_text,
    in_background,
    microseconds,
    number_in,
    record_to_row,
    row_to_record,
    sound_waits,
)
from warren.storage.sqlite import attachments, audit, open_turns, schedules, triggers, waits, webhooks
from warren.storage.sqlite.bulk import execute_rows
from warren.storage.sqlite.columns import NEXT_CHANGE, raw
from warren.storage.sqlite.inbox import damaged, last_number, send, send_down, set_aside, store_outcomes, waiting
from warren.storage.sqlite.lease import END_ALL, END_LEASE, Holder

PLACES: Final = ",".join("?" * len(COLUMNS.split(",")))
# The fence: a tombstone, and a session under another lease, are left alone, and then no key is returned. An archived
# session stays archived. Labels and a title that is there are kept: they may have changed during the turn.
# Values are numbered by `COLUMNS`, as parameters or as columns.
_SET: Final = """
    updated_at = {0}3, state = max(state, {0}4), model = {0}5, turns = {0}6, steps = {0}7, message_count = {0}8,
    last_seq = {0}9, head = {0}10, title = coalesce(title, {0}12), details = {0}13, turn = {0}16, wakes = {0}17
"""
_FENCE: Final = f"state <> {DELETED} AND holder = {{0}}18 AND epoch = {{0}}19"
_SAVE: Final = f"""
    INSERT INTO sessions ({COLUMNS}, holder, epoch, change) VALUES ({PLACES},?,?,{NEXT_CHANGE})
    ON CONFLICT (session_id) DO UPDATE SET {_SET.format("?")}, change = {NEXT_CHANGE} WHERE {_FENCE.format("?")}
    RETURNING key, change
"""
# A session that lacks what the turn follows is left alone too, and one that is not there is not made.
_SAVE_AFTER: Final = f"""
    UPDATE sessions SET {_SET.format("column")}, change = column22 FROM (VALUES {{rows}})
    WHERE session_id = column1 AND {_FENCE.format("column")} AND message_count = column20 AND last_seq = column21
    RETURNING session_id, key, change
"""
LAST_CHANGE: Final = f"SELECT {NEXT_CHANGE} - 1"
_NAME: Final = "UPDATE sessions SET peer = ? WHERE key = ? AND peer IS NULL"
# Apart from the other columns, which each commit writes: most find the agent there.
_AGENT: Final = "UPDATE sessions SET agent = ?1 WHERE key = ?2 AND agent IS NOT ?1"
# A session that is stored already has its name, or had it until it was archived.
_NAMESAKE: Final = f"""
    SELECT 1 FROM sessions WHERE tenant = ? AND peer = ? AND state = {OPEN}
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = ?)
"""
_ADD_CREATION: Final = "INSERT INTO creations (tenant, key, session, params) VALUES (?,?,?,?)"
_CREATED: Final = "SELECT 1 FROM creations WHERE tenant = ? AND key = ?"
_ADD_MESSAGES: Final = "INSERT INTO messages (session, position, created_at, body) VALUES {rows}"
_ADD_EVENTS: Final = "INSERT INTO events (session, seq, first_seq, timestamp, body, cuts) VALUES {rows}"
_ADD_COMPACTION: Final = """
    INSERT INTO compactions (session, step, created_at, head, messages_before, messages_after, summary, summary_tokens)
    VALUES (?,?,?,?,?,?,?,?)
"""
_HOLDING: Final = f"SELECT key, {raw('state, holder, epoch')} FROM sessions WHERE session_id = ?"
_LEASE: Final = f"SELECT {raw('holder, epoch')} FROM sessions WHERE key = ?"
RECORD_OF: Final = f"SELECT {raw(COLUMNS)} FROM sessions WHERE key = ?"
_CLAIMED: Final = f"""
    SELECT {raw(COLUMNS)}, key, {raw("state, holder, epoch")}, {waits.SOME_OPEN} FROM sessions WHERE session_id = ?
"""
# A holder that died may have shown events without storing them: their numbers are not given out again. Of a store that
# has gone back, neither are those of epochs.
_TAKE: Final = f"""
    UPDATE sessions SET holder = ?2, epoch = epoch + iif(updated_at <= ?3, {SEQ_STRIDE}, 1),
        last_seq = last_seq + iif(holder IS NULL AND updated_at > ?3, 0, {SEQ_STRIDE})
    WHERE key = ?1 RETURNING last_seq, epoch
"""
ANSWERED: Final = "DELETE FROM requests WHERE session = (SELECT key FROM sessions WHERE session_id = ?)"
# The epoch, as a release may come late: the same process may have taken the session anew.
_PUT_BACK: Final = "UPDATE sessions SET holder = NULL WHERE session_id = ? AND holder = ? AND epoch = ?"
_ARCHIVE: Final = f"""
    UPDATE sessions SET state = {ARCHIVED}, turn = NULL, wakes = NULL, change = {NEXT_CHANGE}
    WHERE key = ?1 AND coalesce(holder, ?2) = ?2 AND epoch = ?3 RETURNING key
"""
# All but the notice that its parent is deleted, which may have come just before: an archived session goes as well.
_EMPTY: Final = f"DELETE FROM inbox WHERE session = ? AND NOT (notice AND instr(body, '{DELETES}') > 0)"
_AWAKE: Final = "UPDATE sessions SET wakes = NULL WHERE key = ? AND wakes IS NOT NULL"
_LABEL: Final = f"""
    UPDATE sessions SET labels = ?, title = ?, details = coalesce(?, details), change = {NEXT_CHANGE} WHERE key = ?
    RETURNING change
"""
_BURY: Final = f"""
    UPDATE sessions SET state = {DELETED}, model = '', turns = 0, steps = 0, message_count = 0, last_seq = 0, head = 0,
        labels = '{{}}', details = '{{}}', title = NULL, peer = NULL, holder = NULL, delegated_by = NULL, agent = NULL,
        turn = NULL, wakes = NULL, messages_from = 0, events_after = 0, change = {NEXT_CHANGE}
    WHERE key = ?
"""


def commit_all(turns: Sequence[Commit], db: apsw.Connection, holder: Holder) -> list[WarrenError | None]:
    """Write the rows of turns of different sessions; return the refusal of each, or None, in order."""
    keys = _save(turns, db, holder)
    webhooks.look(db, holder)
    outcomes: list[WarrenError | None] = []
    messages: list[Any] = []
    events: list[Any] = []
    steps: list[tuple[int, Commit]] = []
    stored: list[tuple[int, Commit]] = []
    for turn in turns:
        try:
            key = _begin(turn, db, holder) if turn.base is None else keys.get(turn.session_id)
            if key is None:
                raise _refused(turn, db, holder)
        except WarrenError as exc:
            outcomes.append(exc)
            continue
        outcomes.append(None)
        stored.append((key, turn))
        for row in turn.messages:
            messages += key, row.position, microseconds(row.created_at), row.body.decode()
        for item in turn.events:
            events += _event_values(key, item)
        if turn.compaction is not None:
            db.execute(_ADD_COMPACTION, _compaction_values(key, turn.compaction))
        if turn.record.options.peer is not None:
            db.execute(_NAME, (turn.record.options.peer.name, key))
        set_agent(db, key, turn.record)
        if turn.settles or turn.calls or turn.waits:
            steps.append((key, turn))
    execute_rows(db, _ADD_MESSAGES, 4, messages)
    execute_rows(db, _ADD_EVENTS, 6, events)
    store_outcomes(db, ((key, turn.inputs) for key, turn in stored))
    send(db, (each for _, turn in stored for each in turn.sends))
    webhooks.note(db, holder, stored)
    if steps:
        open_turns.set_calls(db, steps)
    return outcomes


def set_agent(db: apsw.Connection, key: int, record: SessionRecord) -> None:
    """Have a session be found by its agent."""
    if record.agent is not None:
        db.execute(_AGENT, (record.agent.name, key))


def _save(turns: Sequence[Commit], db: apsw.Connection, holder: Holder) -> dict[str, int]:
    """Change the rows of sessions that have turns already; return the keys of those that are not to be refused."""
    values: list[Any] = []
    change = db.execute(LAST_CHANGE).get
    for turn in turns:
        if turn.base is not None:
            change += 1
            values += *record_to_row(turn.record), holder.key, turn.lease.epoch, *turn.base, change
    keys = {}
    for session_id, key, changed in execute_rows(db, _SAVE_AFTER, 22, values):
        keys[session_id] = key
        holder.wrote = key, changed
    return keys


def _begin(turn: Commit, db: apsw.Connection, holder: Holder) -> int | None:
    """Make the row of a new session; return its key, or None if it is there under another lease."""
    record, creation = turn.record, turn.creation
    peer = record.options.peer
    if creation is not None and db.execute(_CREATED, (record.tenant, creation.key)).get:
        raise key_used()
    if peer is not None and db.execute(_NAMESAKE, (record.tenant, peer.name, record.session_id)).get:
        raise name_taken(peer.name)
    saved = db.execute(_SAVE, (*record_to_row(record), holder.key, turn.lease.epoch)).get
    if saved is None:
        return None
    holder.wrote = saved
    key: int = saved[0]
    if creation is not None:
        db.execute(_ADD_CREATION, (record.tenant, creation.key, key, codec.encode(creation.params).decode()))
    audit.add(db, (turn.audit,))
    return key


def _refused(operation: Commit | StoreAnswer, db: apsw.Connection, holder: Holder) -> WarrenError:
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
    *columns, key, state, owner, epoch, waits_for = found
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
    kept, turn = Continued(record), columns[-2]
    if turn is not None or waits_for:
        calls = [] if turn is None else open_turns.calls_of(db, key)
        kept = continued(record, turn, calls, waits.open_of(db, key) if waits_for else ())
        waits.drop(db, kept.lost)
        if turn is not None and kept.record.turn is None:
            open_turns.forget(db, key)
    problems = (*(each.problem for each in lost), *kept.problems)
    rest = tuple(waiting(db, session_id)), last_number(db), problems, kept.calls, kept.waits
    if owner == holder.key:
        return Claimed(kept.record, Lease(epoch), *rest)
    db.execute(ANSWERED, (session_id,))
    if owner is not None:
        db.execute(END_ALL, (owner,))
    last_seq, epoch = db.execute(_TAKE, (key, holder.key, before(operation.went_back_at))).get
    return Claimed(kept.record.changed(last_seq=last_seq), Lease(epoch), *rest)


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


def store_answer(operation: StoreAnswer, db: apsw.Connection, holder: Holder) -> None:
    """Store waits with their answer, and have the turn go on if they are of the turn."""
    row = db.execute(_HOLDING, (operation.session_id,)).get
    if row is None or row[1] == DELETED or row[2:] != (holder.key, operation.lease.epoch):
        raise _refused(operation, db, holder)
    if row[1] == ARCHIVED:
        raise retired(operation.session_id)
    waits.put(db, [(row[0], wait) for wait in (operation.wait, *operation.others)])
    if not (operation.sleeps or in_background(operation.wait)):
        db.execute(_AWAKE, (row[0],))
    store_outcomes(db, [(row[0], operation.inputs)])
    audit.add(db, operation.audit)


def archive(operation: Archive, db: apsw.Connection, holder: Holder) -> None:
    """Mark a session's row."""
    key, state = writable(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if state != ARCHIVED:
        if db.execute(_ARCHIVE, (key, holder.key, operation.lease.epoch)).get is None:
            raise taken_over(operation.session_id, None)
        db.execute(_EMPTY, (key,))
        open_turns.settle(db, key)
        waits.settle_all(db, key)
        send(db, operation.sends)
        send_down(db, operation.session_id, retiring("archive"))
        audit.add(db, (operation.audit,))


def label(operation: Label, db: apsw.Connection, holder: Holder) -> Labelled:
    """Change the labels, the title and the allowed tools of a session's row."""
    key, state = writable(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if state == ARCHIVED:
        raise retired(operation.session_id)
    record = row_to_record(db.execute(RECORD_OF, (key,)).get)
    record = relabelled(record, operation.changes, operation.title, operation.ask_again)
    details = details_text(record) if operation.ask_again else None
    if operation.ask_again:
        db.execute(END_LEASE, (key, holder.key))  # its holder must not store what was allowed before
        open_waits = sound_waits(waits.open_of(db, key))
        waits.put(db, [(key, each) for each in forgetting(open_waits, operation.ask_again)])
    values = codec.encode(record.labels).decode(), record.title, details, key
    return Labelled(record, db.execute(_LABEL, values).get)


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
    open_turns.settle(db, key)
    db.execute("DELETE FROM waits WHERE session = ?", (key,))
    schedules.drop_of(db, key)
    triggers.drop_of(db, key)
    webhooks.drop_of(db, key)
    attachments.drop(db, key)
    send(db, operation.sends)
    send_down(db, operation.session_id, retiring("delete"))
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


def has(db: apsw.Connection, holder: Holder, key: int, lease: Lease) -> bool:
    """Return whether a process has a session under a lease, whatever its clock says."""
    return bool(db.execute(_LEASE, (key,)).get == (holder.key, lease.epoch))


def _event_values(key: int, item: EventRow | LogItem) -> tuple[Any, ...]:
    if type(item) is Envelope:  # most are, and need no row in between
        body = item.encoded or codec.encode_event(item)
        return key, item.seq, item.seq, microseconds(item.timestamp), body.decode(), None
    row = row_of(item)
    cuts = None if row.cuts is None else row.cuts.decode()
    return key, row.seq, row.first_seq, microseconds(row.timestamp), row.body.decode(), cuts


def _compaction_values(key: int, entry: CompactionEntry) -> tuple[int | str, ...]:
    counts = (entry.head, entry.messages_before, entry.messages_after)
    return (key, entry.step, microseconds(entry.created_at), *counts, entry.summary, entry.summary_tokens)
