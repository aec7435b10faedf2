"""Copies of a store that is in use, and stores made of them."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import apsw
import attrs
import pytest
import trio

from tests.storage.processes import Process
from tests.storage.samples import NOW, kept, opened, step, turn, updated, wait, written
from tests.support.memories import memory_in, remembered
from warren.base.errors import SessionNotFoundError, StoreError
from warren.base.ids import new_session_id
from warren.conversation.memory import Chosen, MemoryEntry
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import Copied, back_up, memory_beside, restore
from warren.storage.maintenance.doctor import examine
from warren.storage.maintenance.memory import examine_memory
from warren.storage.memory.graph import FILE_NAME as INDEX
from warren.storage.memory_store import MemoryStore
from warren.storage.operations import Claim, Claimed, Commit, Delete, Lease, Release
from warren.storage.projection import Follower
from warren.storage.queries import (
    ANY_TENANT,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredMessages,
    WaitingSessions,
)
from warren.storage.rows import SEQ_STRIDE
from warren.storage.runner import inline_runner, thread_runner
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.file import FILE_NAME, open_writer

VERSIONS: Final = Path(__file__).parent / "versions"


async def filled(path: Path, sessions: int = 3) -> StoreConfig:
    """Store so many sessions of a turn, in good order; return where."""
    async with opened(path) as store:
        for session_id in (f"s{number}" for number in range(sessions)):
            await written(store, turn(session_id, labels={"k": "v"}), Release(session_id, Lease(1)))
        await written(store, turn("gone"), Delete("gone"))
    return StoreConfig(path / "store")


async def remember(config: StoreConfig, *texts: str) -> None:
    """Remember texts of the session s0."""
    memory = await memory_in(config.path / "memory")()
    await memory.index([MemoryEntry("s0", number, 1, text, NOW) for number, text in enumerate(texts)])
    await memory.aclose()


def names(folder: Path) -> set[str]:
    """Return the names of the files in a folder."""
    return {each.name for each in folder.iterdir() if each.is_file()}


async def holding(config: StoreConfig) -> dict[str, int]:
    """Return the sessions of a store and their messages."""
    store = await SqliteStore.open(config, runner=inline_runner)
    found = {
        record.session_id: (await store.read(StoredMessages(record.session_id)))[1]
        for record in await store.read(SessionList("default"))
    }
    await store.aclose()
    return found


# -- backup


async def test_a_backup_is_the_store_at_that_moment(tmp_path: Path) -> None:
    """It is one file for its owner alone that stands by itself, and holds what was there, to the row."""
    config = await filled(tmp_path)
    target = tmp_path / "out" / "backup.sqlite3"
    target.parent.mkdir()
    copied = back_up(config, target)
    assert copied == Copied(target, target.stat().st_size, 3, None)
    assert (names(target.parent), stat.S_IMODE(target.stat().st_mode)) == ({"backup.sqlite3"}, 0o600)
    db = apsw.Connection(str(target))
    assert (db.pragma("journal_mode"), db.pragma("integrity_check")) == ("delete", "ok")
    db.close()
    restore(target, StoreConfig(tmp_path / "new"))
    assert await holding(StoreConfig(tmp_path / "new")) == await holding(config) == {"s0": 2, "s1": 2, "s2": 2}
    assert examine(StoreConfig(tmp_path / "new"), full=True).healthy


async def test_an_open_turn_of_a_backup_can_go_on(tmp_path: Path) -> None:
    """With its calls and what they wait for at that moment, though its process lives on beside the backup."""
    first = attrs.evolve(step("a", calls=(kept(0, result="it rains"), kept(1))), waits=(wait(1, "question"),))
    async with opened(tmp_path) as store:
        await written(store, first)
        back_up(StoreConfig(tmp_path / "store"), tmp_path / "backup.sqlite3")
        later = Commit(first.record, base=(first.record.message_count, first.record.last_seq), settles=True)
        await written(store, later)
    restore(tmp_path / "backup.sqlite3", StoreConfig(tmp_path / "new" / "store"))
    async with opened(tmp_path / "new") as store:
        assert list(await store.read(WaitingSessions())) == ["a"]
        (claimed,) = await written(store, Claim("a"))
        assert (claimed.record.turn, claimed.calls) == (first.record.turn, first.calls)
        assert claimed.waits == first.waits
        assert claimed.record.last_seq > SEQ_STRIDE


async def test_a_backup_beside_writes(tmp_path: Path) -> None:
    """While turns are stored one after another, it is one consistent state, neither started over nor in their way."""
    async with opened(tmp_path, runner=thread_runner) as store:
        await written(store, *(turn("a", number, text="word " * 2_000) for number in range(400)))
        written_by_then, told = [400], list[tuple[int, int]]()
        other = apsw.Connection(str(tmp_path / "store" / FILE_NAME))

        def write(done: int, total: int) -> None:
            # From another connection, in the middle of the copy.
            told.append((done, total))
            other.execute("UPDATE sessions SET steps = steps + 1")
            written_by_then[0] += 1

        back_up(StoreConfig(tmp_path / "store"), tmp_path / "b", progress=write)
        other.close()
    assert len(told) > 3
    assert told[-1][0] == told[-1][1] == max(total for _, total in told)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    db = apsw.Connection(str(tmp_path / "b"))
    assert db.execute("SELECT steps FROM sessions").get == 400 < written_by_then[0]
    assert db.execute("SELECT count(*) FROM messages").get == 800
    db.close()


async def test_nobody_holds_what_is_in_a_copy(tmp_path: Path) -> None:
    """A session of a process that lives is free in the copy at once, above the numbers that one may have shown."""
    process = await Process.starting(tmp_path, "the gateway")
    await process.do(turn("a"))
    back_up(StoreConfig(tmp_path / "store"), tmp_path / "b")
    restore(tmp_path / "b", StoreConfig(tmp_path / "new" / "store"))
    assert examine(StoreConfig(tmp_path / "new" / "store")).holders == ()
    heir = await Process.starting(tmp_path / "new")
    assert (await heir.claim("a")).record.last_seq == 3 + 2 * SEQ_STRIDE
    assert isinstance(await process.claim("a"), Claimed)
    await heir.end()
    await process.end()


async def test_the_memory_goes_along(tmp_path: Path) -> None:
    """A remembered text is in a file beside the backup, comes back with it, and can be searched."""
    config = await filled(tmp_path)
    await remember(config, "the doors are blue", "the roof is green")
    copied = back_up(config, tmp_path / "b.sqlite3")
    assert copied.memory == memory_beside(tmp_path / "b.sqlite3") == tmp_path / "b.memory.sqlite3"
    assert stat.S_IMODE(copied.memory.stat().st_mode) == 0o600
    new = StoreConfig(tmp_path / "new")
    assert restore(tmp_path / "b.sqlite3", new).memory == new.path / "memory" / "memory.sqlite3"
    assert remembered(new.path / "memory") == remembered(config.path / "memory")
    assert not (new.path / "memory" / INDEX).exists()
    memory = await memory_in(new.path / "memory")()
    assert [hit.content for hit in await memory.search("blue doors")] == ["the doors are blue"]
    await memory.aclose()


async def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    """A file in the way stays, the memory's too; with force it is replaced, and an older memory goes with it."""
    config = await filled(tmp_path)
    target, beside = tmp_path / "b.sqlite3", tmp_path / "b.memory.sqlite3"
    for path in (target, beside):
        path.write_text("mine")
        with pytest.raises(StoreError, match="--force") as caught:
            back_up(config, target)
        assert (caught.value.cause, path.read_text()) == ("exists", "mine")
        if path is target:
            path.unlink()
    back_up(config, target, force=True)
    assert not beside.exists()
    back_up(config, target, force=True)
    assert names(tmp_path) == {"b.sqlite3"}


