"""What a tenant has made, each thing once under its key: schedules, triggers and webhooks, with SQL."""

from collections.abc import Callable
from typing import Any, Final, Generic

import apsw

from warren.base.errors import WarrenError
from warren.base.values import frozen
from warren.storage.operations import Put, Thing
from warren.storage.refusals import not_found, retired
from warren.storage.rows import DELETED, OPEN
from warren.storage.sqlite import audit

_SESSION: Final = "SELECT key, state FROM sessions WHERE session_id = ? AND tenant = ?"


@frozen
class Table(Generic[Thing]):
    """The table of one kind of things.

    Attributes:
        created: SQL that finds the one of a tenant under a key.
        count: SQL that counts those of a tenant.
        add: SQL that adds one, with the key of its session at the end.
        change: SQL that replaces one by its id and its tenant.
        to_row: returns the values of one; the id, the tenant and the key of the creation are the first.
        of_row: returns the one of a row. Raises ValueError.
        missing: the refusal if there is none of an id.
        too_many: the refusal if a tenant has so many.
    """

    created: str
    count: str
    add: str
    change: str
    to_row: Callable[[Thing], tuple[Any, ...]]
    of_row: Callable[[tuple[Any, ...]], Thing]
    missing: Callable[[str], WarrenError]
    too_many: Callable[[int], WarrenError]


def put(operation: Put[Thing], table: Table[Thing], db: apsw.Connection) -> Thing:
    """Write the row of a thing, unless one was made under its key: then return that one."""
    thing = operation.thing
    if not operation.replaces and thing.key is not None:
        known: Any = db.execute(table.created, (thing.tenant, thing.key)).fetchone()
        if known is not None:
            return table.of_row(known)
    session = None if thing.session_id is None else _open_session(db, thing.tenant, thing.session_id)
    values = table.to_row(thing)
    if operation.replaces:
        name, tenant, _, *rest = values
        if db.execute(table.change, (name, tenant, *rest, session)).get is None:
            raise table.missing(name)
    else:
        if db.execute(table.count, (thing.tenant,)).get >= operation.limit:
            raise table.too_many(operation.limit)
        db.execute(table.add, (*values, session))
    audit.add(db, (operation.audit,))
    return thing


def _open_session(db: apsw.Connection, tenant: str, session_id: str) -> int:
    """Return the key of a session of a tenant. Raises SessionNotFoundError if it is not there, or archived."""
    row: Any = db.execute(_SESSION, (session_id, tenant)).fetchone()
    if row is None or row[1] == DELETED:
        raise not_found(session_id)
    if row[1] != OPEN:
        raise retired(session_id)
    return int(row[0])
