"""A store in a database as a whole: all of its rows to be copied elsewhere, or a database that is filled with rows."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio
from psycopg import errors

from warren.conversation import codec
from warren.settings.config import PostgresConfig
from warren.storage.copying import AUDIT, PAGE_BYTES, PAGE_ROWS, Mark, Page, Position, Row, Table, renumbered
from warren.storage.membership import secret_of
from warren.storage.postgres.commit import marks_of
from warren.storage.postgres.driver import Connection, LostError, array, escaped, unescaped
from warren.storage.postgres.faults import of_opening, translate
from warren.storage.postgres.inbox import LAST
from warren.storage.postgres.lease import LIVING
from warren.storage.postgres.schema import prepare
from warren.storage.refusals import another_copy, in_use, not_empty, two_copies

TIMEOUT: Final = 600.0
"""Seconds that a statement may take: rows are counted and sorted by the million."""
ENDING: Final = 2.0
"""Seconds for which the server may list a connection that its client has closed."""
LOOK: Final = 0.05
"""Seconds between two looks for the end of such a connection."""
# Rows are read in the order of the primary key.
_ORDER: Final = {
    "sessions": ("key",),
    "messages": ("session", "position"),
    "compactions": ("session", "key"),
    "events": ("session", "seq"),
    "inbox": ("session", "number"),
    "creations": ("tenant", "key"),
    "erasures": ("session_id",),
    "usage": ("tenant", "hour", "payer", "model", "holder"),
    "blobs": ("key",),
    "attachments": ("session", "blob"),
    "audit": ("number",),
    "calls": ("session", "place"),
    "waits": ("session", "wait_id", "reason"),
    "schedules": ("key",),
    "schedule_runs": ("schedule", "due"),
    "triggers": ("key",),
    "trigger_deliveries": ("trigger_key", "delivery"),
    "webhooks": ("key",),
    "deliveries": ("key",),
    "agents": ("key",),
    "memory_sessions": ("key",),
    "memory_entries": ("id",),
    "memory_tombstones": ("session", "position"),
}
_TEXTS: Final = frozenset(
    "session_id model labels title details tenant owner peer body cuts summary outcome params content terms"  # noqa: SIM905 - legible
    " sha256 media_type name who action node source payer call_id reason wait_id creation"
    " problem secret delivery webhook type".split()
)
_TEXT_KEYS: Final = frozenset(
    {
        ("inbox", "id"),
        ("sessions", "delegated_by"),
        ("sessions", "agent"),
        ("inbox", "key"),
        ("creations", "key"),
        ("usage", "priced"),
        ("sessions", "turn"),
        ("calls", "state"),
        ("waits", "state"),
        ("trigger_deliveries", "state"),
        ("schedules", "id"),
        ("triggers", "id"),
        ("webhooks", "id"),
        ("deliveries", "id"),
        ("deliveries", "state"),
        ("agents", "name"),
        ("agents", "version"),
    }
)
# Columns that have another name or another type here, as they are read and as they are written.
_READ: Final = {
    ("sessions", "unreleased"): "(holder IS NOT NULL)::int AS unreleased",
    ("inbox", "starts"): "starts::int AS starts",
    ("inbox", "notice"): "notice::int AS notice",
    ("usage", "priced"): "priced::text AS priced",
    ("blobs", "body"): "encode(body, 'hex') AS body",
    ("memory_sessions", "forgotten"): "forgotten::int AS forgotten",
    ("memory_entries", "terms"): "encode(terms, 'hex') AS terms",
}
_WRITTEN: Final = {("sessions", "unreleased"): "holder"}
# No process ever has the number 0: a session that was not put back has a dead holder here too.
_VALUE: Final = {
    ("sessions", "unreleased"): "nullif(unreleased, 0) - 1",
    ("inbox", "starts"): "starts <> 0",
    ("inbox", "notice"): "notice <> 0",
    ("usage", "priced"): "priced::numeric",
    ("blobs", "body"): "decode(body, 'hex')",
    ("memory_sessions", "forgotten"): "forgotten <> 0",
    ("memory_entries", "terms"): "decode(terms, 'hex')",
}
# The terms of an entry, four bytes each and the lowest first, as the rows by which searches find it.
POST: Final = """
    INSERT INTO warren.memory_postings (entry, term, times, length)
    SELECT id, term, least(count(*), 32767), least(length(terms) / 4, 32767) FROM (
        SELECT id, terms, (get_byte(terms, at) + get_byte(terms, at + 1) * 256 + get_byte(terms, at + 2) * 65536
            + get_byte(terms, at + 3)::int8 * 16777216)::bit(32)::int4 AS term
        FROM warren.memory_entries, generate_series(0, length(terms) - 4, 4) AS at WHERE id = ANY ($1::int8[])
    ) AS each GROUP BY id, terms, term