def spoilt(path: Path) -> None:
    """Damage a page in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)


async def test_a_damaged_store_is_no_backup(tmp_path: Path) -> None:
    """A backup that is not whole does not appear under the name, and the older backup stays."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    before = (tmp_path / "b").read_bytes()
    spoilt(config.path / FILE_NAME)
    with pytest.raises(StoreError) as caught:
        back_up(config, tmp_path / "b", force=True)
    assert caught.value.cause == "corrupt"
    assert ((tmp_path / "b").read_bytes(), names(tmp_path)) == (before, {"b"})


async def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    """Ended in its middle, there is no file, nor half of one."""
    config = await filled(tmp_path)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(config, tmp_path / "b", progress=interrupt)
    assert names(tmp_path) == set()


async def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """The error names the file and says why."""
    config = await filled(tmp_path)
    with pytest.raises(StoreError, match="nowhere") as caught:
        back_up(config, tmp_path / "nowhere" / "b")
    assert caught.value.cause == "cannot_open"
    with pytest.raises(StoreError) as caught:
        back_up(StoreConfig(tmp_path / "nothing"), tmp_path / "b")
    assert caught.value.cause == "missing"
    assert not (tmp_path / "nothing").exists()


async def test_a_store_is_not_replaced_by_its_backup(tmp_path: Path) -> None:
    """A file of a store is refused as a backup by its name, with force too: its own, another one's, and a memory."""
    config = await filled(tmp_path)
    await remember(config, "text")
    other = await filled(tmp_path / "other")
    alone = tmp_path / "alone" / "memory.sqlite3"
    shutil.copytree(config.path / "memory", alone.parent)
    (tmp_path / "link").symlink_to(config.path / FILE_NAME)
    mine = (config.path / FILE_NAME, config.path / "memory" / "memory.sqlite3", tmp_path / "link")
    for path in (*mine, other.path / FILE_NAME, other.path / "memory" / "memory.sqlite3", alone):
        for force in (True, False):
            with pytest.raises(StoreError, match=f"{path} belongs to a store") as caught:
                back_up(config, path, force=force)
            assert caught.value.cause == "exists"
    assert len(await holding(config)) == len(await holding(other)) == 3
    assert remembered(config.path / "memory") == remembered(alone.parent) == {("s0", 0): "text"}


