"""Texts that go in: once each, all or nothing, for good or until they are forgotten."""

import os
import sqlite3
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio

from tests.storage.memory.samples import NOW, Place, SubjectEmbedder, contents, entries, entry, numbered, opened
from tests.support.memories import remembered
from warren.base.errors import InvalidParamsError, ProviderError, SessionNotFoundError, StoreError
from warren.base.fields import FieldValueError
from warren.conversation.memory import CONVERSATION_END, Embedder, MemoryConfig, MemoryEntry, Tail
from warren.storage.memory import FileMemory, builder
from warren.storage.memory.file import FILE_NAME
from warren.storage.memory.spaces import PATIENCE
from warren.storage.runner import inline_runner


async def test_indexing_twice_stores_once(place: Place) -> None:
    """An entry is told by its session and position: the same text there again is not stored."""
    async with opened(place) as memory:
        assert await memory.index(numbered(3)) == 3
        assert await memory.index(numbered(4)) == 1
        assert (await memory.stats()).entries == 4
    async with opened(place) as memory:
        assert await memory.index(numbered(4)) == 0


@pytest.mark.parametrize("embedder", [None, SubjectEmbedder(base=0)], ids=["words", "meaning"])
async def test_another_text_takes_the_place(tmp_path: Path, embedder: Embedder | None) -> None:
    """A new text at a position replaces the old one: in both scopes, in every table and in the graph."""
    async with opened(tmp_path, embedder) as memory:
        await memory.index(entries(["my cat sleeps", "an old engine", "flour"]))
        assert await memory.index([entry("my cat sleeps"), entry("some bread instead", position=1)]) == 1
        for session_id in (None, "a"):
            assert await memory.search("engine", session_id=session_id) == []
            assert (await memory.search("bread", session_id=session_id))[0].content == "some bread instead"
        stats = await memory.stats()
        assert (stats.entries, stats.sessions, stats.indexed, stats.behind) == (3, 1, 3, 0)
    assert rows_of(tmp_path / FILE_NAME) == {"entries": 3, "words": 3, "vectors": 3 if embedder else 0}
    assert totals_of(tmp_path / FILE_NAME) == (3, 3, 7)


async def test_a_tail_is_all_there_is_of_it(tmp_path: Path) -> None:
    """Entries given as a tail drop what else was there from its position on, and nothing before it or added by hand."""
    by_hand = entry("by hand", position=CONVERSATION_END + 5)
    async with opened(tmp_path) as memory:
        await memory.index([*entries(["one", "two", "three", "four", "five"]), by_hand])
        assert await memory.index(entries(["two", "other"], first=1), Tail("a", 1)) == 1
        assert remembered(tmp_path) == {
            ("a", 0): "one",
            ("a", 1): "two",
            ("a", 2): "other",
            ("a", by_hand.position): "by hand",
        }
        assert await memory.index([], Tail("a", 1)) == 0
        assert contents(await memory.search("one two three other by hand")) == ["by hand", "one"]
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, stats.behind) == (2, 2, 0)


async def test_settling_drops_what_no_store_has(tmp_path: Path) -> None:
    """Of an unsettled session goes what lies beyond the messages that were stored, and it is settled then."""
    async with opened(tmp_path) as memory:
        await memory.index(entries(["one", "two", "three"]), Tail("a", 0))
        await memory.index(entries(["other"], session="b"))
        (mark,) = await memory.unsettled()
        assert mark.session_id == "a"
        await memory.index(entries(["one", "two", "four"]), Tail("a", 0))
        assert await memory.settle(mark, 0) == 0
        assert len(remembered(tmp_path)) == 4
        (mark,) = await memory.unsettled()
        assert await memory.settle(mark, 2) == 1
        assert await memory.unsettled() == []
        assert contents(await memory.search("four two")) == ["two"]
        assert (await memory.stats()).indexed == 3