"""
COUNT_ANEW: Final = """
    UPDATE warren.memory_totals SET entries = CASE slot WHEN 0 THEN counted.entries ELSE 0 END,
        terms = CASE slot WHEN 0 THEN counted.terms ELSE 0 END
    FROM (
        SELECT count(*) AS entries, coalesce(sum(length(terms) / 4), 0) AS terms FROM warren.memory_entries
    ) AS counted
"""
_NUMBERED: Final = (
    ("sessions", "key"),
    ("compactions", "key"),
    ("blobs", "key"),
    ("memory_sessions", "key"),
    ("memory_entries", "id"),
    ("audit", "number"),
    ("waits", "key"),
    ("schedules", "key"),
    ("triggers", "key"),
    ("webhooks", "key"),
    ("deliveries", "key"),
    ("agents", "key"),
)
# Of the connections of Warren, which say so, all but those that copy.
_CONNECTED: Final = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND application_name LIKE 'warren: %' AND application_name <> 'warren: copy'
"""
_EMPTY: Final = """
    SELECT NOT EXISTS (SELECT FROM warren.sessions) AND NOT EXISTS (SELECT FROM warren.creations)
        AND NOT EXISTS (SELECT FROM warren.memory_sessions)
"""
_ENTRIES: Final = "SELECT coalesce(max(number), 0) FROM warren.audit"
_MARK: Final = "SELECT copying FROM warren.meta FOR UPDATE"


class WholeDatabase:
    """The database of a store, to be read or filled; see `warren.storage.copying`. Made by `source` and `target`.

    Attributes:
        name: its address without a password.
        identity: a text that the database has kept since its tables were made.
    """

    def __init__(self, db: Connection, config: PostgresConfig, identity: str) -> None:
        self._db = db
        self.name: str = config.shown
        self.identity: str = identity
        self._entries = 0  # of its own, which the copied ones of the audit follow

    async def count(self, table: Table) -> int:
        return int(await self._value(f"SELECT count(*) FROM warren.{table.name}"))

    async def page(self, table: Table, after: Position | None) -> Page:
        if table is AUDIT:
            after = after or (self._entries,)
        order = ", ".join(f"t.{each}" for each in _ORDER[table.name])
        types = ("" if _is_text(table.name, each) else "::int8" for each in _ORDER[table.name])
        places = ", ".join(f"${at}{kind}" for at, kind in enumerate(types, start=1))
        where = "" if after is None else f"WHERE ({order}) > ({places})"
        columns = ", ".join(f"t.{each}" for each in table.columns)
        read = ", ".join(_READ.get((table.name, each), each) for each in table.columns)
        bulk = f"{table.bulk}::text"
        # The running sum ends a page inside the server; it does not look at the texts for their length.
        sql = f"""
            SELECT {columns}, {order} FROM (
                SELECT *, sum(octet_length({bulk})) OVER (ORDER BY {order}) - octet_length({bulk}) AS before
                FROM (SELECT {read} FROM warren.{table.name} AS t {where} ORDER BY {order} LIMIT {PAGE_ROWS}) AS t
            ) AS t WHERE before < {PAGE_BYTES} ORDER BY {order}
        """
        found = await self._fetch(sql, *(after or ()))
        width = len(table.columns)
        texts = [at for at, each in enumerate(table.columns) if _is_text(table.name, each)]
        rows = renumbered(table, [_plain(row[:width], texts) for row in found], -self._entries)
        return Page(rows, found[-1][width:] if found else after or ())

    async def last_input(self) -> int:
        return int(await self._value(LAST))

    async def secret(self) -> bytes | None:
        return secret_of(await self._value("SELECT completions FROM warren.meta"))

    async def remembers(self) -> bool:
        return bool(await self._value("SELECT EXISTS (SELECT FROM warren.memory_sessions)"))

    async def begin(self, source: str) -> Mark:
        async with self._transaction():
            found = await self._value(_MARK)
            if found is None:
                if not await self._value(_EMPTY):
                    raise not_empty(self.name)
                mark = Mark(source, entries=await self._value(_ENTRIES))
                await self._fetch("UPDATE warren.meta SET copying = $1", mark.encoded())
            else:
                mark = Mark.decoded(found)
        if mark.source != source:
            raise another_copy(self.name, mark.source)
        self._entries = mark.entries
        return mark

    async def add(self, table: Table, rows: Sequence[Row], before: Mark, after: Mark) -> None:
        names = [_WRITTEN.get((table.name, each), each) for each in table.columns]
        values = [_VALUE.get((table.name, each), each) for each in table.columns]
        types = ["text[]" if _is_text(table.name, each) else "int8[]" for each in table.columns]
        columns = [
            [escaped(value) if isinstance(value, str) else value for value in column]
            for column in zip(*renumbered(table, rows, after.entries), strict=True)
        ]
        given = list(table.columns)
        if table.name == "sessions":
            labels = table.columns.index("labels")
            names, values, types, given = (
                [*names, "marks"],
                [*values, "marks::text[]"],
                [*types, "text[]"],
                [*given, "marks"],
            )
            columns.append([array(marks_of(codec.parse(str(row[labels])))) for row in rows])
        places = ", ".join(f"${at}::{kind}" for at, kind in enumerate(types, start=1))
        sql = f"""
            INSERT INTO warren.{table.name} ({", ".join(names)}) OVERRIDING SYSTEM VALUE
            SELECT {", ".join(values)} FROM unnest({places}) AS given ({", ".join(given)})
        """
        async with self._transaction():
            ahead = "UPDATE warren.meta SET copying = $1 WHERE copying = $2 RETURNING 1"
            if not await self._fetch(ahead, after.encoded(), before.encoded()):
                raise two_copies(self.name)
            if rows:
                await self._fetch(sql, *(array(column) for column in columns))
            if rows and table.name == "memory_entries":
                await self._fetch(POST, array([row[0] for row in rows]))

    async def finish(self, last_input: int, secret: bytes | None) -> None:
        async with self._transaction():
            for name, key in _NUMBERED:
                newest = f"SELECT coalesce(max({key}), 0) FROM warren.{name}"
                sequence = f"pg_get_serial_sequence('warren.{name}', '{key}')"
                await self._fetch(f"SELECT setval({sequence}, greatest(last, 1), last > 0) FROM ({newest}) AS t (last)")
            await self._fetch("SELECT setval('warren.inputs', greatest($1::int8, 1), $1::int8 > 0)", last_input)
            await self._fetch(COUNT_ANEW)
            await self._fetch("UPDATE warren.meta SET copying = NULL, completions = $1", secret and secret.hex())
        # For the planner. A role that does not own the tables may not do so; the server will do it by itself.
        await self._fetch(f"ANALYZE {', '.join(f'warren.{name}' for name in (*_ORDER, 'memory_postings'))}")

    async def _fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with faults():
            found = await self._db.fetch(sql, *values)
        return found  # noqa: RET504 - inside the block, mypy would miss a return

    async def _value(self, sql: str) -> Any:
        return (await self._fetch(sql))[0][0]

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        with faults():
            async with self._db.transaction():
                yield


