"""A failing disk: typed errors, nothing half-written, and the store goes on when the disk does."""

import errno
import os
from pathlib import Path

import apsw
import attrs
import pytest

from tests.faults import Disk, faulty_disk
from tests.storage.samples import causes, opened, turn, written
from warren.base.errors import SessionNotFoundError, StoreError
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.queries import ANY_TENANT, SessionList, SessionRow, StoredMessages
from warren.storage.runner import Runner, inline_runner, thread_runner
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.faults import translate
from warren.storage.sqlite.file import FILE_NAME


@attrs.frozen
class Fault:
    operation: str
    raised: type[Exception]
    cause: str
    retryable: bool = True


FAULTS = [
    pytest.param(Fault("write", apsw.FullError, "disk_full"), id="no space"),
    pytest.param(Fault("write", apsw.IOError, "io_error"), id="write fails"),
    pytest.param(Fault("sync", apsw.IOError, "io_error"), id="flush fails"),
    pytest.param(Fault("write", apsw.ReadOnlyError, "read_only", retryable=False), id="read-only"),
]


@pytest.mark.parametrize("runner", [inline_runner, thread_runner])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_write_on_a_failing_disk(tmp_path: Path, fault: Fault, runner: Runner) -> None:
    """Each member of the group fails with the cause, reads go on, and once the disk works the same turns are stored."""
    group = [turn("a", 1), turn("b")]
    with faulty_disk() as disk:
        async with opened(tmp_path, runner=runner) as store:
            await written(store, turn("a", 0))
            setattr(disk, fault.operation, fault.raised)
            for _ in range(2):
                outcomes = await store.write(group)
                assert causes(outcomes) == [fault.cause] * 2
                assert [outcome.retryable for outcome in outcomes] == [fault.retryable] * 2
                assert [outcome.session_id for outcome in outcomes] == ["a", "b"]
                assert await store.read(SessionList("default")) == [turn("a", 0).record]
                assert (await store.read(StoredMessages("a")))[1] == 2
            disk.heal()
            await written(store, *group)
            assert (await store.read(StoredMessages("a")))[1] == 4
    _check_file(tmp_path, sessions=2)


def _check_file(path: Path, sessions: int) -> None:
    db = apsw.Connection(str(path / "store" / FILE_NAME))
    assert db.pragma("integrity_check") == "ok"
    assert db.execute("SELECT count(*) FROM sessions").get == sessions
    db.close()


async def test_what_still_fits_is_stored(tmp_path: Path) -> None:
    """On a disk that fills up, the member that is too large fails and the small ones of its group are stored."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, turn("first"))
            disk.room = 200_000
            outcomes = await store.write([turn("a"), turn("huge", text="x" * 1_000_000), turn("b")])
            assert causes(outcomes) == ["ok", "disk_full", "ok"]
            disk.heal()
            assert [record.session_id for record in await store.read(SessionList("default"))] == ["a", "b", "first"]
    _check_file(tmp_path, sessions=3)


async def test_a_commit_that_was_not_flushed_is_not_there_after_a_crash(tmp_path: Path) -> None:
    """A turn whose flush failed was refused; it is absent now, and after the next writer came."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, turn("a", 0))
            disk.sync = apsw.IOError
            assert causes(await store.write([turn("a", 1)])) == ["io_error"]
            assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 0).record
            disk.heal()
            await written(store, turn("b"))
    async with opened(tmp_path) as store:
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", 0).record


