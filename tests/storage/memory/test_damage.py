"""One damaged value in any column of the memory: the rest is found, and the damage is named and set aside."""

import shutil
from pathlib import Path

import apsw
import pytest
import trio

from tests.storage.damaging import KINDS, STORAGE, columns, put, quick_folder
from tests.storage.memory.samples import entries, entry, opened
from warren.base.errors import WarrenError
from warren.conversation.memory import Chosen, Tail
from warren.storage.maintenance.memory import examine_memory, fix_memory
from warren.storage.memory.file import FILE_NAME

SCHEMA = [STORAGE.parent / "memory" / name for name in ("schema.sql", "schema_2.sql", "schema_4.sql")]
TEXTS = ("the cat sleeps", "the dog barks at the cat", "bread from the oven")


async def sample(path: Path) -> None:
    """Remember texts of two sessions, with a row in every table; the second session is never touched."""
    async with opened(path, name="bag-of-words") as memory:
        await memory.index(entries(TEXTS, session="a", first=1), Tail("a", 1))
        await memory.index(entries(("a cow",), session="a", first=5))
        await memory.forget_texts(Chosen("a", "default", position=5))
        await memory.index(entries(("a second cat", "a car engine"), session="b", first=1))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a memory, to be copied."""
    path = tmp_path_factory.mktemp("template") / "memory"
    trio.run(sample, path)
    return path


async def works(folder: Path, *, mended: bool) -> None:
    """Use the memory; what is not of the damaged row is found and can be changed."""
    async with opened(folder, name="bag-of-words") as memory:
        found = await memory.search("cat", limit=10)
        assert "a second cat" in [hit.content for hit in found]
        assert "a car engine" in [hit.content for hit in await memory.search("engine", session_id="b")]
        await memory.index([entry("another engine", session="c")])
        assert "another engine" in [hit.content for hit in await memory.search("engine")]
        assert (await memory.stats()).entries
        for work in (
            memory.catch_up(),
            memory.unsettled(),
            memory.last_before("a", 3),
            memory.index([entry("the cow", session="a", position=9)]),
            memory.forget("a"),
        ):
            try:
                await work
            except WarrenError:
                assert not mended


@pytest.mark.virtual_time
@pytest.mark.parametrize(("table", "column"), columns(SCHEMA))
async def test_one_damaged_value(template: Path, table: str, column: str) -> None:
    """Searches pass over the row, doctor names it and sets it aside, and then nothing is left to be said."""
    where = {"sqlite_sequence": "name = 'entries'", "entries": "id = 2", "vectors": "entry = 2", "sessions": "key = 1"}
    for kind, value in KINDS.items():
        with quick_folder() as work:
            folder = shutil.copytree(template, work / "memory")
            if not put(folder / FILE_NAME, table, column, value, where.get(table, "true")):
                continue
            before = (folder / FILE_NAME).read_bytes()
            _, findings = examine_memory(folder)
            assert (folder / FILE_NAME).read_bytes() == before
            mended = shutil.copytree(folder, work / "mended")
            await works(folder, mended=False)
            done = fix_memory(mended)
            assert bool(done) or not any(each.fixable for each in findings), (kind, findings)
            assert not [each for each in examine_memory(mended, full=True)[1] if each.level == "problem"], kind
            await works(mended, mended=True)


@pytest.mark.parametrize("way", ["fix", "rebuild"])
async def test_words_that_are_missing(template: Path, tmp_path: Path, way: str) -> None:
    """A text without its words is named, and found again after a repair or a rebuild; stray words are removed."""
    folder = shutil.copytree(template, tmp_path / "memory")
    db = apsw.Connection(str(folder / FILE_NAME))
    (cat,) = db.execute("SELECT id FROM entries WHERE content = 'the cat sleeps'").fetchall()
    db.execute("DELETE FROM words WHERE rowid = ?", cat)
    db.execute("INSERT INTO words (rowid, terms) VALUES (99, 's1')")
    db.close()
    assert [each.message for each in examine_memory(folder)[1]] == [
        "1 texts of the memory cannot be found by their words",
        "words of 1 texts that are gone are left in the memory",
    ]
    if way == "fix":
        assert fix_memory(folder) == ("made the words of 2 texts of the memory anew",)
    async with opened(folder) as memory:
        if way == "rebuild":
            assert not await memory.search("sleeps")
            await memory.rebuild()
        assert [hit.content for hit in await memory.search("sleeps")] == ["the cat sleeps"]
        assert [hit.content for hit in await memory.search("sleeps", session_id="a")] == ["the cat sleeps"]
    assert examine_memory(folder, full=True)[1] == ()
    assert fix_memory(folder) == ()