async def test_a_file_that_is_open_is_not_replaced(tmp_path: Path) -> None:
    """A database in the place of the backup or of its memory stays while a process has it open."""
    config = await filled(tmp_path)
    await remember(config, "text")
    back_up(config, tmp_path / "b.sqlite3")
    for path in (tmp_path / "b.sqlite3", tmp_path / "b.memory.sqlite3"):
        db = apsw.Connection(str(path))
        db.pragma("journal_mode", "WAL")
        db.pragma("user_version", db.pragma("user_version"))  # which opens the log
        before = path.stat().st_ino
        with pytest.raises(StoreError, match=f"{path} is open in another process") as caught:
            back_up(config, tmp_path / "b.sqlite3", force=True)
        assert (caught.value.cause, path.stat().st_ino) == ("leased", before)
        db.close()
    back_up(config, tmp_path / "b.sqlite3", force=True)


@pytest.mark.parametrize("former", ["missing", "damaged", "whole"])
async def test_the_log_of_an_older_backup_goes(tmp_path: Path, former: str) -> None:
    """A log or a journal that was left beside the backup or its memory does not get into the new files."""
    config = await filled(tmp_path)
    await remember(config, "text")
    target, beside = back_up(config, tmp_path / "b.sqlite3").path, tmp_path / "b.memory.sqlite3"
    for path in (target, beside):
        db = apsw.Connection(str(path))
        db.pragma("journal_mode", "WAL")
        db.execute("CREATE TABLE stray (x); DROP TABLE sessions")
        log = path.with_name(f"{path.name}-wal").read_bytes()
        db.close()
        match former:
            case "missing":
                path.unlink()
            case "damaged":
                path.write_text("no database " * 1000)
        path.with_name(f"{path.name}-wal").write_bytes(log)
        path.with_name(f"{path.name}-journal").write_bytes(b"")
    back_up(config, target, force=former != "missing")
    assert names(tmp_path) == {"b.sqlite3", "b.memory.sqlite3"}
    restore(target, StoreConfig(tmp_path / "new"))
    assert await holding(StoreConfig(tmp_path / "new")) == await holding(config)
    assert remembered(tmp_path / "new" / "memory") == remembered(config.path / "memory")


