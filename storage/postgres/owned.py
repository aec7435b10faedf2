"""What a tenant has made, each thing once under its key: schedules, triggers and webhooks, with SQL."""

from collections.abc import Callable
from typing import Final, Generic

from warren.base.errors import WarrenError
from warren.base.values import frozen
from warren.storage.operations import Put, Thing
from warren.storage.postgres import audit
from warren.storage.postgres.driver import Connection, Row, Value, escaped, unescaped
from warren.storage.refusals import not_found, retired
from warren.storage.rows import DELETED, OPEN

# A session that is deleted or archived meanwhile waits for this lock, and takes the thing along.
_SESSION: Final = "SELECT key, state FROM warren.sessions WHERE session_id = $1 AND tenant = $2 FOR KEY SHARE"


@frozen
class Table(Generic[Thing]):
    """The table of one kind of things.

    Attributes:
        created: SQL that finds the one of a tenant under a key.
        count: SQL that counts those of a tenant.
        add: SQL that adds one, with the key of its session at the end, and returns its key, or nothing if another
            process has just made one under its key.
        change: SQL that replaces one by its id and its tenant, and returns its key.
        to_row: returns the values of one as they are stored; the id, the tenant and the key of the creation are the
            first.
        of_row: returns the one of a row as it is stored. Raises ValueError.
        missing: the refusal if there is none of an id.
        too_many: the refusal if a tenant has so many.
    """

    created: str
    count: str
    add: str
    change: str
    to_row: Callable[[Thing], tuple[Value, ...]]
    of_row: Callable[[Row], Thing]
    missing: Callable[[str], WarrenError]
    too_many: Callable[[int], WarrenError]


async def put(operation: Put[Thing], table: Table[Thing], db: Connection) -> Thing:
    """Write the row of a thing, unless one was made under its key: then return that one."""
    thing = operation.thing
    if not operation.replaces and thing.key is not None and (known := await _known(db, table, thing)) is not None:
        return known
    session = None if thing.session_id is None else await _open_session(db, thing.tenant, thing.session_id)
    values = table.to_row(thing)
    if operation.replaces:
        name, tenant, _, *rest = values
        if not await db.fetch(table.change, name, tenant, *rest, session):
            raise table.missing(unescaped(str(name)))
    else:
        if await db.value(table.count, thing.tenant) >= operation.limit:
            raise table.too_many(operation.limit)
        if not await db.fetch(table.add, *values, session):  # another process has just made one under the key
            return await _known(db, table, thing) or thing
    await audit.add(db, (operation.audit,))
    return thing


async def _known(db: Connection, table: Table[Thing], thing: Thing) -> Thing | None:
    rows = await db.fetch(table.created, thing.tenant, escaped(thing.key or ""))
    return table.of_row(rows[0]) if rows else None


async def _open_session(db: Connection, tenant: str, session_id: str) -> int:
    """Return the key of a session of a tenant. Raises SessionNotFoundError if it is not there, or archived."""
    rows = await db.fetch(_SESSION, escaped(session_id), tenant)
    if not rows or rows[0][1] == DELETED:
        raise not_found(session_id)
    ((key, state),) = rows
    if state != OPEN:
        raise retired(session_id)
    return int(key)
