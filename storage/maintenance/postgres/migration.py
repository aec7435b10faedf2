"""The version of a store in a database: seen, made, expanded and contracted."""

import contextlib
from typing import Final

import trio
from psycopg import errors

from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.conversation.memory import Progress
from warren.settings.config import PostgresConfig
from warren.storage.maintenance.postgres.connecting import be_patient, connected, missing
from warren.storage.maintenance.versions import Program, StoreVersion
from warren.storage.postgres.driver import Connection, LostError, unescaped
from warren.storage.postgres.guard import guard_of
from warren.storage.postgres.lease import LIVING, OLDER
from warren.storage.postgres.schema import SCHEMA, Schema, contract, expand, state_of, usable_state

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at an index that is built."""
_BUILT: Final = """
    SELECT phase, coalesce(blocks_done, 0)::int8, coalesce(blocks_total, 0)::int8
    FROM pg_stat_progress_create_index WHERE pid = $1::int4
"""


async def look(config: PostgresConfig, schema: Schema = SCHEMA) -> StoreVersion:
    """Return the version of a store, which is 0 if there are no tables. Nothing is changed. Raises StoreError."""
    async with connected(config, reads=True) as db:
        return await _seen(db, config, schema)


@define(eq=False)
class Course:
    """The progress of an expansion: a step may be an index, which takes a while itself.

    Attributes:
        progress: gets hundredths of versions.
    """

    progress: Progress
    _done: int = 0
    _total: int = 1

    def at(self, done: int, total: int) -> None:
        """Note how many versions the tables have had, of how many."""
        self._done, self._total = 100 * done, 100 * total
        self.progress(self._done, self._total)

    async def follow(self, config: PostgresConfig, pid: int) -> None:
        """Show the part of an index that the server process `pid` has built, until cancelled."""
        # What cannot be looked at is not shown.
        with contextlib.suppress(LostError, errors.Error, WarrenError):
            db = await Connection.open(config, "maintenance")
            try:
                while True:
                    await trio.sleep(LOOK_EVERY)
                    for phase, done, total in await db.fetch(_BUILT, pid):
                        self.progress(self._done + round(100 * part_of(phase, done, total)), self._total)
            finally:
                db.close()


def part_of(phase: str, done: int, total: int) -> float:
    """Return the part of an index that is built, by the server's view `pg_stat_progress_create_index`.

    The table is read twice: once to build the index, and once to add the rows that came meanwhile.
    """
    scanned = 0.5 * min(done, total) / max(total, 1)
    if phase == "building index: scanning table":
        return scanned
    if phase == "index validation: scanning table":
        return 0.5 + scanned
    return 0.0 if phase in ("initializing", "waiting for writers before build") else 0.5


async def migrate(
    config: PostgresConfig,
    schema: Schema = SCHEMA,
    *,
    make: bool,
    contracting: bool = False,
    progress: Progress | None = None,
) -> StoreVersion:
    """Bring a store up to this version, and return its version before.

    It takes as long as it takes. Programs that use the store go on.

    Args:
        config: the address.
        schema: the tables.
        make: whether it may be missing; then its tables are made.
        contracting: also remove tables and columns that only older releases use.
        progress: is called as the tables change, with hundredths of versions; not while they are made.

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
        await _expanded(db, config, schema, progress)
        await guard_of(db)
        if contracting:
            _, names = await contract(db, schema, OLDER)
            if names:
                shown = ", ".join(unescaped(name) for name in names)
                problem = f"programs of an older release still use the tables, so nothing is removed: end {shown}"
                raise StoreError(problem, cause="leased", details={"holder": unescaped(names[0])})
        return before


async def _expanded(db: Connection, config: PostgresConfig, schema: Schema, progress: Progress | None) -> None:
    if progress is None:
        await expand(db, schema)
        return
    course = Course(progress)
    pid = await db.value("SELECT pg_backend_pid()")
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(course.follow, config, pid)
        try:
            await expand(db, schema, course.at)
        except (WarrenError, LostError, errors.Error) as exc:
            failed = exc  # raised outside of the nursery, which would put it into a group
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


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
