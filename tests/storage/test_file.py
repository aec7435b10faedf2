"""The file: whose it is, what it refuses to be, and what others can read of it."""

import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import pytest
import trio

from tests.storage.samples import opened, turn, written
from warren.base.errors import StoreError
from warren.conversation.memory import MemoryConfig
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import MEMORY_FILE, back_up
from warren.storage.maintenance.doctor import examine
from warren.storage.maintenance.memory import examine_memory
from warren.storage.memory import FileMemory
from warren.storage.operations import Delete
from warren.storage.queries import ANY_TENANT, SessionList, SessionRow, SessionStart
from warren.storage.runner import inline_runner, thread_runner
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.file import FILE_NAME, VERSION, open_writer


def mode(path: Path) -> int:
    """Return a file's permissions."""
    return stat.S_IMODE(path.stat().st_mode)


async def refused(path: Path) -> StoreError:
    """Return the error that opening the store in a folder raises."""
    with pytest.raises(StoreError) as raised:
        await SqliteStore.open(StoreConfig(path), runner=inline_runner)
    return raised.value


async def test_only_the_owner_can_read_what_is_created(tmp_path: Path) -> None:
    """Folder and files are made for their owner alone, whatever the umask, the side files included."""
    before = os.umask(0)
    try:
        async with opened(tmp_path / "deep") as store:
            await written(store, turn("a"))
            folder = tmp_path / "deep" / "store"
            assert mode(folder) == 0o700
            files = sorted(folder.iterdir())
            names = ["holders", FILE_NAME, f"{FILE_NAME}-shm", f"{FILE_NAME}-wal"]
            assert [path.name for path in files] == names
            assert [mode(path) for path in files] == [0o700, 0o600, 0o600, 0o600]
            assert [mode(path) for path in (folder / "holders").iterdir()] == [0o600]
    finally:
        os.umask(before)


async def test_modes_of_what_exists_are_left_alone(tmp_path: Path) -> None:
    """A folder that is there keeps its mode."""
    (tmp_path / "store").mkdir(mode=0o755)
    (tmp_path / "store").chmod(0o755)
    async with opened(tmp_path):
        assert mode(tmp_path / "store") == 0o755


async def test_reading_alone_never_waits_for_a_lock(tmp_path: Path) -> None:
    """Opening, reading and closing go through at once while another process writes."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
    other = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
    other.execute("BEGIN IMMEDIATE")
    begun = trio.current_time()
    async with opened(tmp_path, busy_timeout=2.0, runner=thread_runner) as store:
        assert len(await store.read(SessionList("default"))) == 1
    assert trio.current_time() - begun < 1
    other.execute("ROLLBACK")
    other.close()


async def test_closing_leaves_one_file(tmp_path: Path) -> None:
    """After a close everything is in the one file, which can be copied away; nobody holds anything."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["holders", FILE_NAME]
    assert list((tmp_path / "store" / "holders").iterdir()) == []
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    async with opened(tmp_path) as store:
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a").record


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_journal_is_as_configured(tmp_path: Path, synchronous: str, number: int) -> None:
    """The file is in WAL mode and the writer flushes as the config says."""
    db = open_writer(StoreConfig(tmp_path, synchronous=synchronous))  # type: ignore[arg-type]
    assert db.pragma("journal_mode") == "wal"
    assert db.pragma("synchronous") == number
    db.close()


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file of a later version is not touched, and the message says what to do."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
    path = tmp_path / "store" / FILE_NAME
    db = apsw.Connection(str(path))
    db.pragma("user_version", VERSION + 1)
    db.close()
    before = path.read_bytes()
    error = await refused(tmp_path / "store")
    assert (error.cause, error.retryable) == ("newer_schema", False)
    assert f"version {VERSION + 1}" in error.message
    assert str(path) in error.message
    assert path.read_bytes() == before


async def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    """Another program's SQLite file is not migrated over."""
    path = tmp_path / FILE_NAME
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    assert (await refused(tmp_path)).cause == "not_a_store"
    assert path.read_bytes() == before


