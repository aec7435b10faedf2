"""The tables of the store: the scripts that make them, and the checks before a program uses them.

A change of the tables comes in two parts. The scripts `schema_N.sql` only add ("expand"): releases that know fewer of
them go on, so that a rolling update can have two releases on one database. The scripts `contract_N.sql` remove columns
and tables of which only programs with fewer than N scripts make use ("contract"). A release has such a script if the
code of the release before it did without them; an operator runs it by `warren store migrate --contract`. The database
says how many scripts it has had, and how many a program has to know.
"""
# ruff: noqa: S608 - only numbers and texts of this package become part of the SQL

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import attrs
from psycopg import errors

from warren.errors import StoreError
from warren.storage.postgres.driver import Connection
from warren.storage.refusals import unfinished
from warren.values import frozen
from warren.version import VERSION

OLDEST: Final = 14
"""The oldest version of the server that has all that the statements use."""
LOCK: Final = 4711
"""The first number of all advisory locks of the store; the second one is a holder's key, or 0 for a migration."""
# A statement that waits for a table's lock keeps all later ones waiting too.
_MOMENT: Final = "SET LOCAL lock_timeout = '2s'"
_STATE: Final = "SELECT version, needs, coalesce(release, ''), copying IS NOT NULL FROM warren.meta"


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

    def script(self, version: int = 0) -> str:
        """Return one script that brings tables of a version up to this one; 0 are no tables at all.

        New tables are contracted as well: no older program uses them yet.
        """
        parts = self.expansions[version:]
        needs = 1
        if not version:
            parts += tuple(self.contractions[number] for number in sorted(self.contractions))
            needs = max(self.contractions, default=1)
        written = f"version = {self.version}, needs = greatest(needs, {needs}), release = '{VERSION}'"
        return ";\n".join((*parts, f"UPDATE warren.meta SET {written}"))


SCHEMA: Final = Schema(
    tuple(files(__package__).joinpath(f"schema_{number}.sql").read_text(encoding="utf-8") for number in (1, 2, 3))
)
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


async def expand(db: Connection, schema: Schema = SCHEMA) -> State:
    """Create the tables, or bring them up to this version; return how they were. Raises as `prepare`."""
    await _lock(db)
    try:
        state = await usable_state(db, schema)  # another program may have been faster
        if state.version < schema.version:
            await _expand(db, schema, state)
        await db.script("COMMIT")
    finally:
        await db.roll_back()
    return state


async def contract(db: Connection, schema: Schema, others: str) -> tuple[int, tuple[str, ...]]:
    """Run the contractions that the tables have not had, unless a program lives that needs the tables as they are.

    Args:
        db: the connection.
        schema: the tables.
        others: a query for the names of living programs that know fewer than $1 scripts.

    Returns how many scripts a program has to know now, and the names of the programs that stand in the way.

    Raises as `prepare`.
    """
    await _lock(db)
    try:
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
                await _changed(db, f"{schema.contractions[number]};\nUPDATE warren.meta SET {written}")
                state = attrs.evolve(state, needs=number)
        await db.script("COMMIT")
    finally:
        await db.roll_back()
    return state.needs, names


async def usable_state(db: Connection, schema: Schema = SCHEMA) -> State:
    """Return the state of the tables. Raises StoreError if they need a newer program, and as `Connection.fetch`."""
    state = await state_of(db)
    if state.needs > schema.version:
        raise too_new(state, schema)
    return state


async def state_of(db: Connection) -> State:
    """Return the state of the tables, whatever it is. Raises as `Connection.fetch`."""
    if not (await db.fetch("SELECT to_regclass('warren.meta') IS NOT NULL"))[0][0]:
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


async def _lock(db: Connection) -> None:
    """Begin a transaction, alone among migrations: those of others take as long as a statement may."""
    await db.script(f"BEGIN; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK}, 0); {_MOMENT}")


async def _expand(db: Connection, schema: Schema, state: State) -> None:
    # Asked first: CREATE SCHEMA needs a privilege also if the schema is there.
    if not state.version and not (await db.fetch("SELECT to_regnamespace('warren') IS NOT NULL"))[0][0]:
        await _changed(db, "CREATE SCHEMA warren")
    await _changed(db, schema.script(state.version), old=f"version {state.version}" if state.version else "missing")


async def _changed(db: Connection, sql: str, old: str = "missing") -> None:
    try:
        await db.script(sql)
    except errors.InsufficientPrivilege as exc:
        command = "init" if old == "missing" else "migrate"
        problem = f"the tables of the store are {old if old == 'missing' else 'of ' + old}, and this role may not"
        advice = f"run `warren store {command}` with a role that may"
        why = str(exc).partition("\n")[0]
        raise StoreError(f"{problem} change that: {advice} ({why})", cause="permission", retryable=False) from exc
    except errors.QueryCanceled as exc:
        problem = "bringing the tables up to this version takes longer than the settings allow"
        raise StoreError(f"{problem}: run `warren store migrate`", cause="locked", retryable=False) from exc
