"""Several at once: searches beside writes, two processes on one folder, and a process that is killed."""

import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.storage.memory.samples import SubjectEmbedder, contents, entry, numbered, opened, text, word
from warren.errors import SessionNotFoundError, StoreError
from warren.memory import MemoryConfig
from warren.storage import thread_runner
from warren.storage.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys, trio
from pathlib import Path
from tests.storage.memory.samples import numbered
from warren.memory import MemoryConfig
from warren.storage.memory import MemoryStore, graph

async def main():
    memory = await MemoryStore.open(MemoryConfig(Path(sys.argv[1])))
    await memory.index(numbered(20))
    await memory.catch_up()
    if sys.argv[2] == "while it saves":
        graph._write_with_note = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    await memory.index(numbered(40))
    if sys.argv[2] == "while it catches up":
        await memory.catch_up(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    if sys.argv[2] == "while it saves":
        await memory.catch_up()
    os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


@pytest.mark.parametrize("when", ["before the graph", "while it catches up", "while it saves"])
async def test_kill_between_the_texts_and_the_graph(tmp_path: Path, when: str) -> None:
    """A process killed after the texts are stored loses none, doubles none, and the graph catches up."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), when]
    killed = await trio.run_process(command, cwd=ROOT, capture_stdout=True, capture_stderr=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with opened(tmp_path) as memory:
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, stats.behind, stats.rebuilt) == (40, 20, 20, None)
        assert await memory.index(numbered(40)) == 0
        assert contents(await memory.search(word(33))) == [text(33)]
        await memory.catch_up()
        stats = await memory.stats()
        assert (stats.indexed, stats.behind, memory.is_behind) == (40, 0, False)


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
    """What one stores or forgets the other sees at once, and each graph follows."""
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


async def test_closing_amid_a_rebuild(tmp_path: Path) -> None:
    """Closing does not wait for a rebuild, which ends with an error; what it has done is kept."""
    memory = await MemoryStore.open(MemoryConfig(tmp_path))
    await memory.index(numbered(2_000))
    steps: list[int] = []
    begun = trio.Event()

    def progress(done: int, _total: int) -> None:
        steps.append(done)
        begun.set()

    async def rebuild() -> None:
        with pytest.raises(StoreError) as raised:
            await memory.rebuild(progress)
        assert raised.value.cause == "closed"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rebuild)
        await begun.wait()
        await memory.aclose()
    assert steps[-1] < 2_000
    async with opened(tmp_path) as memory:
        assert (await memory.stats()).indexed >= steps[-1]
        await memory.catch_up()
        assert (await memory.stats()).indexed == 2_000


async def test_cancelled_catching_up_goes_on_later(tmp_path: Path) -> None:
    """Cancelling between two steps keeps what was done; the next call does the rest."""
    memory = await MemoryStore.open(MemoryConfig(tmp_path))
    await memory.index(numbered(100))
    with trio.CancelScope() as scope:
        await memory.catch_up(lambda done, _total: scope.cancel() if done >= 32 else None)
    assert scope.cancelled_caught
    stats = await memory.stats()
    assert 32 <= stats.indexed < 100
    await memory.catch_up()
    assert (await memory.stats()).indexed == 100
    await memory.aclose()