STOPPED: Final = """
import sys, time
from pathlib import Path
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import back_up

def stop(done, total):
    print(flush=True)
    time.sleep(60)

back_up(StoreConfig(Path(sys.argv[1])), Path(sys.argv[2]), progress=stop)
"""


async def test_what_a_killed_backup_has_left_goes(tmp_path: Path) -> None:
    """The next backup of that name removes the beginning of a copy, but not one that a living process makes."""
    config = await filled(tmp_path)
    target = tmp_path / "out" / "b.sqlite3"
    target.parent.mkdir()
    command = [sys.executable, "-c", STOPPED, str(config.path), str(target)]
    start = partial(trio.lowlevel.open_process, command, stdout=subprocess.PIPE)
    alive, killed = await start(), await start()
    for process in (alive, killed):
        assert process.stdout is not None
        await process.stdout.receive_some()
    parts = [target.with_name(f".{target.name}.{process.pid}.part") for process in (alive, killed)]
    parts[1].with_name(f"{parts[1].name}-journal").write_bytes(b"")
    killed.kill()
    await killed.wait()
    assert all(part.exists() for part in parts)
    back_up(config, target)
    assert names(target.parent) == {target.name, parts[0].name}
    alive.kill()
    await alive.wait()
    back_up(config, target, force=True)
    assert names(target.parent) == {target.name}


@pytest.mark.parametrize("when", ["backup", "restore"])
async def test_a_session_that_is_deleted_between_the_snapshots(tmp_path: Path, when: str) -> None:
    """The copy has it, and remembers it again, in its own tenant; a text that was removed by itself stays removed."""
    config = await filled(tmp_path)
    await remember(config, "the doors are blue", "the roof is green")
    async with opened(tmp_path) as store:
        acme = turn("acme")
        await written(store, attrs.evolve(acme, record=attrs.evolve(acme.record, tenant="acme")))
    memory = await memory_in(config.path / "memory")()
    await memory.forget_texts(Chosen("s0", "default", position=0))

    async def forget(memory: MemoryStore) -> None:
        for session_id in ("s1", "acme", "gone"):
            await memory.forget(session_id)
        await memory.aclose()

    if when == "backup":
        await forget(memory)
    back_up(config, tmp_path / "b.sqlite3")
    if when == "restore":  # of a backup of an older version
        await memory.aclose()
        (tmp_path / "b.memory.sqlite3").rename(tmp_path / "memory.sqlite3")
        await forget(await memory_in(tmp_path)())
        (tmp_path / "memory.sqlite3").rename(tmp_path / "b.memory.sqlite3")
    restore(tmp_path / "b.sqlite3", StoreConfig(tmp_path / "new"))
    memory = await memory_in(tmp_path / "new" / "memory")()
    for session_id, tenant in (("s0", "default"), ("s1", "default"), ("acme", "acme")):
        texts = [MemoryEntry(session_id, number, 1, f"the doors are blue {number}", NOW) for number in range(3)]
        assert await memory.index(texts, tenant=tenant) == (2 if session_id == "s0" else 3)
        assert await memory.texts(tenant, [session_id]) == 3 - (session_id == "s0")
    with pytest.raises(SessionNotFoundError):
        await memory.index([MemoryEntry("gone", 1, 1, "text", NOW)])
    await memory.aclose()
    assert not [each for each in examine_memory(tmp_path / "new" / "memory")[1] if each.level == "problem"]


# -- restore


