"""The tables of the store: their version, and the scripts that bring a database up to it."""

from importlib.resources import files
from typing import Final

from psycopg import errors

from warren.errors import StoreError
from warren.storage.postgres.driver import Connection

OLDEST: Final = 14
"""The oldest version of the server that has all that the statements use."""
VERSION: Final = 1
"""The version of the tables that this program reads and writes."""
LOCK: Final = 4711
"""The first number of all advisory locks of the store; the second one is a holder's key, or 0 for a migration."""


async def prepare(db: Connection) -> None:
    """Check the server and the tables; create the tables if they are missing, or bring them up to this version.

    Programs that open one database at the same moment wait for each other. A role that may not create anything can use
    tables that are there.

    Raises StoreError with `cause` "newer_schema", "cannot_open" or "permission", and as `Connection.fetch`.
    """
    _check_server(db)
    version = await _version(db)
    if version == VERSION:
        return
    await db.script(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK}, 0)")
    try:
        version = await _version(db)  # another program may have been faster
        if version > VERSION:
            raise _newer(version)
        if version < VERSION:
            await _create(db, version)
        await db.script("COMMIT")
    finally:
        await db.roll_back()


def _check_server(db: Connection) -> None:
    found = db.parameter("server_version").partition(" ")[0]
    major = found.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST:
        problem = f"the server is PostgreSQL {found}, and has to be {OLDEST} or newer"
        raise StoreError(problem, cause="cannot_open", retryable=False)
    encoding = db.parameter("server_encoding")
    if encoding != "UTF8":
        problem = f"the encoding of the database is {encoding}: create one with ENCODING 'UTF8' TEMPLATE template0"
        raise StoreError(problem, cause="cannot_open", retryable=False)


async def _version(db: Connection) -> int:
    """Return the version of the tables; 0 if there are none. Raises StoreError for a newer one."""
    if not (await db.fetch("SELECT to_regclass('warren.meta') IS NOT NULL"))[0][0]:
        return 0
    version: int = (await db.fetch("SELECT version FROM warren.meta"))[0][0]
    if version > VERSION:
        raise _newer(version)
    return version


async def _create(db: Connection, version: int) -> None:
    try:
        # Asked first: CREATE SCHEMA needs a privilege also if the schema is there.
        if not (await db.fetch("SELECT to_regnamespace('warren') IS NOT NULL"))[0][0]:
            await db.script("CREATE SCHEMA warren")
        for number in range(version + 1, VERSION + 1):
            await db.script(files(__package__).joinpath(f"schema_{number}.sql").read_text(encoding="utf-8"))
    except errors.InsufficientPrivilege as exc:
        problem = "the tables of the store are missing or old, and this role may not create them: open the store once"
        raise StoreError(f"{problem} with a role that may ({exc})", cause="permission", retryable=False) from exc


def _newer(version: int) -> StoreError:
    problem = f"the tables have version {version}, this program knows up to {VERSION}: use a newer version of Warren"
    return StoreError(problem, cause="newer_schema", retryable=False)
