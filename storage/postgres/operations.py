"""The operations on sessions with SQL, besides the ends of turns: one function for each kind of operation.

Each runs inside the transaction of its group. A function raises a WarrenError only before its first change: the rest of
its group is committed all the same. An error of the database may come later; the transaction is then rolled back.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Awaitable, Callable
from typing import Any, Final

from warren.base.errors import StoreError
from warren.calls.forking import relabelled
from warren.conversation import codec
from warren.conversation.inputs import retiring
from warren.conversation.records import SessionRecord
from warren.conversation.waits import forgetting
from warren.storage import operations as ops
from warren.storage.postgres import (
    agents,
    attachments,
    audit,
    forking,
    inbox,
    schedules,
    triggers,
    waits,
    webhooks,
)
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, array, escaped, unescaped
from warren.storage.postgres.inbox import LAST, owner_of
from warren.storage.postgres.lease import END_LEASE, Holder, rival_of
from warren.storage.postgres.reading import record_of
from warren.storage.refusals import leased, not_found, retired, taken_over
from warren.storage.rows import (
    ARCHIVED,
    CALL,
    COLUMNS,
    DELETED,
    DELETES,
    SEQ_STRIDE,
    Continued,
    before,
    continued,
    corrupt,
    details_text,
    in_background,
    number_in,
    sound_waits,
)

_CLAIMED: Final = f"""
    SELECT {COLUMNS}, key, holder, epoch, {waits.SOME_OPEN} FROM warren.sessions
    WHERE session_id = $1 AND state <> {DELETED}
    FOR NO KEY UPDATE
"""
# A holder that died may have shown events without storing them: their numbers are not given out again. Of a store that
# has gone back, neither are those of epochs.
_TAKE: Final = f"""
    WITH answered AS (DELETE FROM warren.requests WHERE session = $1::int8)
    UPDATE warren.sessions SET holder = $2::int,
        epoch = epoch + CASE WHEN updated_at <= $3::int8 THEN {SEQ_STRIDE} ELSE 1 END,
        last_seq = last_seq + CASE WHEN holder IS NULL AND updated_at > $3::int8 THEN 0 ELSE {SEQ_STRIDE} END
    WHERE key = $1::int8 RETURNING last_seq, epoch
"""
_CALLS: Final = f"SELECT {CALL} FROM warren.calls WHERE session = $1::int8 ORDER BY place"
_FORGET: Final = """
    WITH settled AS (DELETE FROM warren.calls WHERE session = $1::int8),
        over AS (UPDATE warren.waits SET state = 'settled'
            WHERE session = $1::int8 AND state <> 'settled' AND reason <> 'background')
    UPDATE warren.sessions SET turn = NULL, wakes = NULL WHERE key = $1::int8
"""
_ANSWERED: Final = """
    DELETE FROM warren.requests WHERE session = (SELECT key FROM warren.sessions WHERE session_id = $1)
"""
# The epoch, as a release may come late: the same process may have taken the session anew.
_PUT_BACK: Final = """
    UPDATE warren.sessions SET holder = NULL WHERE session_id = $1 AND holder = $2::int AND epoch = $3::int8
"""
# All of its inbox goes but the notice that its parent is deleted, which may have come just before: an archived session
# goes as well.
_ARCHIVE: Final = f"""
    WITH archived AS (
            UPDATE warren.sessions SET state = {ARCHIVED}, turn = NULL, wakes = NULL
            WHERE key = $1::int8 AND coalesce(holder, $2::int) = $2::int AND epoch = $3::int8 RETURNING key
        ),
        emptied AS (
            DELETE FROM warren.inbox
            WHERE session = (SELECT key FROM archived) AND NOT (notice AND strpos(body, '{DELETES}') > 0)
        ),
        settled AS (DELETE FROM warren.calls WHERE session = (SELECT key FROM archived)),
        over AS (
            UPDATE warren.waits SET state = 'settled'
            WHERE session = (SELECT key FROM archived) AND state <> 'settled'
        )
    SELECT key FROM archived
"""
_ANSWERS: Final = f"""
    SELECT key, holder, epoch, state FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} FOR NO KEY UPDATE
"""
_AWAKE: Final = "UPDATE warren.sessions SET wakes = NULL WHERE key = $1::int8 AND wakes IS NOT NULL"
_RECORD_OF: Final = f"SELECT {COLUMNS} FROM warren.sessions WHERE key = $1::int8"
_LABEL: Final = """
    UPDATE warren.sessions SET labels = $2, marks = $3::text[], title = $4, details = coalesce($5, details)
    WHERE key = $1::int8 RETURNING nextval('warren.changes')
