"""The tables of the store: the scripts that make them, and the checks before a program uses them.

A change of the tables comes in two parts. The scripts `schema_N.sql` only add ("expand"): releases that know fewer of
them go on, so that a rolling update can have two releases on one database. The scripts `contract_N.sql` remove columns
and tables of which only programs with fewer than N scripts make use ("contract"). A release has such a script if the
code of the release before it did without them; an operator runs it by `warren store migrate --contract`. The database
says how many scripts it has had, and how many a program has to know.

An index of a table that may be large has a script of its own with the one statement `CREATE INDEX CONCURRENTLY`: it is
built outside of a transaction, while programs write.
"""
# ruff: noqa: S608 - only numbers and texts of this package become part of the SQL

import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import takewhile
from typing import Final

import attrs
import trio
from psycopg import errors

from warren.base.errors import StoreError
from warren.base.values import frozen
from warren.base.version import VERSION
from warren.conversation.memory import Progress
from warren.storage.postgres.driver import Connection, LostError
from warren.storage.refusals import unfinished

logger: Final = logging.getLogger("warren.storage")
OLDEST: Final = 14
"""The oldest version of the server that has all that the statements use."""
LOCK: Final = 4711
"""The first number of all advisory locks of the store; the second one is a holder's key, or 0 for a migration."""
_TRY_LOCK: Final = f"SELECT pg_try_advisory_lock({LOCK}, 0)"
_UNLOCK: Final = f"SELECT pg_advisory_unlock({LOCK}, 0)"
_PAUSE: Final = 0.05
"""Seconds between two looks whether another program has ended its migration."""
# A statement that waits for a table's lock keeps all later ones waiting too.
_BEGIN: Final = "BEGIN; SET LOCAL lock_timeout = '2s'"
_STATE: Final = "SELECT version, needs, coalesce(release, ''), copying IS NOT NULL FROM warren.meta"
_WHOLE: Final = """
    SELECT true FROM pg_trigger WHERE tgrelid = to_regclass('warren.sessions') AND tgname = 'sessions_changed'
"""
_BUILDS: Final = re.compile(r"^(CREATE (?:UNIQUE )?INDEX) CONCURRENTLY (\w+)", re.MULTILINE)
_VALID: Final = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('warren.' || $1)"


@frozen
class State:
    """The tables of a database.

    Attributes:
        version: how many scripts it has had; 0 if there are no tables.
        needs: how many scripts a program has to know in order to work with them.
        release: the release of Warren that changed them last; empty if it is not known.
        copying: whether they are an unfinished copy of another store.
    """

    version: int = 0
    needs: int = 0
    release: str = ""
    copying: bool = False


@frozen
class Step:
    """A part of an expansion.

    Attributes:
        sql: scripts that run in one transaction, or the statement that builds an index outside of one.
        version: of the tables afterwards.
        index: the index; None for scripts.
    """

    sql: str
    version: int
    index: str | None = None


@frozen
class Schema:
    """The tables as one release of Warren knows them.

    Attributes:
        expansions: scripts in order; each adds something.
        contractions: scripts that remove something, by the number of expansions that a program has to know afterwards.
    """

    expansions: tuple[str, ...] = attrs.field(repr=False)
    contractions: Mapping[int, str] = attrs.field(repr=False, factory=dict)

    @property
    def version(self) -> int:
        """The version of tables that have had all expansions."""
        return len(self.expansions)

    def script(self) -> str:
        """Return one script that makes all tables. They are contracted as well: no older program uses them yet."""
        parts = [_BUILDS.sub(r"\1 \2", each) for each in self.expansions]
        parts += [self.contractions[number] for number in sorted(self.contractions)]
        needs = max(self.contractions, default=1)
        return ";\n".join([*parts, f"UPDATE warren.meta SET {_written(self.version)}, needs = {needs}"])

    def step(self, version: int) -> Step:
        """Return the next step for tables of a version, which is not the newest one."""
        left = self.expansions[version:]
        if built := _BUILDS.search(left[0]):
            return Step(left[0], version + 1, built[2])
        scripts = list(takewhile(lambda each: not _BUILDS.search(each), left))
        version += len(scripts)
        return Step(";\n".join([*scripts, f"UPDATE warren.meta SET {_written(version)}"]), version)


