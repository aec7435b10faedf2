"""The memory on real files: what is put in is found, once, in its scope, whatever becomes of the process."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.memory.entries import entry
from warren.base.errors import InvalidParamsError, SessionNotFoundError, StoreError
from warren.conversation.memory import MemoryConfig
from warren.storage.memory import FileMemory
from warren.storage.runner import inline_runner

TEXTS = [
    "the lighthouse keeper painted the door green",
    "our budget for the database migration is nine thousand euros",
    "she prefers tea without sugar in the afternoon",
    "the deployment failed because the certificate had expired",
    "Das Passwort liegt im Tresor hinter dem Bild",
]


@asynccontextmanager
async def memory(folder: Path | None, embedder: str = "bm25") -> AsyncIterator[FileMemory]:
    """Open a memory for a body."""
    store = await FileMemory.open(MemoryConfig(folder, embedder), runner=inline_runner)
    try:
        yield store
    finally:
        await store.aclose()


async def filled(folder: Path) -> None:
    """Make a memory with all texts in it."""
    async with memory(folder) as store:
        assert await store.index([entry(at, text) for at, text in enumerate(TEXTS)]) == len(TEXTS)


async def best(store: FileMemory, query: str, session_id: str | None = None) -> str | None:
    """Return the text that fits best."""
    hits = await store.search(query, limit=1, session_id=session_id)
    return hits[0].content if hits else None


@pytest.mark.parametrize("folder", [True, False], ids=["file", "memory"])
@pytest.mark.parametrize("embedder", ["bm25", "bag-of-words"])
async def test_what_was_said_is_found(tmp_path: Path, folder: bool, embedder: str) -> None:  # noqa: FBT001 - a table
    """Each text is found by some of its words, in its session and in the project, with a score in 0..1."""
    async with memory(tmp_path / "m" if folder else None, embedder) as store:
        await store.index([entry(at, text) for at, text in enumerate(TEXTS)])
        for scope in ("a", None):
            assert await best(store, "green door", scope) == TEXTS[0]
            assert await best(store, "expired certificate", scope) == TEXTS[3]
            assert await best(store, "Passwort Tresor", scope) == TEXTS[4]
        hits = await store.search("the", session_id=None) + await store.search("budget database", session_id=None)
        assert all(0.5 <= hit.score <= 1 for hit in hits)


async def test_nothing_in_common_is_no_hit(tmp_path: Path) -> None:
    """A query that shares nothing with what is remembered finds nothing."""
    await filled(tmp_path / "m")
    async with memory(tmp_path / "m") as store:
        assert await store.search("zebra quantum", session_id=None) == []
        assert await store.search("zebra quantum", session_id="a") == []


async def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    """An entry is told by its session and position."""
    await filled(tmp_path / "m")
    async with memory(tmp_path / "m") as store:
        assert await store.index([entry(at, text) for at, text in enumerate(TEXTS)]) == 0
        assert (await store.stats()).entries == len(TEXTS)
        assert await store.index([entry(0, TEXTS[0], "b"), entry(1, " ", "b")]) == 1


async def test_a_session_sees_its_own(tmp_path: Path) -> None:
    """The scope of one session has nothing of another's; the project has both."""
    async with memory(tmp_path / "m") as store:
        await store.index([entry(0, "the blue door of a"), entry(0, "the blue door of b", "b")])
        assert [hit.session_id for hit in await store.search("blue door", session_id="b")] == ["b"]
        assert {hit.session_id for hit in await store.search("blue door", session_id=None)} == {"a", "b"}


async def test_a_forgotten_session_stays_forgotten(tmp_path: Path) -> None:
    """Nothing of it is found, nothing more is taken in, also after opening anew; the others are untouched."""
    await filled(tmp_path / "m")
    async with memory(tmp_path / "m") as store:
        await store.index([entry(0, "another green door", "b")])
        assert await store.forget("a") == len(TEXTS)
        assert await store.forget("a") == 0
        with pytest.raises(SessionNotFoundError):
            await store.index([entry(9, "late")])
    async with memory(tmp_path / "m") as store:
        assert [hit.session_id for hit in await store.search("green door", session_id=None)] == ["b"]