"""
# A stronger lock than that of other changes: a fork that copies the rows of the session goes first.
_LOCK: Final = "SELECT FROM warren.sessions WHERE session_id = $1 FOR UPDATE"
_BURY: Final = f"""
    WITH messages AS (DELETE FROM warren.messages WHERE session = $1::int8),
        events AS (DELETE FROM warren.events WHERE session = $1::int8),
        inbox AS (DELETE FROM warren.inbox WHERE session = $1::int8),
        compactions AS (DELETE FROM warren.compactions WHERE session = $1::int8),
        calls AS (DELETE FROM warren.calls WHERE session = $1::int8),
        waits AS (DELETE FROM warren.waits WHERE session = $1::int8),
        requests AS (DELETE FROM warren.requests WHERE session = $1::int8),
        {schedules.DROP_OF},
        {triggers.DROP_OF},
        erasures AS (INSERT INTO warren.erasures VALUES ($2) ON CONFLICT DO NOTHING)
    UPDATE warren.sessions SET state = {DELETED}, model = '', turns = 0, steps = 0, message_count = 0, last_seq = 0,
        head = 0, labels = '{{}}', marks = '{{}}', details = '{{}}', title = NULL, peer = NULL, holder = NULL,
        delegated_by = NULL, agent = NULL, turn = NULL, wakes = NULL, messages_from = 0, events_after = 0
    WHERE key = $1::int8
"""
# Texts of which no two are the same, so that the server does not compress them away.
_FILL: Final = """
    INSERT INTO warren.messages (session, position, created_at, body)
    SELECT key, -1, 0, (SELECT string_agg(md5(random()::text), '') FROM generate_series(0, $2::int / 32))
    FROM warren.sessions WHERE session_id = $1
"""
_ERASED: Final = "DELETE FROM warren.erasures WHERE session_id = $1"
_REQUEST: Final = """
    INSERT INTO warren.requests (session, holder) SELECT key, holder FROM warren.sessions WHERE key = $1::int8
    ON CONFLICT (session) DO UPDATE SET holder = excluded.holder
"""


async def claim(operation: ops.Claim, db: Connection, holder: Holder) -> ops.Claimed | ops.LeaseHeld | None:
    """Change the holder of a session's row."""
    session_id = operation.session_id
    rows = await db.fetch(_CLAIMED, escaped(session_id))
    if not rows:
        return None
    *columns, session, owner, epoch, waits_for = rows[0]
    name = await rival_of(db, owner, holder.key)
    if name is not None:
        return ops.LeaseHeld(name)
    record = record_of(tuple(columns))
    try:
        number_in(epoch, "epoch")
    except ValueError as exc:
        raise corrupt(f"session {session_id}", exc, session_id) from exc
    # The row is locked: a number that is given to this session from now on is higher.
    inbox_to = await db.value(LAST)
    waiting, lost = await inbox.readable(db, session, session_id)
    kept, turn = Continued(record), columns[-2]
    if turn is not None or waits_for:
        calls = await db.fetch(_CALLS, session) if turn is not None else []
        states = [(place, unescaped(call_id), *more) for place, call_id, *more in calls]
        kept = continued(record, turn, states, await waits.open_of(db, session) if waits_for else ())
        if kept.lost:
            await waits.drop(db, session, kept.lost)
        if turn is not None and kept.record.turn is None:
            await db.fetch(_FORGET, session)
    rest = waiting, inbox_to, lost + kept.problems, kept.calls, kept.waits
    if owner == holder.key:
        return ops.Claimed(kept.record, ops.Lease(epoch), *rest)
    ((last_seq, epoch),) = await db.fetch(_TAKE, session, holder.key, before(operation.went_back_at))
    return ops.Claimed(kept.record.changed(last_seq=last_seq), ops.Lease(epoch), *rest)


async def release(operation: ops.Release, db: Connection, holder: Holder) -> None:
    """Take the holder out of a session's row."""
    await db.fetch(_PUT_BACK, escaped(operation.session_id), holder.key, operation.lease.epoch)
    await db.fetch(_ANSWERED, escaped(operation.session_id))


async def reserve(operation: ops.Reserve, db: Connection, _holder: Holder) -> None:
    """Write the bytes, and take them back: vacuuming keeps their pages for the next rows."""
    await db.script("SAVEPOINT room")
    await db.fetch(_FILL, escaped(operation.session_id), operation.size)
    await db.script("ROLLBACK TO room; RELEASE room")


async def store_answer(operation: ops.StoreAnswer, db: Connection, holder: Holder) -> None:
    """Store waits with their answer, and have the turn go on if they are of the turn."""
    rows = await db.fetch(_ANSWERS, escaped(operation.session_id))
    if not rows:
        raise not_found(operation.session_id)
    ((session, owner, epoch, state),) = rows
    if (owner, epoch) != (holder.key, operation.lease.epoch):
        name = await rival_of(db, owner, holder.key)
        raise taken_over(operation.session_id, name)
    if state == ARCHIVED:
        raise retired(operation.session_id)
    await waits.put(db, session, (operation.wait, *operation.others))
    if not (operation.sleeps or in_background(operation.wait)):
        await db.fetch(_AWAKE, session)
    await inbox.store_outcome(db, session, operation.inputs)
    await audit.add(db, operation.audit)


