"""The faults that the suite provokes in each home: a port, with one plug for each home.

A home says for each fault how the fault comes about, or as an `Impossible` why it cannot exist there.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import apsw
import attrs
import psycopg
import trio

from tests.faults import faulty_disk
from tests.storage.damaging import put
from tests.storage.samples import kept, opened, step, turn, written
from tests.support.faulty_store import CrashError, Faults, FaultyStore
from tests.support.postgres import database, name_in, server
from tests.support.postgres_proxy import wire_to
from warren.base.errors import StoreError
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.operations import Operation
from warren.storage.postgres import Holder as PostgresHolder
from warren.storage.postgres import PostgresStore
from warren.storage.runner import inline_runner
from warren.storage.sqlite import Holder
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.store import Store


@attrs.frozen
class Impossible:
    """The reason why a fault cannot exist in a home."""

    reason: str


@attrs.frozen
class Switch:
    """Turns a fault on and off."""

    on: Callable[[], object]
    off: Callable[[], object]


@attrs.frozen
class Crash:
    """The end of a process in the middle of a commit.

    Attributes:
        confirmed: whether the process was told that the commit succeeded.
        reached: whether the process got as far as the moment of the crash; later moments do not exist.
        next: opens the home as the next process finds it.
    """

    confirmed: bool
    reached: bool
    next: Callable[[], AbstractAsyncContextManager[Store]]


Row = Literal["record", "message", "event", "turn", "call"]
Switched = Callable[[Path], AbstractAsyncContextManager[tuple[Store, Switch]]]
Damaged = Callable[[Path, Row], AbstractAsyncContextManager[Store]]
Crashing = Callable[[Path, Operation[None], Operation[None], int], AbstractAsyncContextManager[Crash]]
Unknown = Callable[[Path, Operation[None], Operation[None], bool], AbstractAsyncContextManager[Store]]


@attrs.frozen
class FaultsOf:
    """The faults of one home.

    Attributes:
        full: opens the home; while the switch is on, nothing that grows can be stored.
        locked: opens the home; while the switch is on, another process holds the lock that a write needs.
        damaged: opens the home with two turns of session "a" and one of "b", and one row of "a" that cannot be read:
            its record, its message at position 1, or its event number 2; or the state of its third turn, which is open,
            or of a call of that.
        crashed: stores an operation, then dies at the given moment (from 1) of the commit of a second one.
        unknown: stores an operation; a second one ends without an answer, before its commit or after. Then opens the
            home again, in the same process.
    """

    full: Switched | Impossible
    locked: Switched | Impossible
    damaged: Damaged | Impossible
    crashed: Crashing | Impossible
    unknown: Unknown | Impossible


async def every(store: Store, *operations: Operation[None]) -> None:
    """Write the operations as one group; each must succeed."""
    assert await store.write(operations) == [None] * len(operations)


# -- sqlite


@asynccontextmanager
async def _full(path: Path) -> AsyncIterator[tuple[Store, Switch]]:
    with faulty_disk() as disk:

        def fill() -> None:
            disk.room = 0

        async with opened(path) as store:
            yield store, Switch(fill, disk.heal)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[tuple[Store, Switch]]:
    async with opened(path, busy_timeout=0.01) as store:
        other = apsw.Connection(str(path / "store" / FILE_NAME))
        yield store, Switch(lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("ROLLBACK"))
        other.close()


_ROWS: Final[dict[Row, tuple[str, str, str]]] = {
    "record": ("sessions", "details", "session_id = 'a'"),
    "message": ("messages", "body", "session = (SELECT key FROM sessions WHERE session_id = 'a') AND position = 1"),
    "event": ("events", "body", "session = (SELECT key FROM sessions WHERE session_id = 'a') AND seq = 2"),
    "turn": ("sessions", "turn", "session_id = 'a'"),
    "call": ("calls", "body", "session = (SELECT key FROM sessions WHERE session_id = 'a') AND place = 1"),
}


def _stored(row: Row) -> list[Operation[None]]:
    third = [step("a", 2, calls=(kept(0, result="x"), kept(1)))] if row in ("turn", "call") else []
    return [turn("a"), turn("a", 1), *third, turn("b")]


@asynccontextmanager
async def _damaged(path: Path, row: Row) -> AsyncIterator[Store]:
    async with opened(path) as store:
        await written(store, *_stored(row))
    table, column, where = _ROWS[row]
    assert put(path / "store" / FILE_NAME, table, column, "CAST(x'22c3ff22' AS TEXT)", where)
    async with opened(path) as store:
        yield store


@asynccontextmanager
async def _crashed(path: Path, first: Operation[None], second: Operation[None], moment: int) -> AsyncIterator[Crash]:
    with faulty_disk() as disk:
        disk.platters = {}
        async with opened(path) as store:
            await written(store, first)
            disk.fail_at = disk.calls + moment
            (outcome,) = await store.write([second])
            reached = disk.calls >= disk.fail_at
            # Of the power cut the write that failed and all writes without a flush are lost.
            (path / "after").mkdir()
            disk.cut_power(path / "after" / "store")
    yield Crash(outcome is None, reached, lambda: opened(path / "after"))


@asynccontextmanager
async def _unknown(
    path: Path,
    first: Operation[None],
    second: Operation[None],
    committed: bool,  # noqa: FBT001 - a column of a test's parameters
) -> AsyncIterator[Store]:
    config, faults = StoreConfig(path / "store"), Faults()
    holder = Holder.of(config)
    store = await FaultyStore.prepared(config, faults, inline_runner, holder)
    await written(store, first)
    faults.crash_before, faults.crash_after = int(not committed), int(committed)
    try:
        await store.write([second])
    except CrashError:
        await store.aclose(leave=False)
    async with opened(path, holder=holder) as again:
        yield again


# -- postgres


@asynccontextmanager
async def postgres_opened(url: str, *, holder: PostgresHolder | None = None, **config: Any) -> AsyncIterator[Store]:
    """Open a store whose patience is short."""
    settings = PostgresConfig(url, **{"timeout": 0.5, "lock_timeout": 0.05, "lease": 0.4, **config})
    store = await PostgresStore.open(settings, holder=holder)
    try:
        yield store
    finally:
        await store.aclose(leave=holder is None)


_FULL: Final = """
    CREATE OR REPLACE FUNCTION warren.no_room() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
    CREATE TRIGGER no_room BEFORE INSERT ON warren.messages FOR EACH STATEMENT EXECUTE FUNCTION warren.no_room();
