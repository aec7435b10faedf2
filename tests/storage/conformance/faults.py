"""The faults that the suite provokes in each home: a port, with one plug for each home.

A home says for each fault how the fault comes about, or as an `Impossible` why it cannot exist there.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import apsw
import attrs

from tests.faults import faulty_disk
from tests.storage.damaging import put
from tests.storage.samples import opened, turn, written
from tests.support.faulty_store import CrashError, Faults, FaultyStore
from warren.config import StoreConfig
from warren.storage import Operation, Store, inline_runner
from warren.storage.sqlite import Holder
from warren.storage.sqlite.file import FILE_NAME


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


Row = Literal["record", "message", "event"]
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
            its record, its message at position 1, or its event number 2.
        crashed: stores an operation, then dies at the given moment (from 1) of the commit of a second one.
        unknown: stores an operation; a second one ends without an answer, before its commit or after. Then opens the
            home again, in the same process.
    """

    full: Switched | Impossible
    locked: Switched | Impossible
    damaged: Damaged | Impossible
    crashed: Crashing | Impossible
    unknown: Unknown | Impossible


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
}


@asynccontextmanager
async def _damaged(path: Path, row: Row) -> AsyncIterator[Store]:
    async with opened(path) as store:
        await written(store, turn("a"), turn("a", 1), turn("b"))
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
}