async def test_numbers_go_on_above_what_came_after_the_backup(tmp_path: Path) -> None:
    """Clients have seen events that are gone now: no other event gets their numbers."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    async with opened(tmp_path) as store:
        later = turn("new", 1)
        await written(store, attrs.evolve(updated(later, message_count=2), messages=()))
    restore(tmp_path / "b", config, force=True)
    async with opened(tmp_path) as store:
        assert await store.read(SessionRow("new", ANY_TENANT)) is None
        stored = await store.read(SessionStart("s0"))
        assert stored is not None
        assert stored.seq_floor == 3 + SEQ_STRIDE
        assert [row.seq for row in (await store.read(StoredEvents("s0"))).rows] == [1, 2, 3]


async def test_a_store_is_replaced_only_when_asked(tmp_path: Path) -> None:
    """Without force it stays; with it the store and its memory are those of the backup, and nothing else is left."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    await remember(config, "said later")
    with pytest.raises(StoreError) as caught:
        restore(tmp_path / "b", config)
    assert caught.value.cause == "exists"
    assert remembered(config.path / "memory")
    async with opened(tmp_path) as store:
        await written(store, turn("later"))
    restore(tmp_path / "b", config, force=True)
    assert await holding(config) == {"s0": 2, "s1": 2, "s2": 2}
    assert names(config.path / "memory") == set()


async def test_projections_of_what_is_gone_go(tmp_path: Path) -> None:
    """No file is left of a session that came after the backup; the others are made anew."""
    config, ids = StoreConfig(tmp_path / "store"), [new_session_id() for _ in range(2)]
    for number, session_id in enumerate(ids):
        async with opened(tmp_path) as store:
            await written(store, turn(session_id))
        if not number:
            back_up(config, tmp_path / "b")
    project(config)
    folder = config.path / "sessions"
    assert {each.name for each in folder.iterdir() if each.is_dir()} == set(ids)
    restore(tmp_path / "b", config, force=True)
    assert not folder.exists()
    project(config)
    assert {each.name for each in folder.iterdir() if each.is_dir()} == {ids[0]}


def project(config: StoreConfig) -> None:
    """Bring the projections up to date."""
    follower = Follower(config)
    while follower.step(1.0).more:
        pass
    follower.close(1.0)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Have a database open, and no more than that."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018 - it is what opens the file
    try:
        yield
    finally:
        db.close()


async def test_a_store_in_use_is_never_replaced(tmp_path: Path) -> None:
    """Not from under a process that holds sessions, nor from one that has only looked, nor from the memory's user."""
    config = await filled(tmp_path)
    await remember(config, "text")
    back_up(config, tmp_path / "b")
    process = await Process.starting(tmp_path)
    await process.do(turn("later"))
    with pytest.raises(StoreError) as caught:
        restore(tmp_path / "b", config, force=True)
    assert caught.value.cause == "leased"
    assert await process.do(updated(turn("later", 1))) is None
    await process.end()
    for path in (config.path / FILE_NAME, config.path / "memory" / "memory.sqlite3"):
        with reading(path), pytest.raises(StoreError) as caught:
            restore(tmp_path / "b", config, force=True)
        assert caught.value.cause == "leased"
    assert "later" in await holding(config)
    restore(tmp_path / "b", config, force=True)
    assert "later" not in await holding(config)


async def test_nobody_comes_in_while_a_store_is_replaced(tmp_path: Path) -> None:
    """A process that starts meanwhile does not get the old one; afterwards it gets the new one."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    async with opened(tmp_path) as store:
        await written(store, turn("later"))
    refused: list[bool] = []

    def come(_done: int, _total: int) -> None:
        with pytest.raises(apsw.BusyError):
            open_writer(attrs.evolve(config, busy_timeout=0.0))
        refused.append(True)

    restore(tmp_path / "b", config, force=True, progress=come)
    assert refused
    assert len(await holding(config)) == 3
    assert not [name for name in names(config.path) if name.endswith(".part")]


async def test_a_process_that_holds_a_damaged_store_is_noticed(tmp_path: Path) -> None:
    """If the file cannot be asked any more who uses it, the lock of the process tells."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    process = await Process.starting(tmp_path)
    await process.do(turn("later"))
    (config.path / FILE_NAME).write_text("no database " * 1000)
    with pytest.raises(StoreError) as caught:
        restore(tmp_path / "b", config, force=True)
    assert caught.value.cause == "leased"
    process.die()
    await process.end()