async def test_a_read_on_a_failing_disk(tmp_path: Path) -> None:
    """A read that the disk refuses is StoreError(cause="io_error"), and the next one works when the disk does."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, turn("a", text="x" * 50_000))
        async with opened(tmp_path) as store:
            disk.read = apsw.IOError
            with pytest.raises(StoreError) as raised:
                await store.read(StoredMessages("a"))
            assert (raised.value.cause, raised.value.retryable) == ("io_error", True)
            disk.heal()
            assert (await store.read(StoredMessages("a")))[1] == 2


async def test_a_log_that_is_cut_off(tmp_path: Path) -> None:
    """A file that ends too early is a damaged one, for reads and for the doctor; the disk is not to blame."""
    async with opened(tmp_path) as store:
        await written(store, *(turn(f"s{number}", text="word " * 5_000) for number in range(30)))
        log = tmp_path / "store" / f"{FILE_NAME}-wal"
        os.truncate(log, log.stat().st_size // 2)
        with pytest.raises(StoreError, match="it or its log ends too early") as raised:
            await store.read(StoredMessages("s4"))
        assert (raised.value.cause, raised.value.retryable) == ("corrupt", False)
        assert examine(StoreConfig(tmp_path / "store")).store.integrity == "failed"


async def test_a_store_can_be_read_on_a_full_disk(tmp_path: Path) -> None:
    """Opening and reading an existing store writes nothing to its file, so a full disk does not hide the sessions."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
    with faulty_disk() as disk:
        disk.room = 0
        async with opened(tmp_path) as store:
            assert await store.read(SessionList("default")) == [turn("a").record]
            assert (await store.read(StoredMessages("a")))[1] == 2
            assert causes(await store.write([turn("b")])) == ["disk_full"]


async def test_creating_a_store_on_a_full_disk(tmp_path: Path) -> None:
    """A store that cannot be created says why, and is created once there is room."""
    with faulty_disk() as disk:
        disk.room = 10_000
        with pytest.raises(StoreError) as raised:
            await SqliteStore.open(StoreConfig(tmp_path / "store"), runner=inline_runner)
        assert raised.value.cause == "disk_full"
        assert str(tmp_path / "store" / FILE_NAME) in raised.value.message
        disk.heal()
        async with opened(tmp_path) as store:
            await written(store, turn("a"))


@pytest.mark.parametrize("fault", ["write", "sync"])
async def test_closing_on_a_failing_disk_loses_nothing(tmp_path: Path, fault: str) -> None:
    """A close that cannot move the log into the file does not raise; the log is still there for the next opening."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, turn("a"))
            setattr(disk, fault, apsw.IOError)
            await store.aclose()
    async with opened(tmp_path) as store:
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a").record


async def test_the_disk_counts_what_it_does() -> None:
    """The faulty disk gives way at its last byte, and not before."""
    disk = Disk(room=10)
    disk.on_write(6, 6)
    disk.on_write(9, 4)
    with pytest.raises(apsw.FullError):
        disk.on_write(1, 1)
    disk.on_write(3, 0)
    assert disk.written == 18


@pytest.mark.parametrize(
    ("raised", "cause", "retryable"),
    [
        (apsw.LockedError("x"), "locked", True),
        (apsw.CorruptError("x"), "corrupt", False),
        (apsw.exception_for(apsw.SQLITE_IOERR_SHORT_READ), "corrupt", False),
        (apsw.exception_for(apsw.SQLITE_IOERR_CORRUPTFS), "corrupt", False),
        (apsw.exception_for(apsw.SQLITE_IOERR_READ), "io_error", True),
        (apsw.NoMemError("x"), "out_of_memory", True),
        (apsw.TooBigError("x"), "too_big", False),
        (apsw.PermissionsError("x"), "permission", False),
        (apsw.CantOpenError("x"), "cannot_open", False),
        (apsw.MisuseError("x"), "database_error", False),
        (MemoryError(), "out_of_memory", True),
        (PermissionError(errno.EACCES, "x"), "permission", False),
        (OSError(errno.ENOSPC, "x"), "disk_full", True),
        (OSError(errno.EROFS, "x"), "read_only", False),
        (OSError(errno.EIO, "x"), "io_error", True),
        (OSError(errno.ENAMETOOLONG, "x"), "cannot_open", False),
        (OverflowError("x"), "unstorable", False),
    ],
)
def test_what_each_fault_is_called(raised: Exception, cause: str, retryable: bool) -> None:  # noqa: FBT001 - a column
    """Every fault has one cause, says whether to try again, and keeps what was raised."""
    error = translate(raised, "session store", session_id="a")
    assert isinstance(error, StoreError)
    assert (error.cause, error.retryable, error.session_id) == (cause, retryable, "a")
    assert error.__cause__ is not None


def test_our_own_errors_pass_as_they_are() -> None:
    """An operation's own refusal is not wrapped."""
    error = SessionNotFoundError("no such session", session_id="a")
    assert translate(error, "session store", session_id="b") is error
