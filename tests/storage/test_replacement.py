"""A store whose file is replaced, moved or merely touched under an open connection."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest
import trio
import trio.testing

from tests.faults import faulty_disk
from tests.storage.samples import causes, opened, turn, written
from warren.base.errors import StoreError
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import back_up
from warren.storage.projection.file_feed import FileFeed
from warren.storage.queries import KnownTenants, SessionList
from warren.storage.sqlite.file import FILE_NAME

R = TypeVar("R")


def checkpointed(path: Path) -> None:
    """Move the log into the file, as another program does, without a commit."""
    db = apsw.Connection(str(path))
    ((busy, pages, moved),) = db.execute("PRAGMA wal_checkpoint").fetchall()
    assert not busy
    assert pages == moved
    db.close()


def touched(path: Path) -> None:
    """Give the file another time."""
    os.utime(path, (1, 1))


def descriptors() -> set[str]:
    """Return what this process has open."""
    return {str(each.readlink()) for each in Path("/proc/self/fd").glob("*") if each.is_symlink()}


def written_over(backup: Path, store: Path) -> None:
    """Write a backup over the file, and remove its log first."""
    for ending in ("-wal", "-shm"):
        (store / f"{FILE_NAME}{ending}").unlink()
    shutil.copyfile(backup, store / FILE_NAME)


def renamed(backup: Path, store: Path) -> None:
    """Put a backup in the place of the file by its name."""
    shutil.copy(backup, store / "new")
    (store / "new").rename(store / FILE_NAME)


@pytest.mark.parametrize("change", [checkpointed, touched])
async def test_a_file_that_another_program_uses_has_not_gone_back(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    """However often its time changes: every turn is stored, under the same leases."""
    async with opened(tmp_path) as store:
        for number in range(5):
            await written(store, turn(f"{number}"))
            change(tmp_path / "store" / FILE_NAME)
        await written(store, turn("last"))
        assert store.went_back == 0
        assert len(await store.read(SessionList("default"))) == 6


async def test_a_file_that_was_moved_away_for_a_while(tmp_path: Path) -> None:
    """It keeps its log, with the turns that are nowhere else."""
    path = tmp_path / "store" / FILE_NAME
    async with opened(tmp_path) as store:
        await written(store, turn("kept"))
        path.rename(tmp_path / "away")
        assert causes(await store.write([turn("lost")])) == ["lease_lost"]
        (tmp_path / "away").rename(path)
        await written(store, turn("next"))
        assert {"kept", "next"} <= {each.session_id for each in await store.read(SessionList("default"))}


async def test_calls_may_be_tried_again_while_a_backup_is_on_its_way(tmp_path: Path) -> None:
    """Writes, reads and renewals say so; what is stored once it is there is stored there."""
    path = tmp_path / "store" / FILE_NAME
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        back_up(StoreConfig(tmp_path / "store"), tmp_path / "backup")
        for each in path.parent.glob(f"{FILE_NAME}*"):
            each.unlink()
        assert causes(await store.write([turn("b")])) == ["lease_lost"]
        (refused,) = await store.write([turn("b")])
        found = [refused]
        for call in (store.renew, partial(store.read, KnownTenants()), store.secret):
            with pytest.raises(StoreError) as raised:
                await call()
            found.append(raised.value)
        assert [(each.cause, each.retryable) for each in found] == [("cannot_open", True)] * 4
        shutil.copy(tmp_path / "backup", path)
        await written(store, turn("b"))
        assert [each.session_id for each in await store.read(SessionList("default"))] == ["a", "b"]


async def test_a_call_behind_the_one_that_finds_it_out(tmp_path: Path) -> None:
    """It is refused, may be tried again, and has written nothing to the former file."""
    path = tmp_path / "store" / FILE_NAME

    async def slow(function: Callable[[], R]) -> R:
        await trio.testing.wait_all_tasks_blocked()
        return function()

    async with opened(tmp_path, runner=slow) as store:
        await written(store, turn("a"))
        back_up(StoreConfig(tmp_path / "store"), tmp_path / "store" / "new")
        (tmp_path / "store" / "new").rename(path)
        found: list[Any] = []

        async def write() -> None:
            found.extend(await store.write([turn("b")]))

        async def ask_for_secret() -> None:
            with pytest.raises(StoreError) as raised:
                await store.secret()
            found.append(raised.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.renew)
            await trio.lowlevel.checkpoint()  # tasks that are started together begin in any order
            nursery.start_soon(write)
            nursery.start_soon(ask_for_secret)
        assert [(each.cause, each.retryable) for each in found] == [("lease_lost", True)] * 2
        await written(store, turn("b"))


async def test_a_renewal_that_failed_is_not_missed(tmp_path: Path) -> None:
    """A full disk refuses it, a turn is stored after it: the next renewal finds the store as it was left."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, turn("a"))
            disk.write = apsw.FullError
            with pytest.raises(StoreError, match="full"):
                await store.renew()
            disk.heal()
            await written(store, turn("b"))
            await store.renew()
            assert store.went_back == 0


async def test_a_read_of_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """It finds that the store has gone back, without a write; the next one reads the file that is there now."""
    path = tmp_path / "store" / FILE_NAME
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        back_up(StoreConfig(tmp_path / "store"), tmp_path / "new")
        await written(store, turn("gone"))
        (tmp_path / "new").rename(path)
        with pytest.raises(StoreError) as raised:
            await store.read(SessionList("default"))
        assert (raised.value.cause, raised.value.retryable, store.went_back) == ("lease_lost", True, 1)
        assert [each.session_id for each in await store.read(SessionList("default"))] == ["a"]