async def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """A file that is no database is named and left alone."""
    path = tmp_path / FILE_NAME
    path.write_bytes(b"dear diary, " * 100)
    error = await refused(tmp_path)
    assert (error.cause, error.retryable) == ("not_a_database", False)
    assert str(path) in error.message
    assert path.read_bytes() == b"dear diary, " * 100


async def test_a_truncated_file_is_reported_as_damaged(tmp_path: Path) -> None:
    """Opening or reading a file that lost its end is StoreError(cause="corrupt"), never a wrong answer."""
    async with opened(tmp_path) as store:
        await written(store, *(turn(f"s{n}", text="x" * 3000) for n in range(50)))
    path = tmp_path / "store" / FILE_NAME
    os.truncate(path, path.stat().st_size // 2)

    async def read_all() -> None:
        async with opened(tmp_path) as store:
            for n in range(50):
                await store.read(SessionStart(f"s{n}"))

    with pytest.raises(StoreError) as raised:
        await read_all()
    assert (raised.value.cause, raised.value.retryable) == ("corrupt", False)


async def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A store below a plain file, or whose file is a folder, says that it cannot be opened."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert (await refused(path)).cause == "cannot_open"
    (tmp_path / "folder" / FILE_NAME).mkdir(parents=True)
    assert (await refused(tmp_path / "folder")).cause == "cannot_open"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
async def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """If the user may not write, the store says that it may not be opened."""
    await trio.Path(tmp_path).chmod(0o500)
    assert (await refused(tmp_path / "store")).cause == "permission"


async def test_an_open_that_fails_can_be_repeated(tmp_path: Path) -> None:
    """When the hindrance of an open is gone, so is the error: nothing was left locked."""
    path = tmp_path / "store" / FILE_NAME
    path.parent.mkdir()
    path.write_bytes(b"x" * 1000)
    await refused(tmp_path / "store")
    path.unlink()
    async with opened(tmp_path) as store:
        await written(store, turn("a"))


async def test_the_file_can_be_read_without_us(tmp_path: Path) -> None:
    """Any SQLite shell sees text it can query as JSON, and times it can format."""
    async with opened(tmp_path) as store:
        await written(store, turn("a", text="grüße", labels={"team": "red"}))
    db = sqlite3.connect(tmp_path / "store" / FILE_NAME)
    ((session_id, at, details),) = db.execute(
        "SELECT session_id, datetime(updated_at / 1000000, 'unixepoch'), details FROM sessions"
    )
    assert (session_id, at) == ("a", "2026-03-01 12:00:00")
    assert json.loads(details)["last_assistant_text"] == "grüße"
    bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM messages ORDER BY position")]
    assert [body["role"] for body in bodies] == ["user", "assistant"]
    assert db.execute("SELECT name, value FROM labels").fetchall() == [("team", "red")]
    assert db.execute("SELECT DISTINCT typeof(body) FROM events").fetchall() == [("text",)]
    db.close()


async def test_what_is_deleted_is_gone_from_every_table(tmp_path: Path) -> None:
    """After a delete only the tombstone's id is left of a session."""
    async with opened(tmp_path) as store:
        await written(store, turn("a", labels={"team": "red"}), Delete("a"))
    db = sqlite3.connect(tmp_path / "store" / FILE_NAME)
    for table in ("messages", "events", "labels"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]  # noqa: S608 - our own names
    ((state, rest),) = db.execute("SELECT state, model || labels || details FROM sessions")
    assert (state, rest) == (2, "{}{}")
    db.close()


async def test_many_who_make_the_file_at_once(tmp_path: Path) -> None:
    """Whoever comes for a file that is being made waits and finds it made, also where SQLite itself would not wait."""
    for attempt in range(20):
        config = StoreConfig(tmp_path / str(attempt))
        stores: list[SqliteStore] = []

        async def come(config: StoreConfig = config, stores: list[SqliteStore] = stores) -> None:
            stores.append(await SqliteStore.open(config, runner=thread_runner))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(come)
        for store in stores:
            assert await store.read(SessionList("default")) == []
            await store.aclose()


SOMETHING_ELSE: Final[dict[str, Callable[[Path], None]]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", SOMETHING_ELSE)
async def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A FIFO, a folder or a device in the file's place is named at once: opening a FIFO would wait for ever."""
    SOMETHING_ELSE[kind](tmp_path / FILE_NAME)
    error = await refused(tmp_path)
    assert (error.cause, error.retryable) == ("cannot_open", False)
    assert f"{FILE_NAME} is {kind}, not a regular file" in error.message
    for look in (examine, partial(back_up, target=tmp_path / "copy.sqlite3")):
        with pytest.raises(StoreError) as caught:
            look(StoreConfig(tmp_path))
        assert caught.value.cause == "cannot_open"
    SOMETHING_ELSE[kind](tmp_path / MEMORY_FILE)
    with pytest.raises(StoreError) as caught:
        await FileMemory.open(MemoryConfig(tmp_path), runner=inline_runner)
    assert caught.value.cause == "cannot_open"
    with pytest.raises(StoreError) as caught:
        examine_memory(tmp_path)
    assert caught.value.cause == "cannot_open"


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """The system's limit on a file's size is `disk_full`, not a broken disk, and the store goes on below it."""
    assert run_alone(LIMITED, tmp_path) == ["disk_full", "ok"]


LIMITED = """
import resource, signal, sys, trio
from pathlib import Path
from tests.storage.samples import causes, opened, turn, written

async def main():
    async with opened(Path(sys.argv[1])) as store:
        await written(store, turn("a"))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        print(*causes(await store.write([turn("b", text="x" * 1_000_000)])))
        print(*causes(await store.write([turn("b")])))

trio.run(main)
"""


def test_examining_a_store_beside_which_no_file_may_grow(tmp_path: Path) -> None:
    """A reader, too, makes files beside a database: that there is no room for them is no broken disk."""
    assert run_alone(EXAMINED_IN_NO_ROOM, tmp_path) == ["disk_full", "1"]


EXAMINED_IN_NO_ROOM = """
import resource, signal, sys, trio
from pathlib import Path
from tests.storage.samples import opened, turn, written
from warren.settings.config import StoreConfig
from warren.base.errors import StoreError
from warren.storage.maintenance.doctor import examine

async def main():
    async with opened(Path(sys.argv[1])) as store:
        await written(store, turn("a"))

trio.run(main)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    examine(StoreConfig(Path(sys.argv[1]) / "store"))
except StoreError as exc:
    print(exc.cause)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(examine(StoreConfig(Path(sys.argv[1]) / "store")).store.sessions)
"""


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """The error names the folder's permission: the database itself could be written. A look at it writes nothing."""
    rights = "-dac_override,-dac_read_search"
    alone = ("setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}") if os.geteuid() == 0 else ()
    if alone and shutil.which("setpriv") is None:
        pytest.skip("root may do everything")
    try:
        assert run_alone(UNWRITABLE, tmp_path, *alone) == ["permission True", "1"]
    finally:
        (tmp_path / "store").chmod(0o755)


UNWRITABLE = """
import sys, trio
from pathlib import Path
from tests.storage.samples import opened, turn, written
from warren.settings.config import StoreConfig
from warren.base.errors import StoreError
from warren.storage.maintenance.doctor import examine
from warren.storage.sqlite import SqliteStore

folder = Path(sys.argv[1])

async def write():
    async with opened(folder) as store:
        await written(store, turn("a"))

trio.run(write)
config = StoreConfig(folder / "store")
config.path.chmod(0o555)
try:
    trio.run(SqliteStore.open, config)
except StoreError as exc:
    print(exc.cause, "its folder may not be written" in exc.message)
print(examine(config).store.sessions)
"""


def test_opening_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The limit is `disk_full` wherever it is met: in a new file, in a migration, and in the memory beside it."""
    *opened, indexed = run_alone(LIMITED_FROM_THE_START, tmp_path)
    for outcomes in opened:
        assert re.fullmatch(r"(disk_full )+(ok ?)+", outcomes), outcomes
    assert indexed == "disk_full ok"


LIMITED_FROM_THE_START = """
import resource, shutil, signal, sys, trio
from pathlib import Path
from tests.storage.samples import NOW
from warren.settings.config import StoreConfig
from warren.base.errors import StoreError
from warren.conversation.memory import MemoryConfig, MemoryEntry
from warren.storage.memory import FileMemory
from warren.storage.sqlite import SqliteStore

folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def outcome(work):
    try:
        found = await work
    except StoreError as exc:
        return exc.cause
    if isinstance(found, (SqliteStore, FileMemory)):
        await found.aclose()
    return "ok"

async def remember(folder):
    memory = await FileMemory.open(MemoryConfig(folder))
    limit(300_000)
    for text in ("word " * 100_000, "word"):
        yield await outcome(memory.index([MemoryEntry("a", 1, 1, text, NOW)]))
    await memory.aclose()

async def main():
    rooms = (0, 4_096, 20_000, 40_000, 70_000, 100_000, 1_000_000)
    for kind, opened in (
        ("old", lambda path: SqliteStore.open(StoreConfig(path))),
        ("new", lambda path: SqliteStore.open(StoreConfig(path))),
        ("memory", lambda path: FileMemory.open(MemoryConfig(path))),
    ):
        found = []
        for room in rooms:
            path = folder / f"{kind}-{room}"
            path.mkdir()
            if kind == "old":
                shutil.copy(sys.argv[2], path / "sessions.sqlite3")
            limit(room)
            found.append(await outcome(opened(path)))
            limit(resource.RLIM_INFINITY)
        print(*found)
    print(*[each async for each in remember(folder / "full")])

trio.run(main)
"""


def run_alone(program: str, folder: Path, *before: str) -> list[str]:
    """Run a program in a process of its own, where it may limit itself; return the lines that it wrote."""
    versions = Path(__file__).parent / "versions"
    command = [*before, sys.executable, "-c", program, str(folder), str(versions / "1.sqlite3")]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


READ_ONLY = """
import subprocess, sys, trio
from pathlib import Path
from tests.storage.samples import NOW, opened, turn, written
from warren.conversation.memory import MemoryConfig, MemoryEntry
from warren.storage.maintenance.memory import examine_memory
from warren.storage.memory import FileMemory
from warren.settings.config import StoreConfig
from warren.base.errors import StoreError
from warren.storage.operations import Lease, Release
from warren.storage.sqlite import SqliteStore
from warren.storage.maintenance.backup import back_up
from warren.storage.maintenance.doctor import examine, fix

folder = Path(sys.argv[1]) / "disk"
folder.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)

async def fill():
    async with opened(folder) as store:
        await written(store, turn("a"), Release("a", Lease(1)))

async def remember():
    memory = await FileMemory.open(MemoryConfig(folder / "store" / "memory"))
    await memory.index([MemoryEntry("a", 1, 1, "text", NOW)])
    await memory.aclose()

trio.run(fill)
trio.run(remember)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
config = StoreConfig(folder / "store")
report = examine(config, full=True)
print(report.healthy, report.store.read_only, report.store.sessions, *(each.message for each in report.findings))
for what in (lambda: fix(config, report), lambda: trio.run(SqliteStore.open, config)):
    try:
        what()
    except StoreError as exc:
        print(exc.cause)
copied = back_up(config, Path(sys.argv[1]) / "copy.sqlite3")
print(copied.sessions, copied.memory is not None, examine_memory(folder / "store" / "memory")[0].entries)
listed = [sys.executable, "-m", "warren", "sessions", "list", "--store", str(folder / "store")]
done = subprocess.run(listed, capture_output=True, text=True, cwd=folder)
print(done.returncode, done.stdout.split("\\t")[0], done.stderr)
"""


def test_a_read_only_disk(tmp_path: Path) -> None:
    """Doctor says why nothing can be stored; opening and fixing name it, a backup is made, and sessions are listed."""
    alone = ("unshare", "--map-root-user", "--mount")
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system does not let its users mount file systems of their own")
    assert run_alone(READ_ONLY, tmp_path, *alone) == [
        "False True 1 the disk is mounted read-only: nothing can be stored until it can be written again",
        "read_only",
        "read_only",
        "1 True 1",
        "0 a ",
    ]
