"""The saved graph: loaded where it can be, made anew where it cannot, and never in the way of an answer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.memory.samples import SubjectEmbedder, contents, entry, numbered, opened, text, word
from warren.errors import StoreError
from warren.memory import MemoryConfig
from warren.storage import inline_runner
from warren.storage.memory import MemoryStore
from warren.storage.memory import file as database
from warren.storage.memory.graph import FILE_NAME

Damage = Callable[[Path], object]
COUNT = 30


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


DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (Path.unlink, "missing"),
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


async def filled(path: Path) -> None:
    """Make a memory whose graph is saved."""
    async with opened(path) as memory:
        await memory.index(numbered(COUNT))
        await memory.catch_up()


async def found(memory: MemoryStore) -> bool:
    """Tell whether entries are found in both scopes."""
    hits = [*await memory.search(word(7)), *await memory.search(word(7), session_id="a")]
    return contents(hits) == [text(7)] * 2


async def test_the_saved_graph_is_loaded(tmp_path: Path) -> None:
    """After opening, the graph has all its vectors and nothing is left to do."""
    await filled(tmp_path)
    async with opened(tmp_path) as memory:
        stats = await memory.stats()
        assert (stats.indexed, stats.behind, stats.rebuilt, memory.is_behind) == (COUNT, 0, None, False)
        assert stats.index_bytes == (tmp_path / FILE_NAME).stat().st_size
        assert await found(memory)


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind != "a folder"])
async def test_a_damaged_graph_is_made_anew(tmp_path: Path, kind: str) -> None:
    """Any damage is noticed, named in the stats, harmless to searches, and gone after catching up."""
    await filled(tmp_path)
    damage, reason = DAMAGES[kind]
    damage(tmp_path / FILE_NAME)
    steps: list[tuple[int, int]] = []
    async with opened(tmp_path) as memory:
        stats = await memory.stats()
        assert (stats.rebuilt, stats.indexed, stats.behind, memory.is_behind) == (reason, 0, COUNT, True)
        assert await found(memory)
        await memory.catch_up(lambda done, total: steps.append((done, total)))
        assert steps == [(16, COUNT), (COUNT, COUNT)]
        assert (await memory.stats()).indexed == COUNT
        assert await found(memory)
    async with opened(tmp_path) as memory:
        assert (await memory.stats()).rebuilt is None


async def test_a_graph_that_cannot_be_saved_stops_nothing(tmp_path: Path) -> None:
    """Where its file cannot be replaced, `save` says so; catching up, searching and closing go on."""
    await filled(tmp_path)
    damage, reason = DAMAGES["a folder"]
    damage(tmp_path / FILE_NAME)
    async with opened(tmp_path) as memory:
        assert (await memory.stats()).rebuilt == reason
        await memory.catch_up()
        assert await found(memory)
        with pytest.raises(StoreError, match="cannot be saved") as raised:
            await memory.save()
        assert raised.value.cause == "io_error"


async def test_entries_past_the_watermark_are_added(tmp_path: Path) -> None:
    """A graph that was saved before the last entries is loaded, and only those are added."""
    await filled(tmp_path)
    older = shutil.copy(tmp_path / FILE_NAME, tmp_path / "older")
    async with opened(tmp_path) as memory:
        await memory.index(numbered(5, first=COUNT))
    shutil.move(older, tmp_path / FILE_NAME)
    async with opened(tmp_path) as memory:
        stats = await memory.stats()
        assert (stats.indexed, stats.behind, stats.rebuilt) == (COUNT, 5, None)
        assert contents(await memory.search(word(COUNT + 1))) == [text(COUNT + 1)]
        steps: list[tuple[int, int]] = []
        await memory.catch_up(lambda done, total: steps.append((done, total)))
        assert steps == [(5, 5)]


async def test_what_was_forgotten_leaves_an_older_graph(tmp_path: Path) -> None:
    """Vectors of entries that were removed after the graph was saved are taken out when it is loaded."""
    await filled(tmp_path)
    older = shutil.copy(tmp_path / FILE_NAME, tmp_path / "older")
    async with opened(tmp_path) as memory:
        await memory.index([entry("other", session="b")])
        await memory.forget("a")
    shutil.move(older, tmp_path / FILE_NAME)
    async with opened(tmp_path) as memory:
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, stats.behind) == (1, 0, 1)
        await memory.catch_up()
        assert contents(await memory.search("other")) == ["other"]
        assert not memory.is_behind


async def test_a_graph_of_another_database_is_not_used(tmp_path: Path) -> None:
    """Neither one of another memory nor one that knows more than the database is loaded."""
    await filled(tmp_path / "one")
    shutil.copy(tmp_path / "one" / database.FILE_NAME, tmp_path / "backup")
    async with opened(tmp_path / "two") as memory:
        await memory.index(numbered(COUNT))
        await memory.catch_up()
    shutil.copy(tmp_path / "two" / FILE_NAME, tmp_path / "one" / FILE_NAME)
    async with opened(tmp_path / "one") as memory:
        assert (await memory.stats()).rebuilt == "stale"
        await memory.catch_up()
        await memory.index(numbered(3, first=COUNT))
    shutil.copy(tmp_path / "backup", tmp_path / "one" / database.FILE_NAME)
    async with opened(tmp_path / "one") as memory:
        assert (await memory.stats()).rebuilt == "stale"
        assert await found(memory)


async def test_another_embedder_makes_the_graph_anew(tmp_path: Path) -> None:
    """A graph of another embedder, or of the same with other dimensions, is not used; texts are found all the same."""
    await filled(tmp_path)
    for embedder, name in (
        (None, "bag-of-words"),
        (SubjectEmbedder(), "subjects"),
        (SubjectEmbedder(dimensions=8), "subjects"),
        (None, "bm25"),
    ):
        async with opened(tmp_path, embedder, name=name) as memory:
            assert (await memory.stats()).rebuilt == "other_embedder"
            assert (await memory.search(word(7)))[0].content == text(7)
            await memory.catch_up()
            stats = await memory.stats()
            assert (stats.embedder, stats.indexed, stats.behind) == (name, COUNT, 0)
            assert (await memory.search(word(7)))[0].content == text(7)


async def test_rebuild(tmp_path: Path) -> None:
    """The graph is made anew on demand, with progress, and answers as before."""
    await filled(tmp_path)
    steps: list[tuple[int, int]] = []
    async with opened(tmp_path) as memory:
        await memory.rebuild(lambda done, total: steps.append((done, total)))
        assert steps[-1] == (COUNT, COUNT)
        assert ((await memory.stats()).indexed, memory.is_behind) == (COUNT, False)
        assert await found(memory)


async def test_saving_and_loading_let_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """USearch holds the interpreter's lock while it saves and loads: now and then it is given away."""
    pauses: list[None] = []
    monkeypatch.setattr("warren.storage.memory.graph.step_aside", lambda: pauses.append(None))
    async with opened(tmp_path) as memory:
        await memory.index(numbered(1_000))
        await memory.catch_up()
        assert len(pauses) >= 2
    pauses.clear()
    async with opened(tmp_path):
        assert len(pauses) >= 2


async def test_a_long_catch_up_is_saved_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it catches up has not done everything in vain."""
    monkeypatch.setattr("warren.storage.memory.store.SAVE_AFTER", 16)
    memory = await MemoryStore.open(MemoryConfig(tmp_path), runner=inline_runner)
    await memory.index(numbered(40))
    sizes: list[bool] = []
    await memory.catch_up(lambda _done, _total: sizes.append((tmp_path / FILE_NAME).exists()))
    assert sizes == [True, True, True]
    await memory.aclose()
