"""Copies of a memory between a folder and a database: the answers of searches stay, also those by meaning."""

from pathlib import Path

from tests.storage.copies import source, target
from tests.storage.memory.samples import NOW, SubjectEmbedder, entries, opened
from tests.support.postgres import database_with_vectors
from warren.conversation.memory import Chosen, MemoryEntry, Tail
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.copying import MEMORY, TABLES, Copied, copy
from warren.storage.memory.copying import memory_in
from warren.storage.memory_store import MemoryStore
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.copying import WholeFile

TEXTS = ("the cat sleeps", "a car with an engine", "bread from the oven", "nul \0 and \x01 in it", "é \U0010ffff")
ALL = (*TABLES, *MEMORY)
SECRET = MemoryEntry("a", 80, 1, "the cat has a secret", NOW)
NAME = "subjects"


async def copied(here: StoreConfig | PostgresConfig, there: StoreConfig | PostgresConfig, folder: Path) -> Copied:
    """Copy a store and its memory; that of a folder is in `folder`."""
    async with source(here) as one, target(there) as other, memory_in(folder) as memory:
        for store in (one, other):
            if isinstance(store, WholeFile):
                store.memory = memory
        found = await copy(one, other, tables=ALL)
        await other.finish(await one.last_input(), await one.secret())
    return found


async def answers(memory: MemoryStore) -> list[tuple[str, str, int, float]]:
    """Return what searches by meaning and by words find, and with which scores."""
    hits = [hit for query in ("a kitten", "vehicle", "oven", "nul") for hit in await memory.search(query)]
    return [(hit.session_id, hit.content, hit.turn, round(hit.score, 3)) for hit in hits]


async def test_a_memory_with_vectors_goes_into_a_database_and_back(tmp_path: Path) -> None:
    """The vectors are made anew by the next opening; unsettled and forgotten sessions and forgotten texts stay that."""
    embedder = SubjectEmbedder()
    here, back = StoreConfig(tmp_path / "here"), StoreConfig(tmp_path / "back")
    await (await SqliteStore.open(here)).aclose()
    async with opened(here.path / "memory", embedder, name=NAME) as memory:
        await memory.index(entries(TEXTS))
        await memory.index([MemoryEntry("b", 3, 1, "a pet", NOW)], Tail("b", 3))
        await memory.index([MemoryEntry("gone", 1, 1, "a dog", NOW)])
        await memory.forget("gone")
        await memory.index([SECRET])
        await memory.forget_texts(Chosen("a", "default", position=SECRET.position))
        expected, unsettled = await answers(memory), await memory.unsettled()
    assert {content for _, content, *_ in expected} >= {TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[3]}
    assert len(unsettled) == 1
    with database_with_vectors() as url:
        first = await copied(here, PostgresConfig(url), here.path / "memory")
        assert (first.rows["memory_sessions"], first.rows["memory_entries"]) == (3, len(TEXTS) + 1)
        async with opened(url, embedder, name=NAME) as memory:
            assert memory.behind == len(TEXTS) + 1
            await memory.catch_up()
            assert await memory.index([SECRET]) == 0
            assert await answers(memory) == expected
            assert await memory.unsettled() == unsettled
        second = await copied(PostgresConfig(url), back, back.path / "memory")
        assert second == first
    async with opened(back.path / "memory", embedder, name=NAME) as memory:
        await memory.catch_up()
        assert await answers(memory) == expected
        assert await memory.unsettled() == unsettled
        assert await memory.index([SECRET, MemoryEntry("a", 90, 1, "one more cat", NOW)]) == 1
