"""The inboxes of the sessions of a store. Each row is one input; the commit of the turn that took it removes it."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterable, Sequence
from typing import Any, Final

from warren.base.errors import StoreError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.inputs import Input, Numbered, looking
from warren.storage.operations import (
    MAX_OUTCOMES,
    Archive,
    Attach,
    Commit,
    Delegate,
    Delete,
    EndInputs,
    Enqueue,
    Enqueued,
    InputOutcome,
    Operation,
    Sent,
)
from warren.storage.postgres.attachments import attach
from warren.storage.postgres.driver import Connection, Row, array, escaped, unescaped
from warren.storage.postgres.guard import Guarded
from warren.storage.postgres.lease import Holder, rival_of
from warren.storage.refusals import inbox_full, leased, not_found, retired, taken_over
from warren.storage.results import Rows
from warren.storage.rows import ARCHIVED, DELETED, OPEN, decoded, encode_notice, microseconds, outcome_of

LAST: Final = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM warren.inputs"
# The lock of the session's row makes the order of numbers the order of commits, and keeps the count exact.
_OWNER: Final = "SELECT key, state, holder FROM warren.sessions WHERE session_id = $1 FOR NO KEY UPDATE"
_LEASE: Final = "SELECT holder, epoch FROM warren.sessions WHERE key = $1::int8"
_KNOWN: Final = "SELECT number, body, outcome FROM warren.inbox WHERE session = $1::int8 AND key = $2"
_COUNT: Final = "SELECT count(*) FROM warren.inbox WHERE session = $1::int8 AND outcome IS NULL AND NOT notice"
_ADD: Final = """
    INSERT INTO warren.inbox (session, number, id, key, starts, notice, body, not_before)
    VALUES ($1::int8, nextval('warren.inputs'), $2, $3, $4::bool, $5::bool, $6, $7::int8) RETURNING number
"""
# The rows of the sessions are locked, as above: see `lock`.
_SEND: Final = f"""
    INSERT INTO warren.inbox (session, number, id, starts, notice, body)
    SELECT key, nextval('warren.inputs'), id, false, true, body FROM (
        SELECT key, id, body FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY
            AS given (session_id, id, body, place) JOIN warren.sessions USING (session_id)
        WHERE state = {OPEN} ORDER BY place) AS sent
"""
# In the order in which the statement of turns locks them: that of their ids as texts of bytes.
_LOCK: Final = """
    SELECT FROM warren.sessions WHERE session_id = ANY ($1::text[]) ORDER BY session_id COLLATE "C" FOR NO KEY UPDATE
"""
_LOCK_FAMILIES: Final = """
    SELECT FROM warren.sessions WHERE session_id = ANY ($1::text[]) OR delegated_by = ANY ($2::text[])
    ORDER BY session_id COLLATE "C" FOR NO KEY UPDATE
"""
_SEND_DOWN: Final = """
    INSERT INTO warren.inbox (session, number, id, starts, notice, body)
    SELECT key, nextval('warren.inputs'), $2, false, true, $3 FROM (
        SELECT key FROM warren.sessions WHERE delegated_by = $1 AND state <= $4::int2 ORDER BY key) AS children
"""
_DROP: Final = "DELETE FROM warren.inbox WHERE session = $1::int8 AND number = ANY ($2::int8[]) AND key IS NULL"
_END: Final = "UPDATE warren.inbox SET outcome = $3 WHERE session = $1::int8 AND number = ANY ($2::int8[])"
_FORGET: Final = f"""
    DELETE FROM warren.inbox WHERE session = $1::int8 AND outcome IS NOT NULL AND key IS DISTINCT FROM '{FIRST_PROMPT}'
        AND number <= (SELECT number FROM warren.inbox WHERE session = $1::int8 AND outcome IS NOT NULL
            ORDER BY number DESC LIMIT 1 OFFSET {MAX_OUTCOMES})