async def test_a_store_that_is_late_keeps_the_log_of_one_that_goes_on_already(tmp_path: Path) -> None:
    """Several of its reads find the file replaced at once; what the other one has stored in the new file stays."""
    reads_begun, go_on = trio.Semaphore(0), trio.Event()
    waits = False

    async def second_read_waits(function: Callable[[], R]) -> R:
        if waits and reads_begun.value == 0:
            reads_begun.release()
            await go_on.wait()
        return function()

    async with opened(tmp_path) as first, opened(tmp_path, runner=second_read_waits) as late:
        await written(first, turn("a"))
        await written(late, turn("b"))
        back_up(StoreConfig(tmp_path / "store"), tmp_path / "backup")
        renamed(tmp_path / "backup", tmp_path / "store")
        assert causes(await first.write([turn("lost")])) == ["lease_lost"]
        await written(first, turn("kept"))
        waits = True

        async def read() -> None:
            with pytest.raises(StoreError):
                await late.read(SessionList("default"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await reads_begun.acquire()
            reads_begun.release()
            await read()
            go_on.set()
        await late.read(SessionList("default"))
        await written(first, turn("next"))
        assert first.went_back == 1
        assert [each.session_id for each in await late.read(SessionList("default"))] == ["a", "b", "kept", "next"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are found in /proc")
async def test_a_store_that_is_replaced_with_its_folders_keeps_none_of_them_open(tmp_path: Path) -> None:
    """Writers queue at the folder that is there now, with the processes that open the store later."""
    path = tmp_path / "store" / FILE_NAME
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        back_up(StoreConfig(tmp_path / "store"), tmp_path / "backup")
        for each in path.parent.glob(f"{FILE_NAME}*"):
            each.unlink()
        shutil.rmtree(path.parent / "holders")
        assert causes(await store.write([turn("b")])) == ["lease_lost"]
        shutil.copy(tmp_path / "backup", path)
        await written(store, turn("b"))
        held = descriptors()
        assert f"{path.parent / 'holders'} (deleted)" not in held
        assert str(path.parent / "holders") in held


SESSIONS_THERE = """
import sys, apsw
for session_id, in apsw.Connection(sys.argv[1]).execute("SELECT session_id FROM sessions ORDER BY 1"):
    print(session_id)
"""


@pytest.mark.outside
@pytest.mark.parametrize("before", [True, False], ids=["open_before", "opened_between"])
@pytest.mark.parametrize("replace", [written_over, renamed])
async def test_projections_do_not_keep_the_log_of_the_former_file(
    replace: Callable[[Path, Path], None], *, before: bool, tmp_path: Path
) -> None:
    """The store opens the new file once they have let go of the former one: every process finds its commits."""
    config, path = StoreConfig(tmp_path / "store"), tmp_path / "store" / FILE_NAME
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        back_up(config, tmp_path / "backup")
        await store.write([turn(f"gone-{number}") for number in range(30)])
        feed = FileFeed(config) if before else None
        if feed is not None:
            feed.newest()
        replace(tmp_path / "backup", config.path)
        if feed is None:
            feed = FileFeed(config)
            feed.newest()
        assert causes(await store.write([turn("b")])) == ["lease_lost"]
        with pytest.raises(StoreError, match="opened anew"):
            FileFeed(config)
        assert causes(await store.write([turn("b")])) == ["cannot_open"]
        feed.close()
        feed.close()
        await written(store, turn("b"))
        command = (sys.executable, "-c", SESSIONS_THERE, str(path))
        found = await trio.run_process(command, capture_stdout=True)
        assert found.stdout.decode().split() == ["a", "b"]
        FileFeed(config).close()


GOES_ON = """
import os, select, shutil, sys, trio
from pathlib import Path
from tests.storage.samples import opened, turn, written
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import back_up

folder = Path(sys.argv[1])

def pause(event, args):
    if event == "os.remove" and str(args[0]).endswith("-wal"):
        print("between", flush=True)
        select.select([sys.stdin], [], [], 0.5)

async def main():
    async with opened(folder) as store:
        await written(store, turn("a"))
        back_up(StoreConfig(folder / "store"), folder / "new")
        await store.write([turn(f"gone-{number}") for number in range(30)])
        (folder / "new").rename(folder / "store" / "sessions.sqlite3")
        await store.write([turn("b")])
        sys.addaudithook(pause)
        await written(store, turn("b"))
        os._exit(0)

trio.run(main)
"""


@pytest.mark.outside
def test_projections_of_another_process_wait_while_a_store_removes_the_former_log(tmp_path: Path) -> None:
    """They would index the former log for the new file, and what the store then stores would be in no log."""
    command = (sys.executable, "-c", GOES_ON, str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as store:
        assert store.stdin is not None
        assert store.stdout is not None
        assert store.stdout.readline() == b"between\n"
        feed = FileFeed(StoreConfig(tmp_path / "store"))
        feed.newest()
        store.stdin.close()
        assert store.wait() == 0
    feed.close()
    with contextlib.closing(apsw.Connection(str(tmp_path / "store" / FILE_NAME))) as db:
        assert db.execute("SELECT session_id FROM sessions ORDER BY 1").fetchall() == [("a",), ("b",)]