def _written(version: int) -> str:
    return f"version = {version}, release = '{VERSION}'"


def _scripts(kind: str) -> dict[int, str]:
    """Return the scripts of a kind by their numbers, in order."""
    name = re.compile(rf"{kind}_(\d+)\.sql")
    found = {int(match[1]): each for each in files(__package__).iterdir() if (match := name.fullmatch(each.name))}
    return {number: found[number].read_text(encoding="utf-8") for number in sorted(found)}


SCHEMA: Final = Schema(tuple(_scripts("schema").values()), _scripts("contract"))
"""The tables that this release reads and writes."""


async def prepare(db: Connection, schema: Schema = SCHEMA, *, copying: bool = False) -> None:
    """Check the server and the tables; create the tables if they are missing, or expand them to this version.

    Tables that a newer release has expanded are left as they are. Programs that open one database at the same moment
    wait for each other. A role that may not create anything can use tables that are there. An unfinished copy of
    another store is refused, unless the caller is `copying`.

    Raises StoreError with `cause` "newer_schema", "not_a_store", "cannot_open" or "permission", and as
    `Connection.fetch`.
    """
    check_server(db)
    state = await usable_state(db, schema)
    if state.copying and not copying:
        raise unfinished("the database")
    if state.version < schema.version:
        await expand(db, schema)


async def check_whole(db: Connection) -> None:
    """Raise LostError while there are no tables, or not all of them, as long as a backup is being restored.

    The triggers come last in a dump. Raises also as `Connection.fetch`.
    """
    if not await db.value(_WHOLE):
        raise LostError("the tables of the store are not there, or not all of them: a backup may be on its way")


async def expand(db: Connection, schema: Schema = SCHEMA, progress: Progress | None = None) -> State:
    """Create the tables, or bring them up to this version; return how they were.

    `progress` is called before and after each step, with the scripts that are done and the number of those that were
    missing. After an interruption the next call goes on with the step that was under way. Raises as `prepare`, and
    StoreError(cause="locked") if another program changes the tables for longer than a statement may take.
    """
    async with alone(db):
        before = state = await usable_state(db, schema)  # another program may have been faster
        if not state.version:
            await _make(db, schema)
            return before
        while state.version < schema.version:
            if progress is not None:
                progress(state.version - before.version, schema.version - before.version)
            step = schema.step(state.version)
            logger.info("the tables of the store get version %d of %d", step.version, schema.version)
            await _transaction(db, step.sql, state) if step.index is None else await _build(db, step, state)
            state = attrs.evolve(state, version=step.version)
            if progress is not None:
                progress(state.version - before.version, schema.version - before.version)
    return before


async def contract(db: Connection, schema: Schema, others: str) -> tuple[int, tuple[str, ...]]:
    """Run the contractions that the tables have not had, unless a program lives that needs the tables as they are.

    Args:
        db: the connection.
        schema: the tables.
        others: a query for the names of living programs that know fewer than $1 scripts.

    Returns how many scripts a program has to know now, and the names of the programs that stand in the way.

    Raises as `expand`.
    """
    async with alone(db):
        await db.script(_BEGIN)
        # This row keeps programs from registering until the end; those that have done so are seen by the query.
        await db.script(f"{_STATE} FOR UPDATE")
        state = await usable_state(db, schema)
        names: tuple[str, ...] = ()
        for number in sorted(schema.contractions):
            if state.needs < number <= state.version:
                names = tuple(name for (name,) in await db.fetch(others, number))
                if names:
                    break
                written = f"needs = {number}, release = '{VERSION}'"
                await _changed(db, f"{schema.contractions[number]};\nUPDATE warren.meta SET {written}", state)
                state = attrs.evolve(state, needs=number)
        await db.script("COMMIT")
    return state.needs, names


async def usable_state(db: Connection, schema: Schema = SCHEMA) -> State:
    """Return the state of the tables. Raises StoreError if they need a newer program, and as `Connection.fetch`."""
    state = await state_of(db)
    if state.needs > schema.version:
        raise too_new(state, schema)
    return state