async def archive(operation: ops.Archive, db: Connection, holder: Holder) -> None:
    """Mark a session's row."""
    session, state = await _writable(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if state != ARCHIVED:
        if not await db.fetch(_ARCHIVE, session, holder.key, operation.lease.epoch):
            raise taken_over(operation.session_id, None)
        await inbox.send(db, operation.sends)
        await inbox.send_down(db, operation.session_id, retiring("archive"))
        await audit.add(db, (operation.audit,))


async def label(operation: ops.Label, db: Connection, holder: Holder) -> ops.Labelled:
    """Change the labels, the title and the allowed tools of a session's row."""
    session, state = await _writable(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if state == ARCHIVED:
        raise retired(operation.session_id)
    record: SessionRecord = record_of((await db.fetch(_RECORD_OF, session))[0])
    record = relabelled(record, operation.changes, operation.title, operation.ask_again)
    labels, title = codec.encode(record.labels).decode(), None if record.title is None else escaped(record.title)
    details = escaped(details_text(record)) if operation.ask_again else None
    if operation.ask_again:
        await db.fetch(END_LEASE, session, holder.key)  # its holder must not store what was allowed before
        found = sound_waits(await waits.open_of(db, session))
        await waits.put(db, session, forgetting(found, operation.ask_again))
    values = labels, array(marks_of(record.labels)), title, details
    return ops.Labelled(record, await db.value(_LABEL, session, *values))


async def delete(operation: ops.Delete, db: Connection, holder: Holder) -> None:
    """Remove the rows of a session, leave the tombstone."""
    await db.fetch(_LOCK, escaped(operation.session_id))
    session, state = await _writable(db, holder, operation.session_id)
    if state != DELETED:
        await attachments.drop(db, session)
        await webhooks.drop_of(db, session)
        await db.fetch(_BURY, session, escaped(operation.session_id))
        await inbox.send(db, operation.sends)
        await inbox.send_down(db, operation.session_id, retiring("delete"))
        await audit.add(db, (operation.audit,))


async def erased(operation: ops.Erased, db: Connection, _holder: Holder) -> None:
    """Drop the note that copies of a session are due for deletion; any process may."""
    await db.fetch(_ERASED, escaped(operation.session_id))


async def request(operation: ops.RequestHandover, db: Connection, holder: Holder) -> bool:
    """Add the row of a request."""
    session, state, name = await owner_of(db, holder, operation.session_id)
    if state == DELETED:
        raise not_found(operation.session_id)
    if name is not None:
        await db.fetch(_REQUEST, session)
    return name is not None


async def decline(operation: ops.DeclineHandover, db: Connection, _holder: Holder) -> None:
    """Remove the row of a request."""
    await db.fetch(_ANSWERED, escaped(operation.session_id))


async def _writable(db: Connection, holder: Holder, session_id: str) -> tuple[int, int]:
    """Return the key and the state of a session. Raises LeasedError if another living process has it."""
    session, state, name = await owner_of(db, holder, session_id)
    if name is not None:
        raise leased(session_id, name)
    return session, state


Applier = Callable[[Any, Connection, Holder], Awaitable[Any]]
APPLIERS: Final[dict[type[ops.Operation[Any]], Applier]] = {
    ops.Claim: claim,
    ops.Release: release,
    ops.Archive: archive,
    ops.Attach: attachments.attach,
    ops.Sweep: attachments.sweep,
    ops.Reserve: reserve,
    ops.Label: label,
    ops.Delete: delete,
    ops.Erased: erased,
    ops.Enqueue: inbox.enqueue,
    ops.EndInputs: inbox.end_inputs,
    ops.StoreAnswer: store_answer,
    ops.Fork: forking.fork,
    ops.RequestHandover: request,
    ops.DeclineHandover: decline,
    ops.Audit: audit.audit,
    ops.PutSchedule: schedules.put,
    ops.DropSchedule: schedules.drop,
    ops.TakeDue: schedules.take,
    ops.Advance: schedules.advance,
    ops.KeepAgent: agents.keep,
    ops.PutTrigger: triggers.put,
    ops.DropTrigger: triggers.drop,
    ops.KeepDelivery: triggers.keep,
    ops.PutWebhook: webhooks.put,
    ops.DropWebhook: webhooks.drop,
    ops.TakeDeliveries: webhooks.take,
    ops.EndAttempt: webhooks.end_attempt,
    ops.Resend: webhooks.resend,
    ops.TidyDeliveries: webhooks.tidy,
}


async def apply(operation: ops.Operation[Any], db: Connection, holder: Holder) -> Any:
    """Apply an operation inside an open transaction and return its result. Raises its refusal, and as `fetch`."""
    applier = APPLIERS.get(type(operation))
    if applier is None:  # a repair of a SQLite file
        problem = f"{type(operation).__name__} is not an operation of a PostgreSQL store"
        raise StoreError(problem, session_id=operation.session_id, cause="database_error", retryable=False)
    return await applier(operation, db, holder)
