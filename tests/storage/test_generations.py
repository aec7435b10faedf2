"""Event numbers are never given out twice, whatever became of the process that gave them out."""

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.samples import NOW, opened, turn, updated, written
from warren.config import StoreConfig
from warren.records import SessionRecord
from warren.storage import Commit, Delete, Store, inline_runner
from warren.storage.queries import SEQ_STRIDE

SAMPLES: Final = str(Path(__file__).parents[2])


async def floor(store: Store, session_id: str = "a") -> int:
    """Return the number above which a stored session's events go on."""
    stored = await store.load(session_id)
    assert stored is not None
    return stored.seq_floor


async def abandoned(path: Path) -> Store:
    """Open a store that is never closed: for the file the same as a process that was killed."""
    return await Store.open(StoreConfig(path / "store"), runner=inline_runner)


async def test_numbers_go_on_after_a_clean_close(tmp_path: Path) -> None:
    """Closed in good order and opened again, numbers go on where they ended."""
    async with opened(tmp_path) as store:
        await written(store, turn("a", 0))
        assert await floor(store) == 3
    for _ in range(3):
        async with opened(tmp_path) as store:
            assert await floor(store) == 3
    async with opened(tmp_path) as store:
        await written(store, turn("a", 1))
    async with opened(tmp_path) as store:
        assert await floor(store) == 6


async def test_numbers_jump_after_a_crash(tmp_path: Path) -> None:
    """Opened after a process that did not close, numbers go on a stride further up."""
    await written(await abandoned(tmp_path), turn("a"))
    async with opened(tmp_path) as store:
        assert await floor(store) == 3 + SEQ_STRIDE
        assert await floor(store) == 3 + SEQ_STRIDE


async def test_numbers_jump_further_after_a_second_crash(tmp_path: Path) -> None:
    """What a second process showed before it died too is left free as well, though it stored nothing."""
    await written(await abandoned(tmp_path), turn("a"))
    assert await floor(await abandoned(tmp_path)) == 3 + SEQ_STRIDE
    assert await floor(await abandoned(tmp_path)) == 3 + 2 * SEQ_STRIDE


async def test_the_next_commit_settles_the_numbers(tmp_path: Path) -> None:
    """After a crash, a commit and a clean close, numbers go on from the commit."""
    await written(await abandoned(tmp_path), turn("a"))
    async with opened(tmp_path) as store:
        first = await floor(store) + 1
        await written(store, updated(Commit(turn("a", 1).record), last_seq=first))
        assert await floor(store) == first
    async with opened(tmp_path) as store:
        assert await floor(store) == first


async def test_numbers_jump_after_a_turn_that_could_not_be_stored(tmp_path: Path) -> None:
    """The events of a turn whose commit failed were shown: the next process stays clear of them."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        (outcome,) = await store.write([turn("a")])
        assert outcome is not None
    async with opened(tmp_path) as store:
        assert await floor(store) == 3 + SEQ_STRIDE


async def test_numbers_jump_after_a_close_that_was_not_clean(tmp_path: Path) -> None:
    """Whoever closes with `clean=False`, having shown what it never tried to store, costs the next one a stride."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        await store.aclose(clean=False)
    async with opened(tmp_path) as store:
        assert await floor(store) == 3 + SEQ_STRIDE


async def test_a_session_that_is_gone_costs_no_jump(tmp_path: Path) -> None:
    """A write to a deleted session is refused without disturbing the others' numbers."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"), Delete("b"))
        await store.write([turn("b", 1)])
    async with opened(tmp_path) as store:
        assert await floor(store) == 3


async def test_reading_beside_another_process_changes_nothing(tmp_path: Path) -> None:
    """A second process that only lists and reads leaves the first one's numbers alone."""
    async with opened(tmp_path) as gateway:
        await written(gateway, turn("a"))
        async with opened(tmp_path) as command:
            assert [record.session_id for record in await command.list()] == ["a"]
            await command.messages("a")
        assert await floor(gateway) == 3


async def test_a_second_process_cannot_vouch_for_the_first(tmp_path: Path) -> None:
    """After a crash beside a second process that closed well, numbers jump all the same."""
    gateway = await abandoned(tmp_path)
    await written(gateway, turn("a"))
    async with opened(tmp_path) as command:
        await written(command, turn("b"))
    async with opened(tmp_path) as store:
        assert await floor(store) >= 3 + SEQ_STRIDE


