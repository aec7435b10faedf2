"""What the store can be asked to write: each operation is one value, applied whole or not at all."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from warren import codec
from warren.creation import Creation
from warren.errors import InvalidParamsError, LeasedError, SessionNotFoundError, StoreError, WarrenError
from warren.forking import relabelled
from warren.inputs import Numbered
from warren.records import CompactionEntry, EventRow, MessageRow, SessionRecord
from warren.storage.inbox import NOTHING, Settled, damaged, last_number, set_aside, settle, waiting
from warren.storage.lease import FIRST, Holder, Lease
from warren.storage.rows import (
    ARCHIVED,
    COLUMNS,
    DELETED,
    MAX_NUMBER,
    OPEN,
    SEQ_STRIDE,
    corrupt,
    microseconds,
    number_in,
    raw,
    record_to_row,
    row_to_record,
)
from warren.values import value

if TYPE_CHECKING:
    import apsw

R_co = TypeVar("R_co", covariant=True)

# A damaged number at the end of the range is left out: nothing could be numbered above it.
NEXT_CHANGE: Final = f"(SELECT coalesce(max(change), 0) + 1 FROM sessions WHERE change < {MAX_NUMBER})"
# A tombstone and what another holder has are left alone, and so nothing is returned; what is archived stays so. The
# labels are not the turn's, nor is a title that is there: they may have been changed while it ran.
_SAVE: Final = f"""
    INSERT INTO sessions ({COLUMNS}, holder, epoch, change) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,{NEXT_CHANGE})
    ON CONFLICT (session_id) DO UPDATE SET
        updated_at = excluded.updated_at, state = max(state, excluded.state), model = excluded.model,
        turns = excluded.turns, steps = excluded.steps, message_count = excluded.message_count,
        last_seq = excluded.last_seq, head = excluded.head, title = coalesce(title, excluded.title),
        details = excluded.details, change = excluded.change
    WHERE state <> {DELETED} AND holder = excluded.holder AND epoch = excluded.epoch
    RETURNING key
"""
_NAME: Final = "UPDATE sessions SET peer = ? WHERE key = ? AND peer IS NULL"
# A session that is there has its name, or has had it and was archived.
_NAMESAKE: Final = f"""
    SELECT 1 FROM sessions WHERE peer = ? AND state = {OPEN}
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = ?)
"""
_ADD_CREATION: Final = "INSERT INTO creations (key, session, params) VALUES (?,?,?)"
_ADD_MESSAGE: Final = "INSERT INTO messages (session, position, created_at, body) VALUES (?,?,?,?)"
_ADD_EVENT: Final = "INSERT INTO events (session, seq, first_seq, timestamp, body, cuts) VALUES (?,?,?,?,?,?)"
_ADD_COMPACTION: Final = """
    INSERT INTO compactions (session, step, created_at, head, messages_before, messages_after, summary, summary_tokens)
    VALUES (?,?,?,?,?,?,?,?)
"""
_HOLDING: Final = f"SELECT key, {raw('state, holder')} FROM sessions WHERE session_id = ?"
_RECORD_OF: Final = f"SELECT {raw(COLUMNS)} FROM sessions WHERE key = ?"
_CLAIMED: Final = f"SELECT {raw(COLUMNS)}, key, {raw('state, holder, epoch')} FROM sessions WHERE session_id = ?"
# What a holder that died may have shown and not stored keeps its numbers.
_TAKE: Final = f"""
    UPDATE sessions SET holder = ?2, epoch = epoch + 1, last_seq = last_seq + iif(holder IS NULL, 0, {SEQ_STRIDE})
    WHERE key = ?1 RETURNING last_seq
"""
ANSWERED: Final = "DELETE FROM requests WHERE session = (SELECT key FROM sessions WHERE session_id = ?)"
_PUT_BACK: Final = "UPDATE sessions SET holder = NULL WHERE session_id = ? AND holder = ? AND epoch = ?"
_END_LEASE: Final = f"""
    UPDATE sessions SET holder = NULL, epoch = epoch + 1, last_seq = last_seq + {SEQ_STRIDE}
    WHERE key = ? AND holder <> ?
"""
_ARCHIVE: Final = f"UPDATE sessions SET state = 1, change = {NEXT_CHANGE} WHERE key = ?"
_LABEL: Final = f"UPDATE sessions SET labels = ?, title = ?, change = {NEXT_CHANGE} WHERE key = ? RETURNING change"
_BURY: Final = f"""
    UPDATE sessions SET state = {DELETED}, model = '', turns = 0, steps = 0, message_count = 0, last_seq = 0, head = 0,
        labels = '{{}}', details = '{{}}', title = NULL, peer = NULL, holder = NULL,
        messages_from = 0, events_after = 0, change = {NEXT_CHANGE}
    WHERE key = ?
"""


class Operation(ABC, Generic[R_co]):
    """One change of the store; `R_co` is what it returns."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session it changes."""

    @abstractmethod
    def apply(self, db: "apsw.Connection", holder: Holder) -> R_co:
        """Make the change inside the transaction that the writer has opened on `db`, for a holder that is registered.

        Raises a WarrenError only before the first change: the rest of its group is committed all the same. Whatever
        `db` raises may come later; the transaction is then rolled back.
        """


