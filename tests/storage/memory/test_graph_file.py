"""The saved graph: used if it can be, built beside the runtime if it is needed, and never in the way of an answer."""

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from tests.storage.memory.samples import SubjectEmbedder, contents, entry, numbered, opened, text, word
from warren.base.errors import StoreError
from warren.conversation.memory import Embedder
from warren.storage.file_lock import FileLock
from warren.storage.memory import builder
from warren.storage.memory import file as database
from warren.storage.memory.graph import FILE_NAME
from warren.storage.memory_store import MemoryStore
from warren.storage.runner import thread_runner

Damage = Callable[[Path], object]
COUNT = 30
WORDS = "bag-of-words/4096"


def flip(at: float) -> Damage:
    """Return what changes one bit, at a part of the file's length."""

    def damage(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[int(at * (len(raw) - 1))] ^= 1
        path.write_bytes(raw)

    return damage


def into_folder(path: Path) -> None:
    """Put a folder in the file's place: it cannot be replaced by a file."""
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Damage, str | None]] = {
    "missing": (Path.unlink, None),
    "empty": (lambda path: path.write_bytes(b""), "damaged"),
    "something else": (lambda path: path.write_bytes(b"x" * 5_000), "damaged"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged"),
    "half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "damaged"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "damaged"),
    "first bit": (flip(0), "damaged"),
    "a vector's bit": (flip(0.3), "damaged"),
    "a neighbour's bit": (flip(0.9), "damaged"),
    "last bit": (flip(1), "damaged"),
    "a folder": (into_folder, "damaged"),
}


def with_graph(path: Path | None, embedder: Embedder | None = None) -> AbstractAsyncContextManager[MemoryStore]:
    """Open a memory that needs a graph from its second vector on."""
    return opened(path, embedder, name="subjects" if embedder else "bag-of-words", exact_bytes=0)


async def filled(path: Path) -> None:
    """Make a memory whose graph is saved."""
    async with with_graph(path) as memory:
        await memory.index(numbered(COUNT))
        assert memory.is_behind
        builder.build(path, WORDS)


async def found(memory: MemoryStore, number: int = 7) -> bool:
    """Tell whether an entry is found in both scopes."""
    hits = [*await memory.search(word(number)), *await memory.search(word(number), session_id="a")]
    return contents(hits) == [text(number)] * 2


async def test_a_small_memory_has_no_graph(tmp_path: Path) -> None:
    """Vectors that are compared quickly one by one are found without a graph, and nothing is left to do."""
    async with opened(tmp_path, name="bag-of-words") as memory:
        await memory.index(numbered(COUNT))
        stats = await memory.stats()
        assert (stats.indexed, stats.behind, stats.index_bytes, memory.is_behind) == (COUNT, 0, 0, False)
        assert await found(memory)


async def test_words_alone_need_no_graph(tmp_path: Path) -> None:
    """The default embedder makes no vectors, however much is remembered."""
    async with opened(tmp_path, exact_bytes=0) as memory:
        await memory.index(numbered(COUNT))
        stats = await memory.stats()
        assert (stats.indexed, stats.dimensions, memory.is_behind) == (COUNT, 0, False)
        assert await found(memory)


async def test_a_graph_is_built_beside_the_runtime(tmp_path: Path) -> None:
    """Catching up builds the graph in another process, tells its progress, and searches go through it from then on."""
    steps: list[tuple[int, int]] = []
    async with with_graph(tmp_path) as memory:
        await memory.index(numbered(COUNT))
        await memory.catch_up(lambda done, total: steps.append((done, total)))
        assert steps == [(COUNT, COUNT)]
        stats = await memory.stats()
        assert (stats.indexed, stats.behind, memory.is_behind) == (COUNT, 0, False)
        assert stats.index_bytes == (tmp_path / FILE_NAME).stat().st_size > 0
        assert await found(memory)
        await memory.index(numbered(5, first=COUNT))
        assert await found(memory, COUNT + 1)
    async with with_graph(tmp_path) as memory:
        assert (await memory.stats()).rebuilt is None
        assert await found(memory)
        assert await found(memory, COUNT + 1)


async def test_a_memory_without_files_compares_one_by_one() -> None:
    """There is no place for a graph: every vector is compared."""
    async with with_graph(None) as memory:
        await memory.index(numbered(COUNT))
        assert not memory.is_behind
        assert await found(memory)


@pytest.mark.parametrize("kind", list(DAMAGES))
async def test_a_damaged_graph_is_not_used(tmp_path: Path, kind: str) -> None:
    """Any damage is noticed, named in the stats, and harmless to searches."""
    await filled(tmp_path)
    damage, reason = DAMAGES[kind]
    damage(tmp_path / FILE_NAME)
    async with with_graph(tmp_path) as memory:
        stats = await memory.stats()
        assert (stats.rebuilt, stats.indexed, memory.is_behind) == (reason, COUNT, True)
        assert await found(memory)


async def test_a_damaged_graph_is_built_anew(tmp_path: Path) -> None:
    """Catching up replaces it, and the next opening uses the new one."""
    await filled(tmp_path)
    flip(0.5)(tmp_path / FILE_NAME)
    async with with_graph(tmp_path) as memory:
        await memory.catch_up()
        assert not memory.is_behind
        assert await found(memory)
    async with with_graph(tmp_path) as memory:
        assert ((await memory.stats()).rebuilt, memory.is_behind) == (None, False)


async def test_a_graph_that_cannot_be_saved_stops_nothing(tmp_path: Path) -> None:
    """If its file cannot be replaced, catching up says why; searching and storing go on."""
    await filled(tmp_path)
    into_folder(tmp_path / FILE_NAME)
    async with with_graph(tmp_path) as memory:
        with pytest.raises(StoreError, match="cannot be built") as raised:
            await memory.catch_up()
        assert raised.value.cause == "index_not_built"
        assert await memory.index(numbered(1, first=COUNT)) == 1
        assert await found(memory)


async def test_one_builder_at_a_time(tmp_path: Path) -> None:
    """While another process builds the graph nobody else does, and searches answer."""
    async with with_graph(tmp_path) as memory:
        await memory.index(numbered(COUNT))
        other = FileLock(tmp_path / builder.LOCK_NAME, "another builder")
        assert other.take()
        await memory.catch_up()
        assert not (tmp_path / FILE_NAME).exists()
        assert await found(memory)
        other.drop()
        await memory.catch_up()
        assert not memory.is_behind


async def test_entries_past_the_watermark_are_found(tmp_path: Path) -> None:
    """A graph that was saved before the last entries is used, and only those are added to it."""
    await filled(tmp_path)
    async with with_graph(tmp_path) as memory:
        await memory.index(numbered(5, first=COUNT))
    steps: list[tuple[int, int]] = []
    async with with_graph(tmp_path) as memory:
        assert await found(memory, COUNT + 1)
        await memory.catch_up(lambda done, total: steps.append((done, total)))
        assert steps == [(5, 5)]
        assert await found(memory, COUNT + 1)


async def test_removed_entries_do_not_hide_others(tmp_path: Path) -> None:
    """However many near vectors were removed since the graph was saved, the nearest that is stored is found."""
    model = SubjectEmbedder()
    async with with_graph(tmp_path, model) as memory:
        await memory.index([entry("cat " * (at + 2), session="gone", position=at) for at in range(300)])
        await memory.index([entry("one dog more", session="kept")])
        builder.build(tmp_path, "subjects/4")
    async with with_graph(tmp_path, model) as memory:
        await memory.forget("gone")
        assert contents(await memory.search("kitten " * 200)) == ["one dog more"]
        await memory.catch_up()
        assert contents(await memory.search("kitten " * 200)) == ["one dog more"]


async def test_a_reader_that_sees_less_forgets_nothing(tmp_path: Path) -> None:
    """An entry that one reader has met is found by another one whose view of the database is older."""
    async with opened(tmp_path, name="bag-of-words", runner=thread_runner) as memory:
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(memory.index, numbered(1, first=number))
                nursery.start_soon(memory.search, word(number))
        for number in range(60):
            assert await found(memory, number)


async def test_a_graph_of_another_database_is_not_used(tmp_path: Path) -> None:
    """Neither one of another memory nor one that knows more than the database is used."""
    await filled(tmp_path / "one")
    shutil.copy(tmp_path / "one" / database.FILE_NAME, tmp_path / "backup")
    await filled(tmp_path / "two")
    own = shutil.copy(tmp_path / "one" / FILE_NAME, tmp_path / "own")
    shutil.copy(tmp_path / "two" / FILE_NAME, tmp_path / "one" / FILE_NAME)
    async with with_graph(tmp_path / "one") as memory:
        assert (await memory.stats()).rebuilt == "stale"
        assert await found(memory)
        shutil.copy(own, tmp_path / "one" / FILE_NAME)
        await memory.index(numbered(3, first=COUNT))
        builder.build(tmp_path / "one", WORDS)
    shutil.copy(tmp_path / "backup", tmp_path / "one" / database.FILE_NAME)
    async with with_graph(tmp_path / "one") as memory:
        assert (await memory.stats()).rebuilt == "stale"
        assert await found(memory)


async def test_another_embedder_makes_its_own_vectors(tmp_path: Path) -> None:
    """A graph of another embedder, or of the same with other dimensions, is not used; texts are found all the same."""
    await filled(tmp_path)
    for dimensions in (4, 8):
        async with with_graph(tmp_path, SubjectEmbedder(dimensions=dimensions)) as memory:
            stats = await memory.stats()
            assert (stats.rebuilt, stats.behind, memory.is_behind) == ("other_embedder", COUNT, True)
            assert (await memory.search(word(7)))[0].content == text(7)
            await memory.catch_up()
            stats = await memory.stats()
            assert (stats.embedder, stats.indexed, stats.behind) == ("subjects", COUNT, 0)
            assert (await memory.search(word(7)))[0].content == text(7)
            assert not memory.is_behind


async def test_rebuild(tmp_path: Path) -> None:
    """The graph is built anew on demand, with progress, and answers as before."""
    await filled(tmp_path)
    steps: list[tuple[int, int]] = []
    async with with_graph(tmp_path) as memory:
        await memory.rebuild(lambda done, total: steps.append((done, total)))
        assert steps[-1] == (COUNT, COUNT)
        assert ((await memory.stats()).indexed, memory.is_behind) == (COUNT, False)
        assert await found(memory)


async def test_a_rebuild_drops_a_graph_that_nobody_needs(tmp_path: Path) -> None:
    """After a change to an embedder without vectors, the old graph and its vectors go."""
    await filled(tmp_path)
    async with opened(tmp_path) as memory:
        await memory.rebuild()
        assert not (tmp_path / FILE_NAME).exists()
        assert await found(memory)