"""


@asynccontextmanager
async def _postgres_full(_path: Path) -> AsyncIterator[tuple[Store, Switch]]:
    with database() as url:
        name = name_in(url)
        async with postgres_opened(url) as store:
            yield (
                store,
                Switch(
                    lambda: server().run(name, _FULL),
                    lambda: server().run(name, "DROP TRIGGER no_room ON warren.messages"),
                ),
            )


_TABLES: Final = "warren.sessions, warren.messages, warren.holders, warren.writers"


@asynccontextmanager
async def _postgres_locked(_path: Path) -> AsyncIterator[tuple[Store, Switch]]:
    with database() as url, psycopg.connect(url, autocommit=True) as other:
        async with postgres_opened(url, lease=60.0) as store:
            begin = f"BEGIN; LOCK TABLE {_TABLES} IN EXCLUSIVE MODE"
            yield store, Switch(lambda: other.execute(begin.encode()), lambda: other.execute(b"ROLLBACK"))


@asynccontextmanager
async def _postgres_damaged(_path: Path, row: Row) -> AsyncIterator[Store]:
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, *_stored(row))
        table, column, where = _ROWS[row]
        where = where.replace("FROM sessions", "FROM warren.sessions")
        change = f"UPDATE warren.{table} SET {column} = '\"' WHERE {where} RETURNING 1"  # noqa: S608 - see _ROWS
        assert server().run(name_in(url), change)
        async with postgres_opened(url) as store:
            yield store


# A process counts as alive until its grace is over, and as long as the server has its connection.
_ALIVE: Final = """
    SELECT 1 FROM warren.holders WHERE graced_until > clock_timestamp() OR EXISTS (
        SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = key::oid
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""


@asynccontextmanager
async def _postgres_crashed(
    _path: Path, first: Operation[None], second: Operation[None], moment: int
) -> AsyncIterator[Crash]:
    """At each moment one more piece gets over the wire, to the server or back; then the process is gone."""
    with database() as url:
        async with wire_to(url) as wire:
            store = await PostgresStore.open(PostgresConfig(wire.url, timeout=0.2, lease=0.4))
            await every(store, first)
            wire.fail_at = wire.carried + moment
            (outcome,) = await store.write([second])
            reached = wire.cuts > 0
            wire.closed = True
            wire.cut()
            await store.aclose()
        while server().run(name_in(url), _ALIVE):  # noqa: ASYNC110 - it is the clock of the server that counts
            await trio.sleep(0.01)
        yield Crash(outcome is None, reached, lambda: postgres_opened(url))


@asynccontextmanager
async def _postgres_unknown(
    _path: Path,
    first: Operation[None],
    second: Operation[None],
    committed: bool,  # noqa: FBT001 - a column of a test's parameters
) -> AsyncIterator[Store]:
    with database() as url:
        async with wire_to(url) as wire:
            config = PostgresConfig(wire.url, timeout=0.2, lease=60.0)
            holder = PostgresHolder.of(config)
            store = await PostgresStore.open(config, holder=holder)
            await every(store, first)
            wire.fail_way, wire.carried, wire.fail_at = "down" if committed else "up", 0, 1
            (outcome,) = await store.write([second])
            assert isinstance(outcome, StoreError)
            assert (outcome.cause, outcome.retryable) == ("outcome_unknown", False)
            await store.aclose(leave=False)
        async with postgres_opened(url, holder=holder) as again:
            yield again


# -- the homes

OWN_MEMORY: Final = "the rows are objects of this process: "
FAULTS: Final[dict[str, FaultsOf]] = {
    "ephemeral": FaultsOf(
        full=Impossible(OWN_MEMORY + "without room for them the process ends"),
        locked=Impossible(OWN_MEMORY + "no other process can lock them"),
        damaged=Impossible(OWN_MEMORY + "they are never read back from bytes"),
        crashed=Impossible(OWN_MEMORY + "they end with it"),
        unknown=Impossible("an operation is applied by a plain call, which returns or raises"),
    ),
    "sqlite": FaultsOf(full=_full, locked=_locked, damaged=_damaged, crashed=_crashed, unknown=_unknown),
    "postgres": FaultsOf(
        full=_postgres_full,
        locked=_postgres_locked,
        damaged=_postgres_damaged,
        crashed=_postgres_crashed,
        unknown=_postgres_unknown,
    ),
}
