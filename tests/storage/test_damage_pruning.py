"""Retention beside damaged rows: nothing goes because of a damaged value, and the rest goes all the same."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Final

import apsw
import pytest
import trio

from tests.storage.damaging import KINDS, STORAGE, columns, put, quick_folder
from tests.storage.samples import NOW, entry, moved, opened, turn, written
from warren.base.retention import Retention
from warren.settings.config import StoreConfig
from warren.storage.maintenance.retention import plan, prune
from warren.storage.operations import Archive, Lease, Release
from warren.storage.sqlite.file import FILE_NAME, VERSION

TABLES: Final = ("sessions", "messages", "events")
SCHEMA: Final = [STORAGE / f"schema_{version}.sql" for version in range(1, VERSION + 1)]
DAY: Final = 86_400.0
TURNS: Final = 6
HEAD: Final = 7


async def sample(path: Path) -> None:
    """Store two long sessions of which much can go, an archived one that can go whole, and one that is younger."""
    async with opened(path) as store:
        for session_id in ("a", "b"):
            operations = [turn(session_id, number) for number in range(TURNS)]
            operations[-1] = moved(operations[-1], entry(TURNS, HEAD))
            await written(store, *operations, Release(session_id, Lease(1)))
        await written(store, turn("c"), Archive("c"), turn("d"), Archive("d"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, to be copied."""
    path = tmp_path_factory.mktemp("template")
    trio.run(sample, path)
    return path / "store"


def kept(folder: Path, session_id: str) -> dict[str, int]:
    """Return how many rows a session has."""
    db = apsw.Connection(str(folder / FILE_NAME))
    key = {"a": 1, "b": 2, "c": 3, "d": 4}[session_id]
    found = {
        table: db.execute(f"SELECT count(*) FROM {table} WHERE session = ?", (key,)).get  # noqa: S608 - two of ours
        for table in ("messages", "events")
    }
    db.close()
    return found


@pytest.mark.parametrize(("table", "column"), [each for each in columns(SCHEMA) if each[0] in TABLES])
def test_pruning_beside_a_damaged_value(template: Path, table: str, column: str) -> None:
    """A session whose row is damaged is left alone and named, a time that is damaged counts as young."""
    where = {"sessions": "key = 1", "messages": "session = 1 AND position = 8", "events": "session = 1 AND seq = 8"}
    for number, (kind, value) in enumerate(KINDS.items()):
        with quick_folder() as work:
            folder = work / str(number)
            shutil.copytree(template, folder)
            config = StoreConfig(folder, synchronous="NORMAL")
            if not put(folder / FILE_NAME, table, column, value, where[table]):
                continue
            before = kept(folder, "a")
            what = plan(config, Retention(superseded=DAY, events=DAY, archived=DAY), NOW + timedelta(days=100))
            done = prune(config, what, rest=lambda _seconds: None)
            assert kept(folder, "b") == {"messages": 2 * TURNS - HEAD + 1, "events": 0}, kind
            assert set(done.sessions) >= {"c", "d"}, kind
            left = kept(folder, "a")
            if "a" in what.damaged:
                assert left == before, kind
            if column != "session":
                assert left["messages"] >= 2 * TURNS - HEAD + 1, kind


@pytest.mark.parametrize("column", ["message_count", "last_seq", "head", "holder", "details"])
def test_a_damaged_archive_is_left_alone(template: Path, column: str) -> None:
    """An archived session whose row cannot be read keeps all that it has, and is named."""
    for kind in ("bad UTF-8", "a blob", "the smallest number"):
        with quick_folder() as work:
            folder = shutil.copytree(template, work / "store")
            assert put(folder / FILE_NAME, "sessions", column, KINDS[kind], "key = 3")
            before = kept(folder, "c")
            config = StoreConfig(folder, synchronous="NORMAL")
            what = plan(config, Retention(events=DAY, archived=DAY), NOW + timedelta(days=100))
            assert (what.sessions, what.damaged) == (("d",), ("c",)), kind
            prune(config, what, rest=lambda _seconds: None)
            assert kept(folder, "c") == before, kind


@pytest.mark.parametrize("kind", KINDS)
def test_no_archive_goes_for_a_damaged_time(template: Path, kind: str) -> None:
    """Only a time that is one makes a session old: it is deleted with everything that it has."""
    with quick_folder() as work:
        folder = shutil.copytree(template, work / "store")
        assert put(folder / FILE_NAME, "sessions", "updated_at", KINDS[kind], "key = 3")
        config = StoreConfig(folder, synchronous="NORMAL")
        what = plan(config, Retention(archived=DAY), NOW + timedelta(days=100))
        expected = {"c", "d"} if kind == "a number" else {"d"}
        assert set(prune(config, what, rest=lambda _seconds: None).sessions) == expected
        assert set(what.damaged) <= {"c"}
