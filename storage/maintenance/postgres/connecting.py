"""The connection of an operator's command to the database of a store, and the checks that are asked over it."""

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from psycopg import errors

from warren.base.errors import StoreError
from warren.reports.reports import Finding
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.checks import Check, asked
from warren.storage.postgres.driver import Connection, LostError, unescaped
from warren.storage.postgres.faults import translate
from warren.storage.postgres.schema import State, check_server, usable_state


@asynccontextmanager
async def connected(config: PostgresConfig, *, reads: bool = False) -> AsyncIterator[Connection]:
    """Open a connection for the block; if it only `reads`, to a standby if there is no other server.

    Raises StoreError with the address of the database, also for errors of the database inside the block.
    """
    try:
        db = await Connection.open(config, "maintenance", reads=reads)
        try:
            check_server(db)
            yield db
        finally:
            db.close()
    except (LostError, errors.Error, StoreError) as exc:
        error = translate(exc)
        if not isinstance(error, StoreError) or error.message.startswith(config.shown):
            raise
        named = f"{config.shown}: {error.message}"
        raise StoreError(named, cause=error.cause, retryable=error.retryable, session_id=error.session_id) from None


async def findings_of(db: Connection, checks: Iterable[Check], *, full: bool = False) -> AsyncIterator[Finding]:
    """Yield the findings of checks. Raises as `Connection.fetch`."""
    for check, sql in asked(checks, "postgres", full=full):
        for finding in check.found(await db.fetch(sql), unescaped):
            yield finding


async def be_patient(db: Connection) -> None:
    """Let statements take as long as they take. Raises as `Connection.fetch`."""
    await db.script("SET statement_timeout = 0")
    db.timeout = math.inf


async def existing(db: Connection) -> State:
    """Return the state of the tables. Raises StoreError if there are none, and as `usable_state`."""
    state = await usable_state(db)
    if not state.version:
        raise missing()
    return state


def missing() -> StoreError:
    """Return the error for a database without the tables of a store."""
    problem = "the database has no tables of a store: run `warren store init`"
    return StoreError(problem, cause="missing", retryable=False)