@contextmanager
def faults() -> Iterator[None]:
    """Raise errors of the server and of the connection inside the block as StoreErrors."""
    try:
        yield
    except (LostError, errors.Error) as exc:
        raise translate(exc) from exc


@asynccontextmanager
async def source(config: PostgresConfig) -> AsyncIterator[WholeDatabase]:
    """Open a store to be copied: it can be read meanwhile, and not written.

    Raises StoreError with `cause` "leased" if a process that lives uses it, and as `PostgresStore.open`.
    """
    async with _opened(config) as (db, identity):
        with faults():
            # The snapshot begins with the statement that follows the lock.
            lock = "LOCK TABLE warren.sessions, warren.memory_sessions IN SHARE MODE"
            await db.script(f"BEGIN ISOLATION LEVEL REPEATABLE READ; {lock}")
        yield WholeDatabase(db, config, identity)


@asynccontextmanager
async def target(config: PostgresConfig) -> AsyncIterator[WholeDatabase]:
    """Open a database to be filled: one without tables, with an empty store, or with an unfinished copy.

    Raises StoreError with `cause` "leased" if a process that lives uses it, and as `PostgresStore.open`.
    """
    async with _opened(config, copying=True) as (db, identity):
        yield WholeDatabase(db, config, identity)


@asynccontextmanager
async def _opened(config: PostgresConfig, *, copying: bool = False) -> AsyncIterator[tuple[Connection, str]]:
    """Open a connection to a store that nobody else uses; yield it and the identity of the store."""
    try:
        db = await Connection.open(config, "copy")
    except (LostError, errors.Error) as exc:
        raise of_opening(exc, config) from None
    try:
        with faults():
            db.timeout = TIMEOUT
            await db.script(f"SET statement_timeout = '{TIMEOUT:g}s'; SET idle_in_transaction_session_timeout = 0")
            await prepare(db, copying=copying)
            living = [unescaped(name) for name, _ in await db.fetch(LIVING)]
            if living:
                raise in_use(f"{config.shown} ({', '.join(living)})")
            if await _is_used(db):
                raise in_use(config.shown)
            identity = str(await db.value("SELECT store::text FROM warren.meta"))
        yield db, identity
    finally:
        db.close()


async def _is_used(db: Connection) -> bool:
    """Return whether another process is connected to the store. A process that has just ended is waited for."""
    with trio.move_on_after(ENDING):
        while await db.value(_CONNECTED):  # noqa: ASYNC110 - the server tells nobody of an end
            await trio.sleep(LOOK)
        return False
    return True


def _is_text(table: str, column: str) -> bool:
    return column in _TEXTS or (table, column) in _TEXT_KEYS


def _plain(row: tuple[Any, ...], texts: Sequence[int]) -> Row:
    values = list(row)
    for at in texts:
        if values[at] is not None:
            values[at] = unescaped(values[at])
    return tuple(values)