async def test_a_damaged_store_is_replaced_with_its_log(tmp_path: Path) -> None:
    """The log beside it must not get into the new one."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    db = apsw.Connection(str(config.path / FILE_NAME))
    db.pragma("wal_checkpoint(TRUNCATE)")
    # Which leaves the first page alone: with it in the log, SQLite would take the text for a database.
    db.execute("UPDATE sessions SET steps = 77")
    saved = (config.path / f"{FILE_NAME}-wal").read_bytes()
    db.close()
    (config.path / FILE_NAME).write_text("no database " * 1000)
    (config.path / f"{FILE_NAME}-wal").write_bytes(saved)
    restore(tmp_path / "b", config, force=True)
    async with opened(tmp_path) as store:
        assert {record.steps for record in await store.read(SessionList("default"))} == {1}
    assert examine(config, full=True).healthy


@pytest.mark.parametrize(
    ("what", "cause"),
    [("missing", "missing"), ("text", "not_a_database"), ("torn", "corrupt"), ("empty", "not_a_store")],
)
async def test_what_is_no_backup_replaces_nothing(tmp_path: Path, what: str, cause: str) -> None:
    """A file that is no whole store is refused, and the store that is there stays."""
    config = await filled(tmp_path)
    file = tmp_path / "b"
    back_up(config, file)
    match what:
        case "missing":
            file.unlink()
        case "text":
            file.write_text("text " * 1000)
        case "torn":
            spoilt(file)
        case "empty":
            file.write_bytes(b"")
    with pytest.raises(StoreError, match=str(tmp_path)) as caught:
        restore(file, config, force=True)
    assert caught.value.cause == cause
    assert len(await holding(config)) == 3
    assert not [name for name in names(config.path) if name.endswith(".part")]


async def test_a_memory_that_is_damaged_replaces_nothing(tmp_path: Path) -> None:
    """Sessions and memory come back together or not at all."""
    config = await filled(tmp_path)
    await remember(config, *(f"text {number} " * 200 for number in range(60)))
    back_up(config, tmp_path / "b")
    spoilt(memory_beside(tmp_path / "b"))
    async with opened(tmp_path) as store:
        await written(store, turn("later"))
    with pytest.raises(StoreError):
        restore(tmp_path / "b", config, force=True)
    assert "later" in await holding(config)
    assert len(remembered(config.path / "memory")) == 60


async def replaceable(path: Path, *, remembered: bool, there: bool) -> StoreConfig:
    """Make a backup with or without a memory, and a store with another session and another memory, or none."""
    backup = await filled(path / "backup")
    if remembered:
        await remember(backup, "of the backup")
    back_up(backup, path / "b")
    if not there:
        return StoreConfig(path / "store")
    config = await filled(path, 1)
    await remember(config, "of the store")
    (config.path / "memory" / INDEX).write_text("index")
    return config


def files(config: StoreConfig) -> dict[str, bytes]:
    """Return the files of a store and its memory, besides locks and the header of its sessions."""
    found = {each: each.read_bytes() for folder in (config.path, config.path / "memory") for each in folder.glob("*.*")}
    return {each.name: data[100:] if each.name == FILE_NAME else data for each, data in found.items()}


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("with_memory", [True, False])
@pytest.mark.parametrize("there", [True, False])
async def test_a_restore_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, *, with_memory: bool, there: bool
) -> None:
    """Whichever of its files cannot get its name, the store, its memory and its index are as they were."""
    config = await replaceable(tmp_path, remembered=with_memory, there=there)
    steps = 1 + with_memory + 2 * there
    move_logs(config)
    before = files(config)
    calls, rename = count(), Path.replace

    def fail(path: Path, target: Path) -> Path:
        if next(calls) == step:
            raise OSError(errno.EIO, "the disk fails")
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    if step >= steps:
        restore(tmp_path / "b", config, force=True)
        return
    with pytest.raises(StoreError, match="the disk fails"):
        restore(tmp_path / "b", config, force=True)
    assert files(config) == before
    if there:
        assert await holding(config) == {"s0": 2}
        assert examine(config, full=True).healthy


def move_logs(config: StoreConfig) -> None:
    """Move the logs of a store into its files, as a restore does before anything else."""
    for path in (config.path / FILE_NAME, config.path / "memory" / "memory.sqlite3"):
        if path.exists():
            db = apsw.Connection(str(path))
            db.pragma("journal_mode", "DELETE")
            db.close()


KILLED: Final = """
import os, sys
from itertools import count
from pathlib import Path
from warren.settings.config import StoreConfig
from warren.storage.maintenance.backup import restore