async def test_a_process_that_takes_over_a_session_stays_clear(tmp_path: Path) -> None:
    """A session that another process was about to go on with is numbered above what that one may have shown."""
    async with opened(tmp_path) as gateway:
        await written(gateway, turn("a"))
        shown = await floor(await abandoned(tmp_path))
        assert await floor(gateway) > shown


KILLED: Final = """
import sys
from pathlib import Path
import trio
sys.path.append(sys.argv[2])
from tests.storage.samples import opened, turn, written
from warren.storage import thread_runner

async def main():
    async with opened(Path(sys.argv[1]), runner=thread_runner) as store:
        for number in range(10**9):
            await written(store, turn("a", number), turn(f"s{number}"))
            print(number, flush=True)

trio.run(main)
"""


async def test_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A process killed with SIGKILL while it writes leaves every turn it had acknowledged, whole, and no half one."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), SAMPLES]
    printed = b""
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    async for chunk in process.stdout:
        printed += chunk
        if printed.count(b"\n") >= 50:
            process.kill()
    assert await process.wait() == -signal.SIGKILL
    acknowledged = printed.count(b"\n")
    async with opened(tmp_path) as store:
        stored = await store.load("a")
        assert stored is not None
        turns = stored.record.turns
        assert turns in (acknowledged, acknowledged + 1)
        assert stored.record == turn("a", turns - 1).record
        assert len((await store.context("a", 0, stored.record.message_count)).rows) == 2 * turns
        assert len(await store.events("a", limit=10**6)) == 3 * turns
        assert len(await store.list(limit=10**6)) == turns + 1
        assert stored.seq_floor == stored.record.last_seq + SEQ_STRIDE
        await written(store, turn("after"))


@attrs.define
class _Process:
    """One opening of the file and the sessions that are live in it: session -> its last number."""

    store: Store
    live: dict[str, int] = attrs.field(factory=dict)
    unstored: set[str] = attrs.field(factory=set)


@attrs.define
class _World:
    """Several processes on one file, no two of them with the same session live."""

    path: Path
    processes: list[_Process | None] = attrs.field(factory=lambda: [None, None, None])
    shown: dict[str, int] = attrs.field(factory=dict)

    async def process(self, index: int) -> _Process:
        found = self.processes[index] or _Process(await abandoned(self.path))
        self.processes[index] = found
        return found

    async def turn(self, index: int, session_id: str, *, store: bool) -> None:
        """Show the event of a turn, and store it or not."""
        process = await self.process(index)
        others = [other for other in self.processes if other is not None and other is not process]
        if any(session_id in other.live for other in others):
            return
        if session_id not in process.live:
            stored = await process.store.load(session_id)
            process.live[session_id] = stored.seq_floor if stored else 0
        seq = process.live[session_id] = process.live[session_id] + 1
        assert seq > self.shown.get(session_id, 0)
        self.shown[session_id] = seq
        process.unstored.add(session_id)
        if store:
            record = SessionRecord(session_id, NOW, NOW, "echo", last_seq=seq)
            await written(process.store, Commit(record))
            process.unstored.discard(session_id)

    async def passivate(self, index: int) -> None:
        process = await self.process(index)
        process.live = {name: seq for name, seq in process.live.items() if name in process.unstored}

    async def end(self, index: int) -> None:
        """Close in good order where every turn has ended, else die."""
        process = await self.process(index)
        if not process.unstored:
            await process.store.aclose()
        self.processes[index] = None


steps = st.tuples(
    st.sampled_from(["turn", "turn", "show", "passivate", "end"]), st.integers(0, 2), st.sampled_from(["a", "b"])
)


@given(st.lists(steps, max_size=40))
async def test_no_number_is_shown_twice(script: list[tuple[str, int, str]]) -> None:
    """Whatever processes come, go, die and take sessions over from each other, a session's numbers only rise."""
    with TemporaryDirectory() as folder:
        world = _World(Path(folder))
        for sid in ("a", "b"):
            await written(await abandoned(world.path), Commit(SessionRecord(sid, NOW, NOW, "echo")))
        for action, index, session_id in script:
            if action in ("turn", "show"):
                await world.turn(index, session_id, store=action == "turn")
            elif action == "passivate":
                await world.passivate(index)
            else:
                await world.end(index)