async def test_an_unknown_embedder_is_refused(tmp_path: Path) -> None:
    """The name of an embedder that is neither built in nor given is bad input."""
    with pytest.raises(InvalidParamsError):
        await FileMemory.open(MemoryConfig(tmp_path / "m", "no-such"), runner=inline_runner)


async def test_a_rebuild_keeps_everything(tmp_path: Path) -> None:
    """The same is found before and after."""
    await filled(tmp_path / "m")
    async with memory(tmp_path / "m") as store:
        before = await store.search("door", session_id=None)
        await store.rebuild()
        assert await store.search("door", session_id=None) == before


@settings(max_examples=40)
@given(texts=st.lists(st.text(max_size=200), max_size=5), query=st.text(max_size=80))
async def test_any_text_and_any_query(texts: list[str], query: str) -> None:
    """Whatever is remembered and asked, no search fails, and hits are entries with a score in range."""
    async with memory(None) as store:
        await store.index([entry(at, text) for at, text in enumerate(texts)])
        for scope in ("a", None):
            hits = await store.search(query, limit=20, session_id=scope)
            assert {hit.content for hit in hits} <= set(texts)
            assert all(0 <= hit.score <= 1 for hit in hits)


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("数据库迁移在星期五进行", "数据库迁移"),
        ("การประชุมจะมีขึ้นในวันศุกร์", "การประชุม"),
        ("def parse_arguments(raw: str) -> dict", "parse_arguments"),
        ("a\x00b secret nul", "secret nul"),
        ("rocket \N{ROCKET} launch", "\N{ROCKET}"),
        ("word " * 200_000 + "needle", "needle"),
        ('he said AND OR NEAR "quoted" * stars', 'NEAR "quoted" *'),
    ],
    ids=["chinese", "thai", "code", "nul", "emoji", "megabyte", "operators"],
)
async def test_odd_texts(tmp_path: Path, content: str, query: str) -> None:
    """Scripts without spaces, code, control characters, huge texts and the search engine's own words are plain text."""
    async with memory(tmp_path / "m") as store:
        await store.index([entry(0, content), entry(1, "something else altogether")])
        assert await best(store, query, "a") == content
        assert await best(store, query) == content


async def test_limits_and_ends(tmp_path: Path) -> None:
    """A limit below 1 is refused, above 20 capped; a closed memory says so."""
    async with memory(tmp_path / "m") as store:
        await store.index([entry(at, f"green door number {at}") for at in range(30)])
        assert len(await store.search("green door", limit=1000)) == 20
        with pytest.raises(InvalidParamsError):
            await store.search("green door", limit=0)
    with pytest.raises(StoreError) as caught:
        await store.search("green door")
    assert caught.value.cause == "closed"


VICTIM = """
import sys, trio
from pathlib import Path
from tests.storage.memory.entries import entry
from warren.conversation.memory import MemoryConfig
from warren.storage.memory import FileMemory

async def main():
    store = await FileMemory.open(MemoryConfig(Path(sys.argv[1])))
    number = 0
    while True:
        await store.index([entry(number, f"fact number {number} is here")])
        print(number, flush=True)
        number += 1

trio.run(main)
"""


def test_a_killed_process_loses_nothing_it_has_confirmed(tmp_path: Path) -> None:
    """After kill -9 every confirmed entry is there, once, and found."""
    folder = tmp_path / "m"
    process = subprocess.Popen([sys.executable, "-c", VICTIM, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    confirmed = [int(process.stdout.readline()) for _ in range(20)][-1]
    process.send_signal(signal.SIGKILL)
    confirmed = max([confirmed, *(int(line) for line in process.stdout.read().split())])
    process.stdout.close()
    process.wait()

    async def check() -> None:
        async with memory(folder) as store:
            stats = await store.stats()
            assert stats.entries in (confirmed + 1, confirmed + 2)
            assert await best(store, f"fact number {confirmed}", "a") == f"fact number {confirmed} is here"
            assert (await store.stats()).behind == 0

    trio.run(check)
