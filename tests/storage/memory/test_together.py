"""Several at once: searches beside writes, two processes on one folder, and a process that is killed."""

import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.storage.memory.samples import SubjectEmbedder, contents, entry, numbered, opened, text, word
from warren.base.errors import SessionNotFoundError, StoreError
from warren.conversation.memory import MemoryConfig
from warren.storage.file_lock import FileLock
from warren.storage.memory import FileMemory, builder
from warren.storage.runner import thread_runner

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys, trio
from pathlib import Path
from tests.storage.memory.samples import numbered
from warren.conversation.memory import MemoryConfig
from warren.storage.memory import FileMemory

async def main():
    config = MemoryConfig(Path(sys.argv[1]), "bag-of-words")
    memory = await FileMemory.open(config, exact_bytes=0)
    await memory.index(numbered(20))
    await memory.catch_up()
    await memory.index(numbered(40))
    if sys.argv[2] == "while it builds":
        await memory.catch_up(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


@pytest.mark.parametrize("when", ["before the graph", "while it builds"])
async def test_kill_between_the_texts_and_the_graph(tmp_path: Path, when: str) -> None:
    """A process killed after the texts are stored loses none, doubles none, and the graph catches up."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), when]
    killed = await trio.run_process(command, cwd=ROOT, capture_stdout=True, capture_stderr=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with opened(tmp_path, name="bag-of-words", exact_bytes=0) as memory:
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, stats.behind, stats.rebuilt) == (40, 40, 0, None)
        assert await memory.index(numbered(40)) == 0
        assert contents(await memory.search(word(33))) == [text(33)]
        # The builder that the killed process had started may still be at work; it keeps a second one out.
        while memory.is_behind:
            await memory.catch_up()
        assert contents(await memory.search(word(33))) == [text(33)]


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
async def test_searches_beside_writes(tmp_path: Path, *, on_disk: bool) -> None:
    """Searches in threads go on while entries are indexed, forgotten and added to the graph, and see whole states."""
    seen: list[int] = []
    async with opened(tmp_path if on_disk else None, runner=thread_runner) as memory:
        await memory.index(numbered(20, session="kept"))

        async def search() -> None:
            while len(seen) < 60:
                hits = await memory.search("common", limit=20)
                seen.append(len(hits))
                assert contents(await memory.search(word(3), session_id="kept")) == [text(3)]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(search)
            nursery.start_soon(search)
            for number in range(5):
                await memory.index(numbered(30, session=f"s{number}"))
                nursery.start_soon(memory.catch_up)
                await memory.forget(f"s{number - 1}")
        await memory.catch_up()
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, stats.behind) == (50, 50, 0)
    assert set(seen) == {20}


async def test_forgetting_while_the_graph_catches_up(tmp_path: Path) -> None:
    """Entries that are forgotten in the middle of catching up do not get into the graph."""
    async with opened(tmp_path, runner=thread_runner) as memory:
        await memory.index(numbered(100) + numbered(100, session="b"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.catch_up)
            nursery.start_soon(memory.forget, "b")
        await memory.catch_up()
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, memory.is_behind) == (100, 100, False)


async def test_two_memories_on_one_folder(tmp_path: Path) -> None:
    """A text that one stores or forgets is seen by the other at once, and each graph follows."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        await one.index(numbered(3))
        assert contents(await two.search(word(1))) == [text(1)]
        assert await two.index(numbered(3)) == 0
        await two.catch_up()
        assert (await two.stats()).indexed == 3
        await one.forget("a")
        assert await two.search(word(1)) == []
        with pytest.raises(SessionNotFoundError):
            await two.index([entry("late", position=7)])


async def test_a_slow_model_holds_up_nobody() -> None:
    """While an embedder takes its time over old entries, searching by words, indexing and forgetting go on."""

    class Slow(SubjectEmbedder):
        async def embed(self, texts, /):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as the base class
            if text(0) in texts:
                await trio.sleep_forever()
            return await super().embed(texts)

    async with opened() as plain:
        assert await plain.index(numbered(3)) == 3
    async with opened(None, Slow()) as memory, trio.open_nursery() as nursery:
        nursery.start_soon(memory.index, numbered(3))
        await trio.testing.wait_all_tasks_blocked()
        assert await memory.index([entry("an engine", session="b")]) == 1
        assert contents(await memory.search("car")) == ["an engine"]
        assert await memory.forget("b") == 1
        nursery.cancel_scope.cancel()


async def test_closing_amid_a_build(tmp_path: Path) -> None:
    """Closing does not wait for a graph that is being built; whoever waits for it hears that the memory is closed."""
    memory = await FileMemory.open(MemoryConfig(tmp_path, "bag-of-words"), exact_bytes=0)
    await memory.index(numbered(200))
    begun = trio.Event()

    async def build() -> None:
        with pytest.raises(StoreError) as raised:
            await memory.catch_up(lambda *_: begun.set())
        assert raised.value.cause == "closed"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(build)
        await begun.wait()
        await memory.aclose()
    async with opened(tmp_path, name="bag-of-words", exact_bytes=0) as again:
        await again.catch_up()
        assert not again.is_behind


async def test_cancelled_catching_up_goes_on_later(tmp_path: Path) -> None:
    """Cancelling between two steps keeps the vectors that were made; the next call makes the rest."""
    async with opened(tmp_path) as memory:
        await memory.index(numbered(200))
    model = SubjectEmbedder()
    async with opened(tmp_path, model) as memory:
        with trio.CancelScope() as scope:
            await memory.catch_up(lambda done, _total: scope.cancel() if done >= 64 else None)
        assert scope.cancelled_caught
        stats = await memory.stats()
        assert 64 <= stats.indexed < 200
        await memory.catch_up()
        assert (await memory.stats()).indexed == 200
    assert len(model.asked) == 200


async def test_cancelling_a_build_ends_its_process(tmp_path: Path) -> None:
    """A build that is cancelled leaves no process behind: another one can begin at once."""
    async with opened(tmp_path, name="bag-of-words", exact_bytes=0) as memory:
        await memory.index(numbered(200))
        with trio.CancelScope() as scope:
            await memory.catch_up(lambda *_: scope.cancel())
        assert scope.cancelled_caught
        lock = FileLock(tmp_path / builder.LOCK_NAME, "this one")
        assert lock.take()
        lock.drop()
        await memory.catch_up()
        assert not memory.is_behind