@value
class Commit(Operation[None]):
    """Store the end of a turn: the session's row and the rows that the turn added.

    The first commit of a session creates it, and gives its lease to the holder that writes. Fails with
    SessionNotFoundError on a deleted session, with StoreError(cause="lease_lost") where another process has taken the
    session over, and with StoreError(cause="conflict") where a message of that position or an event of that number is
    there already, with StoreError(cause="key_used") where the creation's key has created a session. InvalidParamsError
    tells that another session has the record's name among peers.

    Attributes:
        record: the session as it is from now on; `created_at` and `labels` count on the first commit only, and a
            session that is archived in the store stays archived.
        messages: new messages.
        events: new rows of the event log.
        compaction: what moved the record's head, if something did.
        lease: under which the session is written.
        settled: inputs of the session's inbox that the turn took.
        creation: the key under which the session is created; on its first commit only.
    """

    record: SessionRecord
    messages: tuple[MessageRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    compaction: CompactionEntry | None = None
    lease: Lease = FIRST
    settled: Settled = NOTHING
    creation: Creation | None = None

    @property
    def session_id(self) -> str:
        """The session it changes."""
        return self.record.session_id

    def apply(self, db: "apsw.Connection", holder: Holder) -> None:
        """Write the rows."""
        peer, creation = self.record.peer, self.creation
        if creation is not None and db.execute("SELECT 1 FROM creations WHERE key = ?", (creation.key,)).get:
            raise key_used()
        if peer is not None and db.execute(_NAMESAKE, (peer.name, self.session_id)).get:
            raise name_taken(peer.name)
        key = db.execute(_SAVE, (*record_to_row(self.record), holder.key, self.lease.epoch)).get
        if key is None:
            raise self._refused(db, holder)
        if self.messages:
            db.executemany(_ADD_MESSAGE, _message_values(key, self.messages))
        if self.events:
            db.executemany(_ADD_EVENT, _event_values(key, self.events))
        if self.compaction is not None:
            db.execute(_ADD_COMPACTION, _compaction_values(key, self.compaction))
        if peer is not None:
            db.execute(_NAME, (peer.name, key))
        if creation is not None:
            db.execute(_ADD_CREATION, (creation.key, key, codec.encode(creation.params).decode()))
        settle(db, key, self.settled)

    def _refused(self, db: "apsw.Connection", holder: Holder) -> WarrenError:
        row = db.execute(_HOLDING, (self.session_id,)).get
        if row is None or row[1] == DELETED:
            return not_found(self.session_id)
        return taken_over(self.session_id, holder.rival(db, row[2]) if row[2] is not None else None)


@attrs.frozen
class Claimed:
    """What a session's actor begins to write with.

    Attributes:
        record: the session.
        lease: under which it is written.
        inbox: what waits for it.
        inbox_to: inputs up to this number were given to the inbox before; those that do not wait are settled.
        lost: what is wrong with inputs that were damaged, and wait no longer.
    """

    record: SessionRecord
    lease: Lease
    inbox: tuple[Numbered, ...] = ()
    inbox_to: int = 0
    lost: tuple[str, ...] = ()


@attrs.frozen
class Held:
    """That another process, of that name, has the lease."""

    holder: str


@attrs.frozen
class Claim(Operation[Claimed | Held | None]):
    """Take a session's lease; None for a session that is not here.

    It is free where its holder put it back, and where that one is dead; then new events are numbered far above those
    that it may have shown. Taking a lease that one has changes nothing.
    """

    session_id: str

    def apply(self, db: "apsw.Connection", holder: Holder) -> Claimed | Held | None:
        """Change the row's holder."""
        found = db.execute(_CLAIMED, (self.session_id,)).get
        if found is None:
            return None
        *columns, key, state, owner, epoch = found
        if state == DELETED:
            return None
        rival = holder.rival(db, owner) if owner not in (None, holder.key) else None
        if rival is not None:
            return Held(rival)
        record = row_to_record(tuple(columns))
        try:
            number_in(epoch, "epoch")
        except ValueError as exc:
            raise corrupt(f"session {self.session_id}", exc, self.session_id) from exc
        lost = damaged(db, self.session_id)
        set_aside(db, lost)
        inbox = tuple(waiting(db, self.session_id)), last_number(db), tuple(each.problem for each in lost)
        if owner == holder.key:
            return Claimed(record, Lease(epoch), *inbox)
        db.execute(ANSWERED, (self.session_id,))
        last_seq: int = db.execute(_TAKE, (key, holder.key)).get
        return Claimed(record.changed(last_seq=last_seq), Lease(epoch + 1), *inbox)


@attrs.frozen
class Release(Operation[None]):
    """Put a session's lease back: all that was shown of it is stored. Without effect on a lease that was lost."""

    session_id: str
    lease: Lease

    def apply(self, db: "apsw.Connection", holder: Holder) -> None:
        """Take the holder out of the row."""
        db.execute(_PUT_BACK, (self.session_id, holder.key, self.lease.epoch))
        db.execute(ANSWERED, (self.session_id,))


@attrs.frozen
class Archive(Operation[None]):
    """Retire a session. Idempotent; fails with SessionNotFoundError where there is none.

    Fails with StoreError(cause="leased") where another process has the session.
    """

    session_id: str

    def apply(self, db: "apsw.Connection", holder: Holder) -> None:
        """Mark the row."""
        key, state = own(db, holder, self.session_id)
        if state == DELETED:
            raise not_found(self.session_id)
        if state != ARCHIVED:
            db.execute(_END_LEASE, (key, holder.key))  # of a holder that is dead, or wakes up too late
            db.execute(_ARCHIVE, (key,))
            db.execute("DELETE FROM inbox WHERE session = ?", (key,))


@attrs.frozen
class Labelled:
    """A session with its new labels and title, and the number of the change, by which newer ones are known."""

    record: SessionRecord
    change: int


@attrs.frozen
class Label(Operation[Labelled]):
    """Change a session's labels, where None takes one away, and its title. A turn that runs meanwhile goes on.

    Fails with SessionNotFoundError where there is none, or where it is archived, with StoreError(cause="leased") where
    another process has the session: it would go on showing the old ones.
    """

    session_id: str
    changes: Mapping[str, str | None]
    title: str | None = None

    def apply(self, db: "apsw.Connection", holder: Holder) -> Labelled:
        """Change the row."""
        key, state = own(db, holder, self.session_id)
        if state == DELETED:
            raise not_found(self.session_id)
        if state == ARCHIVED:
            raise retired(self.session_id)
        record = row_to_record(db.execute(_RECORD_OF, (key,)).get)
        record = relabelled(record, self.changes, self.title)
        return Labelled(record, db.execute(_LABEL, (codec.encode(record.labels).decode(), record.title, key)).get)


@attrs.frozen
class Delete(Operation[None]):
    """Remove a session and all that is stored of it, except its id: no later write brings it back.

    What is kept of it elsewhere is due to be erased until `Erased` says that it was. Deleting it again does nothing.
    Fails with SessionNotFoundError for an id that was never here, with StoreError(cause="leased") where another process
    has the session.
    """

    session_id: str

    def apply(self, db: "apsw.Connection", holder: Holder) -> None:
        """Remove the rows, leave the tombstone."""
        key, state = own(db, holder, self.session_id)
        if state == DELETED:
            return
        db.execute(_BURY, (key,))
        db.execute("DELETE FROM messages WHERE session = ?", (key,))
        db.execute("DELETE FROM events WHERE session = ?", (key,))
        db.execute("DELETE FROM inbox WHERE session = ?", (key,))
        db.execute("DELETE FROM compactions WHERE session = ?", (key,))
        db.execute("INSERT OR IGNORE INTO erasures VALUES (?)", (self.session_id,))


@attrs.frozen
class Erased(Operation[None]):
    """Note that nothing is left of a deleted session anywhere."""

    session_id: str

    def apply(self, db: "apsw.Connection", holder: Holder) -> None:  # noqa: ARG002 - anybody may
        """Forget that something was due."""
        db.execute("DELETE FROM erasures WHERE session_id = ?", (self.session_id,))


def own(db: "apsw.Connection", holder: Holder, session_id: str) -> tuple[int, int]:
    """Return the key and the state of a session that no other process has."""
    key, state, rival = held(db, holder, session_id)
    if rival is not None:
        raise leased(session_id, rival)
    return key, state


def held(db: "apsw.Connection", holder: Holder, session_id: str) -> tuple[int, int, str | None]:
    """Return the key and the state of a session, and the name of another living process that has it."""
    found = db.execute(_HOLDING, (session_id,)).get
    if found is None:
        raise not_found(session_id)
    key, state, owner = found
    return key, state, holder.rival(db, owner) if owner not in (None, holder.key) else None


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


def not_found(session_id: str) -> SessionNotFoundError:
    """Return the error for an id that is not here."""
    return SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)


def name_taken(name: str) -> InvalidParamsError:
    """Return the error for a name among peers that another session has."""
    return InvalidParamsError(f"$.peer.name: there is a session {name!r} already", path="$.peer.name")


def key_used() -> StoreError:
    """Return the error for an idempotency key that has created a session: whoever asked for another looks for it."""
    return StoreError("a session was created under this idempotency key", cause="key_used")


def retired(session_id: str) -> SessionNotFoundError:
    """Return the error for a session that can be read, and not changed."""
    problem = "the session is archived: it can be read, not changed"
    return SessionNotFoundError(problem, session_id=session_id, cause="archived")


def leased(session_id: str, holder: str) -> LeasedError:
    """Return the error for a session that another process has."""
    problem = f"{holder} has the session: go on there, or try again when it has let go of it"
    return LeasedError(problem, session_id=session_id, cause="leased", details={"holder": holder})


def taken_over(session_id: str, holder: str | None) -> StoreError:
    """Return the error for a write by a process that no longer has the session."""
    problem = f"{holder or 'another process'} has taken the session over: nothing of this was stored"
    return StoreError(problem, session_id=session_id, cause="lease_lost", details={"holder": holder} if holder else {})
