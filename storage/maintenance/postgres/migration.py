"""The version of a store in a database: seen, made, expanded and contracted."""

from warren.config import PostgresConfig
from warren.errors import StoreError
from warren.storage.maintenance.postgres.connecting import be_patient, connected, missing
from warren.storage.maintenance.versions import Program, StoreVersion
from warren.storage.postgres.driver import Connection, unescaped
from warren.storage.postgres.guard import guard_of
from warren.storage.postgres.lease import LIVING, OLDER
from warren.storage.postgres.schema import SCHEMA, Schema, contract, expand, state_of, usable_state


async def look(config: PostgresConfig, schema: Schema = SCHEMA) -> StoreVersion:
    """Return the version of a store, which is 0 if there are no tables. Nothing is changed. Raises StoreError."""
    async with connected(config) as db:
        return await _seen(db, config, schema)


async def migrate(
    config: PostgresConfig, schema: Schema = SCHEMA, *, make: bool, contracting: bool = False
) -> StoreVersion:
    """Bring a store up to this version, and return its version before.

    It takes as long as it takes. Programs that use the store go on.

    Args:
        config: the address.
        schema: the tables.
        make: whether it may be missing; then its tables are made.
        contracting: also remove tables and columns that only older releases use.

    Raises StoreError with `cause` "missing", "newer_schema", "permission" and so on; "leased" if a program of an older
    release that needs them lives: all is expanded then, and nothing is removed.
    """
    async with connected(config) as db:
        before = await _seen(db, config, schema)
        if not before.version and not make:
            raise missing()
        await usable_state(db, schema)
        await be_patient(db)
        # An index waits for the transactions that run, and nobody waits for it; other changes have a time of their own.
        await db.script("SET lock_timeout = 0")
        await expand(db, schema)
        await guard_of(db)
        if contracting:
            _, names = await contract(db, schema, OLDER)
            if names:
                shown = ", ".join(unescaped(name) for name in names)
                problem = f"programs of an older release still use the tables, so nothing is removed: end {shown}"
                raise StoreError(problem, cause="leased", details={"holder": unescaped(names[0])})
        return before


async def _seen(db: Connection, config: PostgresConfig, schema: Schema) -> StoreVersion:
    state = await state_of(db)
    rows = await db.fetch(LIVING) if state.version and state.needs <= schema.version else []
    return StoreVersion(
        path=config.shown,
        version=state.version,
        needs=state.needs,
        known=schema.version,
        release=state.release or None,
        contractible=any(state.needs < number <= state.version for number in schema.contractions),
        programs=tuple(Program(unescaped(name), version) for name, version in rows),
    )