async def test_a_memory_of_the_first_version_is_brought_up(tmp_path: Path) -> None:
    """A file that an earlier version made keeps what it has and can do what this one can."""
    async with opened(tmp_path) as memory:
        await memory.index(numbered(3))
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("DROP TABLE unsettled")
        db.execute("DROP TABLE tenants")
        db.execute("DROP TABLE tombstones")
        db.execute("DROP INDEX sessions_tenant")
        db.execute("ALTER TABLE sessions DROP COLUMN tenant")
        db.execute("PRAGMA user_version = 1")
    db.close()
    async with opened(tmp_path) as memory:
        assert await memory.index(numbered(4), Tail("a", 0)) == 1
        assert [mark.session_id for mark in await memory.unsettled()] == ["a"]
        assert len(await memory.search("common")) == 4
        assert await memory.search("common", tenant="acme") == []


def rows_of(path: Path) -> dict[str, int]:
    """Return how many rows each table of texts has."""
    db = apsw.Connection(str(path))
    counts = {name: db.execute(f"SELECT count(*) FROM {name}").get for name in ("entries", "words", "vectors")}  # noqa: S608
    db.close()
    return counts


def totals_of(path: Path) -> tuple[int, int, int]:
    """Return what is counted beside the texts: of a session, of all, and all of their terms."""
    db = apsw.Connection(str(path))
    totals: tuple[int, int, int] = db.execute("SELECT sessions.entries, totals.* FROM sessions, totals").get
    db.close()
    return totals


async def test_one_position_twice_in_a_call(place: Place) -> None:
    """Of two entries with the same position in one call, the first is stored."""
    async with opened(place) as memory:
        assert await memory.index([entry("first words"), entry("second words")]) == 1
        assert contents(await memory.search("words")) == ["first words"]


async def test_blank_texts_are_left_out(place: Place) -> None:
    """A text of white space alone is not stored."""
    async with opened(place) as memory:
        assert await memory.index(entries(["", "  \n\t", "word"])) == 1
        assert await memory.index([]) == 0
        assert (await memory.stats()).entries == 1


async def test_a_failing_embedder_refuses_nothing(vector_place: Place) -> None:
    """If the embedder fails the texts are stored, their words find them, and their vectors are made later."""
    model = SubjectEmbedder(fails=True)
    async with opened(vector_place, model) as memory:
        assert await memory.index(numbered(3)) == 3
        assert (memory.is_behind, memory.behind) == (True, 3)
        assert contents(await memory.search(numbered(3)[1].content))[0] == numbered(3)[1].content
        model.fails = False
        await memory.catch_up()
        assert (memory.is_behind, (await memory.stats()).behind) == (False, 0)


class Crashes(SubjectEmbedder):
    """An embedder with a bug."""

    async def embed(self, texts: Any, /) -> Any:
        raise ZeroDivisionError(texts)


class Hangs(SubjectEmbedder):
    """An embedder that never answers."""

    async def embed(self, texts: Any, /) -> Any:  # noqa: ARG002 - it does not look
        await trio.sleep_forever()


@pytest.mark.virtual_time
@pytest.mark.parametrize("model", [Crashes(), Hangs()], ids=["crashes", "hangs"])
async def test_an_embedder_that_is_no_help(model: SubjectEmbedder) -> None:
    """Texts are stored, within seconds, whatever the embedder does."""
    config = MemoryConfig(embedder=model.name)
    memory = await FileMemory.open(config, model, runner=inline_runner)
    with trio.fail_after(30):
        assert await memory.index(numbered(3)) == 3
    assert memory.behind == 3
    await memory.aclose()


@attrs.define
class Slow(SubjectEmbedder):
    """An embedder that takes some seconds for each call."""

    seconds: float = 3600
    calls: int = 0

    async def embed(self, texts: Any, /) -> Any:
        self.calls += 1
        await trio.sleep(self.seconds)
        return await super().embed(texts)