"""
_WAITING: Final = """
    SELECT number, body FROM warren.inbox WHERE outcome IS NULL AND session =
        (SELECT key FROM warren.sessions WHERE session_id = $1 AND ($2::text IS NULL OR tenant = $2)) ORDER BY number
"""
_NOTICES: Final = f"""
    SELECT s.session_id, i.number, i.body FROM warren.sessions s JOIN warren.inbox i ON i.session = s.key
    WHERE s.session_id = ANY ($1::text[]) AND i.outcome IS NULL AND (i.notice OR i.key = '{FIRST_PROMPT}')
    ORDER BY i.number
"""
# For a notice the session itself looks for what it has missed, for the prompt of a child its parent does.
_LOOK: Final = f"""
    WITH locked AS MATERIALIZED (
        SELECT looks.key FROM warren.inbox i JOIN warren.sessions s ON s.key = i.session
        JOIN warren.sessions looks ON looks.session_id = CASE WHEN i.notice THEN s.session_id ELSE s.delegated_by END
        WHERE i.session = $1::int8 AND i.number = ANY ($2::int8[]) AND (i.notice OR i.key = '{FIRST_PROMPT}')
            AND looks.state = {OPEN}
        ORDER BY i.number FOR NO KEY UPDATE OF looks)
    INSERT INTO warren.inbox (session, number, id, starts, notice, body)
    SELECT key, nextval('warren.inputs'), $3, false, true, $4 FROM locked
