"""Sessions that work for other sessions, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.views import ChildCount
from warren.storage.lending import lend
from warren.storage.operations import FIRST, Delegate
from warren.storage.postgres import audit, inbox, waits
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, array, escaped
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import OF, Reading, record_of
from warren.storage.queries import Children
from warren.storage.refusals import not_found, retired, too_many_children, waits_no_more
from warren.storage.rows import COLUMNS, DELETED, OPEN, microseconds, record_to_row, sound_waits

# The lock of the parent's row keeps the count of its children exact, and its turn from ending meanwhile.
_PARENT: Final = "SELECT key, state FROM warren.sessions WHERE session_id = $1 FOR NO KEY UPDATE"
_RECORD: Final = f"SELECT {COLUMNS} FROM warren.sessions WHERE key = $1::int8"
_THERE: Final = "SELECT FROM warren.sessions WHERE session_id = $1"
_WAITS: Final = """
    SELECT FROM warren.waits WHERE session = $1::int8 AND wait_id = $2 AND reason = 'child' AND state = 'waiting'
"""
# The prompt of a child has an outcome once its turn has ended; while it runs, that may be an empty one.
_WORKS: Final = f"""
    EXISTS (SELECT FROM warren.inbox i
        WHERE i.session = s.key AND i.key = '{FIRST_PROMPT}' AND coalesce(i.outcome, '') = '')
"""
_AT_WORK: Final = f"SELECT count(*) FROM warren.sessions s WHERE delegated_by = $1 AND state = {OPEN} AND {_WORKS}"
_COUNTS: Final = f"""
    SELECT {_WORKS} AS works, count(*) FROM warren.sessions s
    WHERE delegated_by = $1 AND state = {OPEN} AND {OF} GROUP BY works
"""
# Few have so many at all: else each of a thousand children would have all those before it counted.
_MANY: Final = "SELECT FROM warren.sessions WHERE delegated_by = $1 LIMIT 1 OFFSET $2::int8"
_COUNT: Final = len(COLUMNS.split(","))
_PLACES: Final = ", ".join(f"${number}" for number in range(1, _COUNT + 1))
_ADD: Final = f"""
    INSERT INTO warren.sessions ({COLUMNS}, marks, delegated_by, holder, epoch)
    VALUES ({_PLACES}, ${_COUNT + 1}::text[], ${_COUNT + 2}, ${_COUNT + 3}::int, ${_COUNT + 4}::int8) RETURNING key
"""
_ADD_MESSAGE: Final = """
    INSERT INTO warren.messages (session, position, created_at, body) VALUES ($1::int8, $2::int8, $3::int8, $4)
"""
_ADD_PROMPT: Final = """
    INSERT INTO warren.inbox (session, number, id, key, starts, body)
    VALUES ($1::int8, nextval('warren.inputs'), $2, $3, true, $4) RETURNING number
"""


async def delegate(operation: Delegate, db: Connection, holder: Holder) -> int | None:
    """Add the rows of a child."""
    record, prompt = operation.record, operation.prompt
    place = record.delegation
    if place is None:
        raise ValueError("a child has a parent")
    parent = escaped(place.session_id)
    rows = await db.fetch(_PARENT, parent)
    if await db.fetch(_THERE, escaped(record.session_id)):
        return None
    ((key, state),) = rows or [(None, DELETED)]
    if state != OPEN:
        raise not_found(place.session_id) if state == DELETED else retired(place.session_id)
    if operation.waits and not await db.fetch(_WAITS, key, escaped(place.call_id or "")):
        raise waits_no_more(place.session_id)
    many = operation.limit < 1 or await db.fetch(_MANY, parent, operation.limit - 1)
    if many and await db.value(_AT_WORK, parent) >= operation.limit:
        raise too_many_children(place.session_id, operation.limit)
    if operation.lends:
        (columns,) = await db.fetch(_RECORD, key)
        inputs, open_ = await inbox.waiting(db, place.session_id), await waits.open_of(db, key)
        record, notice = lend(operation, place, record_of(columns), inputs, sound_waits(open_))
        await inbox.send(db, (notice,))
    values = [escaped(each) if isinstance(each, str) else each for each in record_to_row(record)]
    child = await db.value(_ADD, *values, array(marks_of(record.labels)), parent, holder.key, FIRST.epoch)
    for row in operation.messages:
        await db.fetch(_ADD_MESSAGE, child, row.position, microseconds(row.created_at), row.body.decode())
    body = codec.encode(prompt).decode()
    number: int = await db.value(_ADD_PROMPT, child, escaped(prompt.input_id), prompt.key, body)
    await audit.add(db, (operation.audit,))
    return number


async def count(at: Reading, query: Children) -> ChildCount:
    """Return the number of children."""
    counts: dict[bool, int] = dict(await at.db.fetch(_COUNTS, escaped(query.session_id), query.tenant))
    return ChildCount(sum(counts.values()), counts.get(True, 0))