@pytest.mark.virtual_time
async def test_nobody_waits_again_and_again_for_an_embedder_that_hangs() -> None:
    """After one wait texts and queries do without vectors; one call at a time tries it, each later than the last."""
    model = Slow()
    memory = await FileMemory.open(MemoryConfig(embedder=model.name), model, runner=inline_runner)
    began = trio.current_time()
    for number in range(20):
        await memory.index([entry(f"text {number}", position=number)])
        assert contents(await memory.search("text 0"))
    assert (model.calls, trio.current_time() - began, memory.weighs) == (1, PATIENCE, "words")
    for calls, minutes in ((2, 1), (3, 2), (4, 4)):
        await trio.sleep(60 * minutes)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(memory.search, "text 0")
        assert (model.calls, trio.current_time() - began) == (calls, PATIENCE)
    model.seconds = 2
    await memory.catch_up()  # which works, and so the next search does not wait for the end of the cool-down
    assert memory.behind == 0
    await memory.search("text 0")
    assert memory.weighs == "words_and_vectors"
    await memory.aclose()


@pytest.mark.virtual_time
async def test_nothing_to_embed_says_nothing_of_an_embedder() -> None:
    """Texts that are stored already leave an embedder that hangs in its cool-down: nobody else waits at once."""
    model = Slow()
    memory = await FileMemory.open(MemoryConfig(embedder=model.name), model, runner=inline_runner)
    await memory.index([entry("text 0", position=0)])
    await trio.sleep(90)
    assert await memory.index([entry("text 0", position=0)]) == 0
    assert memory.weighs == "words"
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(memory.search, "text 0")
    assert model.calls == 2
    await memory.aclose()


async def test_one_text_that_is_refused(vector_place: Place) -> None:
    """A text that the embedder refuses for good has only words; the others get vectors, and it is not asked again."""

    @attrs.define
    class Picky(SubjectEmbedder):
        calls: int = 0

        async def embed(self, texts: Any, /) -> Any:
            self.calls += 1
            if "poison" in texts or self.fails:
                raise ProviderError("no", cause="bad_request", retryable=False)
            return await super().embed(texts)

    model = Picky()
    async with opened(vector_place, model) as memory:
        await memory.index(entries(["an engine", "poison", "a kitten"]))
        assert memory.behind == 3
        await memory.catch_up()
        assert (memory.is_behind, (await memory.stats()).behind) == (False, 1)
        assert contents(await memory.search("poison"))[0] == "poison"
        calls = model.calls
        await memory.catch_up()
        assert model.calls <= calls + 1


