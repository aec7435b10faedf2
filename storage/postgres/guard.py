"""Reads behind row-level security: the role that reads for callers sees the rows of one tenant, and none without one.

The queries have conditions of their own; the server's are there for the query that has lost its condition. The login
role is not subject to them: it writes for all tenants, and reads what actors need.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import logging
from typing import Any, Final

from psycopg import errors

from warren.base.values import frozen
from warren.storage.postgres.driver import Connection, Row, Statement, Value
from warren.storage.postgres.schema import alone

logger: Final = logging.getLogger("warren.storage")
TABLES: Final = (
    "sessions",
    "messages",
    "compactions",
    "events",
    "inbox",
    "calls",
    "waits",
    "schedules",
    "schedule_runs",
    "triggers",
    "trigger_deliveries",
    "webhooks",
    "deliveries",
    "agents",
    "creations",
    "attachments",
    "blobs",
    "holders",
    "memory_sessions",
    "memory_entries",
    "usage",
    "audit",
)
"""Tables that callers read; each has a policy."""
ABSENT: Final = """\
the role {} that reads for callers cannot be used, so tenants are kept apart by Warren's own queries alone: create it \
and grant it to this role, and let the owner of the tables open the store once"""
_STATE: Final = f"""
    SELECT name, coalesce(pg_has_role(role, 'MEMBER') AND has_schema_privilege(role, 'warren', 'USAGE') AND (
        SELECT bool_and(relrowsecurity AND has_table_privilege(role, c.oid, 'SELECT')) FROM pg_class c
        WHERE c.oid = ANY (ARRAY[{", ".join(f"'warren.{each}'" for each in TABLES)}]::regclass[])
    ), false), role IS NOT NULL, pg_has_role(relowner, 'USAGE')
    FROM (
        SELECT name, to_regrole(name)::oid AS role
        FROM (SELECT 'warren_reader_' || oid AS name FROM pg_database WHERE datname = current_database()) AS d
    ) AS named, pg_class WHERE pg_class.oid = 'warren.sessions'::regclass
"""
_ENTER: Final = "SELECT set_config('warren.tenant', $1, true), set_config('role', $2, true)"


@frozen
class Guarded:
    """A connection whose reads see one tenant, each call in a transaction of its own and in one round trip."""

    _db: Connection
    _role: str
    _tenant: str

    async def fetch(self, sql: str, *values: Value) -> list[Row]:
        (rows,) = await self.fetch_each((sql, *values))
        return rows

    async def value(self, sql: str, *values: Value) -> Any:
        rows = await self.fetch(sql, *values)
        return rows[0][0] if rows else None

    async def fetch_each(self, *statements: Statement) -> list[list[Row]]:
        _, *found = await self._db.fetch_each((_ENTER, self._tenant, self._role), *statements)
        return found


@frozen
class Guard:
    """How the reads for callers are kept to one tenant.

    Attributes:
        role: the role that reads for callers; None if it cannot be used, and the queries' own conditions are all.
    """

    role: str | None

    def on(self, db: Connection, tenant: str) -> Connection | Guarded:
        """Return a connection for the reads of a tenant."""
        return db if self.role is None else Guarded(db, self.role, tenant)


async def guard_of(db: Connection) -> Guard:
    """Return the guard of a database, whose role is made if it is missing and this login may do that; else log it.

    Raises StoreError(cause="locked") and as `Connection.fetch`.
    """
    name, usable = await _state_of(db)
    if not usable:
        logger.warning("%s", ABSENT.format(name))
    return Guard(name if usable else None)


async def absence(db: Connection) -> str | None:
    """Return a sentence if there is no row-level security for this login; nothing is changed."""
    ((name, ready, *_),) = await db.fetch(_STATE)
    return None if ready else ABSENT.format(name)


async def _state_of(db: Connection) -> tuple[str, bool]:
    ((name, ready, there, owns),) = await db.fetch(_STATE)
    if not ready and owns:
        # Roles are of the whole server, and two programs that change the rights of one fail.
        async with alone(db):
            ((_, ready, there, _),) = await db.fetch(_STATE)
            with contextlib.suppress(errors.InsufficientPrivilege):
                if not ready:
                    await _make(db, name, there=there)
            await db.roll_back()
            ((_, ready, *_),) = await db.fetch(_STATE)
    return name, ready and await _may_become(db, name)


async def _make(db: Connection, name: str, *, there: bool) -> None:
    made = "" if there else f"CREATE ROLE {name} NOLOGIN NOINHERIT; GRANT {name} TO CURRENT_USER;"
    tables = ", ".join(f"warren.{each}" for each in TABLES)
    await db.script(f"BEGIN; {made} GRANT USAGE ON SCHEMA warren TO {name}; GRANT SELECT ON {tables} TO {name}; COMMIT")


async def _may_become(db: Connection, name: str) -> bool:
    """Return whether this login can change to a role: a member of it may lack the right to that from version 16 on."""
    try:
        await db.script(f"BEGIN; SET LOCAL ROLE {name}")
    except errors.InsufficientPrivilege:
        return False
    finally:
        await db.roll_back()
    return True