folder, step = Path(sys.argv[1]), int(sys.argv[2])
calls, rename = count(), Path.replace

def die(path, target):
    if next(calls) == step:
        os._exit(9)
    return rename(path, target)

Path.replace = die
restore(folder / "b", StoreConfig(folder / "store"), force=True)
"""


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("with_memory", [True, False])
@pytest.mark.parametrize("there", [True, False])
async def test_a_restore_that_is_killed_is_not_half_a_store(
    tmp_path: Path, step: int, *, with_memory: bool, there: bool
) -> None:
    """The store is refused by its name until it is restored again: no session is beside the memory of another store."""
    config = await replaceable(tmp_path, remembered=with_memory, there=there)
    steps = 1 + with_memory + 2 * there
    ended = await trio.run_process([sys.executable, "-c", KILLED, str(tmp_path), str(step)], check=False)
    assert ended.returncode == (9 if step < steps else 0)
    if step < steps:
        for use in (open_writer, examine, partial(back_up, target=tmp_path / "copy")):
            with pytest.raises(StoreError, match=r"sessions\.sqlite3 was interrupted: run `warren restore") as caught:
                use(config)
            assert caught.value.cause == "not_a_store"
        restore(tmp_path / "b", config, force=True)
    assert len(await holding(config)) == 3
    assert not with_memory or remembered(config.path / "memory") == {("s0", 0): "of the backup"}
    assert not list(config.path.glob(".*"))
    assert {each.name for each in (config.path / "memory").glob("*")} == ({"memory.sqlite3"} if with_memory else set())


async def test_a_backup_of_the_first_version(tmp_path: Path) -> None:
    """It is restored as it is, and brought up to date by the first who uses it."""
    config = StoreConfig(tmp_path / "store")
    shutil.copy(VERSIONS / "1.sqlite3", tmp_path / "old")
    restore(tmp_path / "old", config)
    assert examine(config).store.version == 1
    assert await holding(config)
    assert examine(config, full=True).healthy


async def test_what_is_restored_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the mode of the backup: folder and file are made as those of any store."""
    config = await filled(tmp_path)
    back_up(config, tmp_path / "b")
    (tmp_path / "b").chmod(0o644)
    new = tmp_path / "deep" / "new"
    restore(tmp_path / "b", StoreConfig(new))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, new / FILE_NAME)] == [0o700, 0o600]


@pytest.mark.parametrize("name", ["b.sqlite3", "b.memory.sqlite3"])
async def test_only_plain_files_are_replaced(tmp_path: Path, name: str) -> None:
    """A path that is no plain file is neither replaced nor removed, with force too: it may be a device."""
    config = await filled(tmp_path)
    os.mkfifo(tmp_path / name)
    with pytest.raises(StoreError, match="not a plain file") as caught:
        back_up(config, tmp_path / "b.sqlite3", force=True)
    assert caught.value.cause == "exists"
    assert (tmp_path / name).is_fifo()
    assert names(tmp_path) == set()