@pytest.mark.parametrize(
    "vectors",
    [[], [[1.0, 2.0]], [[1.0] * 4, [1.0] * 4], [[1.0, 2.0, 3.0, float("nan")]], [["x"] * 4]],
    ids=["none", "short", "too many", "not finite", "no numbers"],
)
async def test_bad_vectors_are_none(vectors: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Vectors of the wrong number, size or kind are not stored, but the text is; the log names the embedder."""

    class Bad(SubjectEmbedder):
        async def embed(self, texts: Any, /) -> Any:  # noqa: ARG002 - it does not look
            return vectors

    async with opened(None, Bad()) as memory:
        await memory.index([entry("a cat")])
        await memory.catch_up()
        assert ((await memory.stats()).entries, memory.behind, memory.is_behind) == (1, 1, False)
    assert "the embedder subjects" in caplog.text


async def test_forgetting_is_for_good(place: Place) -> None:
    """A text that was forgotten is found no more, also after opening again, and a late write does not bring it back."""
    async with opened(place) as memory:
        await memory.index(numbered(3) + numbered(2, session="b"))
        assert await memory.forget("a") == 3
        assert await memory.forget("a") == 0
    async with opened(place) as memory:
        assert {hit.session_id for hit in await memory.search("common")} == {"b"}
        assert await memory.search("common", session_id="a") == []
        with pytest.raises(SessionNotFoundError) as raised:
            await memory.index([entry("late", session="b", position=9), entry("late", position=9)])
        assert raised.value.session_id == "a"
        stats = await memory.stats()
        assert (stats.entries, stats.sessions, stats.indexed, stats.behind) == (2, 1, 2, 0)


async def test_forgetting_a_session_that_never_was(place: Place) -> None:
    """A session without memories can be forgotten before it has any."""
    async with opened(place) as memory:
        assert await memory.forget("a") == 0
        with pytest.raises(SessionNotFoundError):
            await memory.index([entry("late")])


async def test_nothing_of_a_forgotten_session_is_left_in_the_file(tmp_path: Path) -> None:
    """Texts, words and vectors of it are gone from every table."""
    async with opened(tmp_path, SubjectEmbedder()) as memory:
        await memory.index(numbered(3))
        await memory.forget("a")
    assert rows_of(tmp_path / FILE_NAME) == {"entries": 0, "words": 0, "vectors": 0}


async def test_ids_are_never_given_out_twice(tmp_path: Path) -> None:
    """An entry stored after others were forgotten gets a new id: the graph may still know theirs."""
    async with opened(tmp_path) as memory:
        await memory.index(numbered(3))
        await memory.forget("a")
        await memory.index([entry("new", session="b")])
    db = sqlite3.connect(tmp_path / FILE_NAME)
    assert db.execute("SELECT id FROM entries").fetchall() == [(4,)]
    db.close()


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    """Folder, database and graph are for their owner alone, whatever the umask."""
    before = os.umask(0)
    try:
        async with opened(tmp_path / "deep" / "memory", name="bag-of-words") as memory:
            await memory.index(numbered(3))
            builder.build(tmp_path / "deep" / "memory", "bag-of-words/4096")
            files = sorted((tmp_path / "deep" / "memory").iterdir())
            assert [path.name.partition("-")[0] for path in files] == [FILE_NAME] * 3 + ["memory.usearch"]
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
            assert stat.S_IMODE((tmp_path / "deep" / "memory").stat().st_mode) == 0o700
    finally:
        os.umask(before)


async def test_a_closed_memory_says_so(place: Place) -> None:
    """Every call on a closed memory fails with cause "closed"; closing again does nothing."""
    async with opened(place) as memory:
        await memory.index(numbered(3))
    await memory.aclose()
    for call in (memory.index(numbered(9)), memory.search("x"), memory.forget("a"), memory.stats(), memory.catch_up()):
        with pytest.raises(StoreError) as raised:
            await call
        assert raised.value.cause == "closed"


async def test_other_files_are_refused(tmp_path: Path) -> None:
    """Another program's database, a newer one and no database at all each give their own error and stay as they are."""
    path = tmp_path / FILE_NAME
    for sql, cause in (("CREATE TABLE mine (x)", "not_a_store"), ("PRAGMA user_version = 99", "newer_schema")):
        path.unlink(missing_ok=True)
        db = sqlite3.connect(path)
        db.execute(sql)
        db.commit()
        db.close()
        before = path.read_bytes()
        with pytest.raises(StoreError, match=r"memory\.sqlite3") as raised:
            await FileMemory.open(MemoryConfig(tmp_path))
        assert (raised.value.cause, path.read_bytes()) == (cause, before)
    path.write_bytes(b"no database" * 500)
    with pytest.raises(StoreError, match="memory store") as raised:
        await FileMemory.open(MemoryConfig(tmp_path))
    assert raised.value.cause == "not_a_database"


async def test_an_unknown_embedder_is_named() -> None:
    """A name that is not built in, without an embedder, is bad input."""
    with pytest.raises(InvalidParamsError, match=r"\$\.embedder: must be one of bm25, bag-of-words") as raised:
        await FileMemory.open(MemoryConfig(embedder="word2vec"))
    assert raised.value.path == "$.embedder"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_id", 7),
        ("session_id", "\ud800"),
        ("position", -1),
        ("position", "0"),
        ("turn", 2**63),
        ("content", b"bytes"),
        ("content", "lone \udfff"),
        ("created_at", datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone is the case
    ],
)
def test_an_entrys_bad_field_is_named(field: str, value: object) -> None:
    """An entry that could not be stored is not made; the error names the field."""
    good: dict[str, Any] = {"session_id": "a", "position": 0, "turn": 0, "content": "x", "created_at": NOW}
    with pytest.raises(FieldValueError) as raised:
        MemoryEntry(**good | {field: value})
    assert raised.value.field == field