"""
_SET_ASIDE: Final = "UPDATE warren.inbox SET outcome = '' WHERE session = $1::int8 AND number = ANY ($2::int8[])"


async def owner_of(db: Connection, holder: Holder, session_id: str) -> tuple[int, int, str | None]:
    """Lock a session's row; return its key and state, and the name of another living process that has it, or None.

    Raises SessionNotFoundError.
    """
    rows = await db.fetch(_OWNER, escaped(session_id))
    if not rows:
        raise not_found(session_id)
    ((key, state, owner),) = rows
    return key, state, await rival_of(db, owner, holder.key)


async def enqueue(operation: Enqueue, db: Connection, holder: Holder) -> Enqueued:
    """Add the row of an input."""
    session_id, input_ = operation.session_id, operation.input
    session, state, holder_name = await owner_of(db, holder, session_id)
    if state != OPEN:
        raise not_found(session_id) if state == DELETED else retired(session_id)
    if holder_name is not None and not operation.anywhere:
        raise leased(session_id, holder_name)
    if operation.lease is not None and await db.fetch(_LEASE, session) != [(holder.key, operation.lease.epoch)]:
        raise taken_over(session_id, holder_name)
    elsewhere = holder_name is not None
    key = None if input_.key is None else escaped(input_.key)
    known = [] if key is None else await db.fetch(_KNOWN, session, key)
    if known:
        ((number, body, outcome),) = known
        ended = None if outcome is None else outcome_of(outcome, session_id)
        return Enqueued(Numbered(number, decoded(body, session_id)), False, ended, elsewhere)
    if await db.value(_COUNT, session) >= operation.limit:
        raise inbox_full(session_id, operation.limit)
    if operation.blobs:
        await attach(Attach(session_id, operation.blobs), db, holder)
    body = codec.encode(input_).decode()
    due = None if input_.not_before is None else microseconds(input_.not_before)
    number = await db.value(_ADD, session, escaped(input_.input_id), key, input_.starts, input_.is_notice, body, due)
    return Enqueued(Numbered(number, input_), elsewhere=elsewhere)


async def store_outcome(db: Connection, session: int, inputs: InputOutcome) -> None:
    """Note the outcome of inputs. An input with a key stays for a while; the others are removed."""
    if inputs.numbers:
        numbers = array(inputs.numbers)
        await db.fetch(_DROP, session, numbers)
        await db.fetch(_END, session, numbers, inputs.outcome.decode())
        await db.fetch(_FORGET, session)


async def lock(db: Connection, operations: Sequence[Operation[Any]]) -> None:
    """Lock the rows of all sessions that a group changes, in the order in which a group of turns alone locks them.

    Else a parent that cancels a child that just ends would wait for the child's row, and the child for the parent's.
    """
    found, ended = set[str](), list[str]()
    for each in operations:
        found.add(each.session_id)
        match each:
            case Commit(sends=sends) | EndInputs(sends=sends):
                found.update(sent.session_id for sent in sends)
            case Archive(sends=sends) | Delete(sends=sends):
                found.update(sent.session_id for sent in sends)
                ended.append(escaped(each.session_id))
            case Delegate():
                found.add(each.place.session_id)
    if ended:
        await db.fetch(_LOCK_FAMILIES, array([escaped(each) for each in found]), array(ended))
    elif len(found) > 1:
        await db.fetch(_LOCK, array([escaped(each) for each in found]))


async def end_inputs(operation: EndInputs, db: Connection, holder: Holder) -> None:
    """Change the rows of inputs."""
    session, state, holder_name = await owner_of(db, holder, operation.session_id)
    if holder_name is not None:
        raise leased(operation.session_id, holder_name)
    if state == OPEN:
        if operation.lease is not None and await db.fetch(_LEASE, session) != [(holder.key, operation.lease.epoch)]:
            raise taken_over(operation.session_id, None)
        await store_outcome(db, session, operation.inputs)
        await send(db, operation.sends)


async def send(db: Connection, sends: Iterable[Sent]) -> None:
    """Put notices into the inboxes of open sessions."""
    rows = [(escaped(each.session_id), escaped(each.input.input_id), encode_notice(each.input)) for each in sends]
    if rows:
        await db.fetch(_SEND, *map(array, zip(*rows, strict=True)))


async def send_down(db: Connection, session_id: str, notice: Input) -> None:
    """Put a notice into the inboxes of the children of a session; one that deletes them also of archived ones."""
    state, body = ARCHIVED if notice.kind == "delete" else OPEN, codec.encode(notice).decode()
    await db.fetch(_SEND_DOWN, escaped(session_id), escaped(notice.input_id), body, state)


async def waiting(db: Connection | Guarded, session_id: str, tenant: str | None = None) -> Rows[Numbered]:
    """Return the inputs that wait for a session, in order."""
    rows = await db.fetch(_WAITING, escaped(session_id), tenant)
    return Rows(rows, lambda row: Numbered(row[0], decoded(row[1], session_id)), lambda row: str(row[0]))


async def notices(db: Connection | Guarded, session_ids: Iterable[str]) -> Rows[tuple[str, Numbered]]:
    """Return the notices and the first prompts that wait for some sessions, in order."""
    rows = await db.fetch(_NOTICES, array([escaped(each) for each in session_ids]))
    return Rows(rows, _notice, lambda row: str(row[1]))


def _notice(row: Row) -> tuple[str, Numbered]:
    session_id, number, body = row
    of = unescaped(session_id)
    return of, Numbered(number, decoded(body, of))


async def readable(db: Connection, session: int, session_id: str) -> tuple[tuple[Numbered, ...], tuple[str, ...]]:
    """Return the inputs that wait for a session, and the problems of those that cannot be read, which wait no more."""
    rows = await db.fetch(_WAITING, escaped(session_id), None)
    found, lost, problems = [], [], []
    for number, body in rows:
        try:
            found.append(Numbered(number, decoded(body, session_id)))
        except StoreError as exc:
            lost.append(number)
            problems.append(exc.message)
    if lost:
        notice = looking()
        body = codec.encode(notice).decode()
        await db.fetch(_LOOK, session, array(lost), escaped(notice.input_id), body)
        await db.fetch(_SET_ASIDE, session, array(lost))
    return tuple(found), tuple(problems)