async def state_of(db: Connection) -> State:
    """Return the state of the tables, whatever it is. Raises as `Connection.fetch`."""
    if not await db.value("SELECT to_regclass('warren.meta') IS NOT NULL"):
        return State()
    return State(*(await db.fetch(_STATE))[0])


def too_new(state: State, schema: Schema = SCHEMA) -> StoreError:
    """Return the error for tables that this program cannot work with."""
    by = f" (Warren {state.release} changed them last)" if state.release else ""
    problem = f"the tables have version {state.version} and need a program that knows version {state.needs}{by}"
    known = f"this program knows up to {schema.version}: use a newer version of Warren"
    return StoreError(f"{problem}; {known}", cause="newer_schema", retryable=False)


def check_server(db: Connection) -> None:
    """Refuse a server or a database that a store cannot be in. Raises StoreError(cause="cannot_open")."""
    found = db.parameter("server_version").partition(" ")[0]
    major = found.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST:
        problem = f"the server is PostgreSQL {found}, and has to be {OLDEST} or newer"
        raise StoreError(problem, cause="cannot_open", retryable=False)
    encoding = db.parameter("server_encoding")
    if encoding != "UTF8":
        problem = f"the encoding of the database is {encoding}: create one with ENCODING 'UTF8' TEMPLATE template0"
        raise StoreError(problem, cause="cannot_open", retryable=False)


@asynccontextmanager
async def alone(db: Connection) -> AsyncIterator[None]:
    """Keep all other programs from changing the tables; a transaction that the block leaves open is rolled back.

    The lock is asked for again and again, not waited for. A statement that waits has a snapshot, an index that is built
    concurrently waits for all older snapshots to end, and so the two would wait for each other.

    Raises StoreError(cause="locked"), and as `Connection.fetch`.
    """
    deadline = trio.current_time() + db.timeout
    while not await db.value(_TRY_LOCK):
        if trio.current_time() > deadline:
            raise StoreError("another program is changing the tables of the store: try again later", cause="locked")
        await trio.sleep(_PAUSE)
    try:
        yield
    finally:
        await db.roll_back()
        try:
            await db.fetch(_UNLOCK)
        except (LostError, errors.Error):
            db.close()  # its end is the lock's


async def _make(db: Connection, schema: Schema) -> None:
    # Asked first: CREATE SCHEMA needs a privilege also if the schema is there.
    there = await db.value("SELECT to_regnamespace('warren') IS NOT NULL")
    await _transaction(db, schema.script() if there else f"CREATE SCHEMA warren;\n{schema.script()}", State())


async def _transaction(db: Connection, sql: str, state: State) -> None:
    await db.script(_BEGIN)
    await _changed(db, sql, state)
    await db.script("COMMIT")


async def _build(db: Connection, step: Step, state: State) -> None:
    """Build the index of a step, unless an earlier call has built it; an unfinished one is removed before."""
    valid = await db.value(_VALID, step.index)
    if valid is False:
        await _changed(db, f"DROP INDEX CONCURRENTLY warren.{step.index}", state)
    if not valid:
        await _changed(db, step.sql, state)
    await db.script(f"UPDATE warren.meta SET {_written(step.version)}")


async def _changed(db: Connection, sql: str, state: State) -> None:
    """Run a script. Raises StoreError(cause="permission") or (cause="locked"), and as `Connection.script`."""
    try:
        await db.script(sql)
    except errors.InsufficientPrivilege as exc:
        how, command = (f"of version {state.version}", "migrate") if state.version else ("missing", "init")
        problem = f"the tables of the store are {how}, and this role may not change that"
        advice = f"run `warren store {command}` with a role that may"
        why = str(exc).partition("\n")[0]
        raise StoreError(f"{problem}: {advice} ({why})", cause="permission", retryable=False) from exc
    except errors.QueryCanceled as exc:
        problem = "bringing the tables up to this version takes longer than the settings allow"
        raise StoreError(f"{problem}: run `warren store migrate`", cause="locked", retryable=False) from exc
