"""The right to write a session; its event numbers are never given out twice, whatever became of their process."""

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import apsw
import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.processes import Process
from tests.storage.samples import NOW, causes, opened, turn, updated, written
from warren.base.errors import LeasedError, StoreError
from warren.conversation.records import SessionRecord
from warren.storage.operations import Archive, Claim, Claimed, Commit, Delete, Lease, LeaseHeld, Operation, Release
from warren.storage.queries import (
    ANY_TENANT,
    ModelContext,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredMessages,
)
from warren.storage.rows import SEQ_STRIDE
from warren.storage.runner import thread_runner

SAMPLES: Final = str(Path(__file__).parents[2])


def after(claimed: Claimed, number: int) -> Commit:
    """Return the end of turn `number` as it goes on from what was claimed."""
    commit = turn("a", number)
    return attrs.evolve(updated(commit, last_seq=claimed.record.last_seq + 3), events=(), lease=claimed.lease)


# -- whose it is


async def test_a_new_session_is_its_process_own(tmp_path: Path) -> None:
    """Whoever creates a session has it: another process is told who, and can read."""
    one, two = await Process.starting(tmp_path, "the gateway"), await Process.starting(tmp_path)
    await one.do(turn("a"))
    held = await two.do(Claim("a"))
    assert isinstance(held, LeaseHeld)
    assert held.holder.startswith("the gateway (process ")
    assert await two.store.read(SessionRow("a", ANY_TENANT)) == turn("a").record
    await one.end()
    await two.end()


async def test_what_was_put_back_is_free(tmp_path: Path) -> None:
    """A session that its holder released is the next one's, who goes on with the numbers where they ended."""
    one, two = await Process.starting(tmp_path), await Process.starting(tmp_path)
    await one.do(turn("a"))
    await one.do(Release("a", Lease(1)))
    claimed = await two.claim()
    assert claimed == Claimed(turn("a").record, Lease(2))
    assert await two.do(after(claimed, 1)) is None
    await one.end()
    await two.end()


async def test_claiming_again_changes_nothing(tmp_path: Path) -> None:
    """The holder may ask for what it has; the epoch stays, and a lease that was put back long ago puts nothing back."""
    one = await Process.starting(tmp_path)
    await one.do(turn("a"))
    assert await one.claim() == await one.claim() == Claimed(turn("a").record, Lease(1))
    await one.do(Release("a", Lease(0)))
    assert (await one.claim()).lease == Lease(1)
    await one.end()


async def test_a_session_that_is_not_here_cannot_be_claimed(tmp_path: Path) -> None:
    """An id that is unknown or deleted comes to nothing."""
    one = await Process.starting(tmp_path)
    await one.do(turn("a"))
    await one.do(Delete("a"))
    assert await one.do(Claim("a")) is None
    assert await one.do(Claim("nobody")) is None
    await one.end()


async def test_a_dead_process_frees_its_sessions_at_once(tmp_path: Path) -> None:
    """A session that a killed process held is taken over without a wait, and its next write would be refused."""
    one, two = await Process.starting(tmp_path), await Process.starting(tmp_path, "the heir")
    await one.do(turn("a"))
    key = one.holder.key
    one.die()
    claimed = await two.claim()
    assert claimed.lease == Lease(2)
    one.holder.key = key
    assert causes([await one.do(turn("a", 1))]) == ["lease_lost"]
    assert await two.do(after(claimed, 1)) is None
    await two.end()


async def test_a_process_that_hangs_loses_its_sessions_in_time(tmp_path: Path) -> None:
    """A holder that does not renew is taken over when its time is up, not before; woken, it cannot write."""
    now = [1000.0]
    one = await Process.starting(tmp_path, clock=lambda: now[0])
    two = await Process.starting(tmp_path, "the heir", clock=lambda: now[0])
    await one.do(turn("a"))
    now[0] += 10
    await one.store.renew()
    now[0] += 14
    assert isinstance(await two.do(Claim("a")), LeaseHeld)
    now[0] += 2
    claimed = await two.claim()
    refused = await one.do(turn("a", 1))
    assert isinstance(refused, StoreError)
    assert (refused.cause, refused.retryable) == ("lease_lost", True)
    assert refused.details["holder"].startswith("the heir (process ")
    assert await two.store.read(SessionRow("a", ANY_TENANT)) == claimed.record
    assert isinstance(await one.do(Claim("a")), LeaseHeld)
    await one.end()
    await two.end()


@pytest.mark.time_limit(20)
async def test_a_process_hears_that_it_counted_as_dead_by_a_clock_that_was_wrong(tmp_path: Path) -> None:
    """Its lease is good again by the time of its next renewal, and yet its sessions may be gone."""
    one, two = await Process.starting(tmp_path), await Process.starting(tmp_path)
    await one.do(turn("a"))
    now = two.holder.clock
    two.holder.clock = lambda: now() + 3600
    await two.claim()
    two.holder.clock = now
    await one.store.renew()
    assert one.holder.lapses == 1
    await one.store.renew()
    assert (one.holder.lapses, two.holder.lapses) == (1, 0)
    await one.end()
    await two.end()


async def test_a_renewal_and_a_hurried_commit_do_not_wait_for_a_lock(tmp_path: Path) -> None:
    """Turns wait for the lock of another process for a minute here, and a turn that waits is stored when it is gone."""
    async with opened(tmp_path, runner=thread_runner, busy_timeout=60.0) as store, trio.open_nursery() as nursery:
        await store.write([turn("a")])
        lock = apsw.Connection(str(tmp_path / "store" / "sessions.sqlite3"))
        lock.execute("BEGIN IMMEDIATE")
        assert causes(await store.write([attrs.evolve(turn("a", 1), hurried=True)])) == ["locked"]
        with pytest.raises(StoreError) as caught:
            await store.renew()
        assert caught.value.cause == "locked"
        results: list[Any] = []

        async def write() -> None:
            results.extend(await store.write([turn("a", 1)]))

        nursery.start_soon(write)
        await trio.sleep(1)  # longer than a hurried commit waits
        assert results == []
        lock.close()
    assert results == [None]


@pytest.mark.parametrize("operation", [Archive("a"), Delete("a")])
async def test_nobody_retires_what_another_process_has(tmp_path: Path, operation: Operation[Any]) -> None:
    """A session that lives elsewhere is neither archived nor deleted from here; released, it is."""
    one, two = await Process.starting(tmp_path, "the gateway"), await Process.starting(tmp_path)
    await one.do(turn("a"))
    refused = await two.do(operation)
    assert isinstance(refused, LeasedError)
    assert (refused.cause, refused.retryable, refused.session_id) == ("leased", True, "a")
    assert "the gateway (process " in refused.message
    await one.do(Release("a", Lease(1)))
    assert await two.do(operation) is None
    await one.end()
    await two.end()


async def test_reading_needs_no_lease(tmp_path: Path) -> None:
    """A process that only looks writes nothing, not even that it is there."""
    one = await Process.starting(tmp_path)
    await one.do(turn("a"))
    two = await Process.starting(tmp_path)
    assert [record.session_id for record in await two.store.read(SessionList("default"))] == ["a"]
    await two.store.read(StoredMessages("a"))
    assert await two.floor() == 3 + SEQ_STRIDE
    assert two.holder.key is None
    assert await one.floor() == 3
    await one.end()
    await two.end()


async def test_dead_holders_are_cleared_away(tmp_path: Path) -> None:
    """A process that comes removes what dead ones left: no row and no file of theirs stays."""
    for _ in range(3):
        one = await Process.starting(tmp_path)
        await one.do(turn("a") if _ == 0 else Claim("a"))
        one.die()
    two = await Process.starting(tmp_path)
    await two.claim()
    folder = tmp_path / "store" / "holders"
    assert [path.name for path in folder.iterdir()] == [f"{two.holder.key}.lock"]
    await two.end()
    assert list(folder.iterdir()) == []


# -- numbers


async def test_numbers_go_on_after_a_release(tmp_path: Path) -> None:
    """Put back and opened again, numbers go on where they ended."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), Release("a", Lease(1)))
    for _ in range(3):
        one = await Process.starting(tmp_path)
        assert await one.floor() == 3
        await one.do(Release("a", (await one.claim()).lease))
        await one.end()


async def test_numbers_jump_after_a_crash(tmp_path: Path) -> None:
    """Taken over from a process that died, a session's numbers go on a stride further up, and again at the next."""
    one = await Process.starting(tmp_path)
    await one.do(turn("a"))
    one.die()
    for deaths in (1, 2, 3):
        one = await Process.starting(tmp_path)
        assert await one.floor() == 3 + deaths * SEQ_STRIDE
        assert (await one.claim()).record.last_seq == 3 + deaths * SEQ_STRIDE
        one.die()


async def test_numbers_jump_where_the_lease_was_not_put_back(tmp_path: Path) -> None:
    """A process that ends in order, having shown what it could not store, costs the next one a stride."""
    one = await Process.starting(tmp_path)
    await one.do(turn("a"))
    await one.end()
    two = await Process.starting(tmp_path)
    assert await two.floor() == 3 + SEQ_STRIDE
    await two.end()


KILLED: Final = """
import sys
from pathlib import Path
import trio
sys.path.append(sys.argv[2])
from tests.storage.samples import opened, turn, written
from warren.storage.runner import thread_runner

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
        stored = await store.read(SessionStart("a"))
        assert stored is not None
        turns = stored.record.turns
        assert turns in (acknowledged, acknowledged + 1)
        assert stored.record == turn("a", turns - 1).record
        assert len((await store.read(ModelContext("a", 0, stored.record.message_count))).rows) == 2 * turns
        assert len((await store.read(StoredEvents("a", limit=10**6))).rows) == 3 * turns
        assert len(await store.read(SessionList("default", limit=10**6))) == turns + 1
        assert stored.seq_floor == stored.record.last_seq + SEQ_STRIDE
        (claimed,) = await written(store, Claim("a"))
        assert claimed.record.last_seq == stored.seq_floor


@attrs.define
class _World:
    """Several processes on one file; each shows events of the sessions that it can have."""

    path: Path
    processes: list[Process | None] = attrs.field(factory=lambda: [None, None, None])
    leases: dict[tuple[int, str], Claimed] = attrs.field(factory=dict)
    shown: dict[str, int] = attrs.field(factory=dict)
    unstored: set[tuple[int, str]] = attrs.field(factory=set)

    async def process(self, index: int) -> Process:
        found = self.processes[index] or await Process.starting(self.path)
        self.processes[index] = found
        return found

    async def turn(self, index: int, session_id: str, *, store: bool) -> None:
        """Show the event of a turn, and store it or not."""
        process, at = await self.process(index), (index, session_id)
        if at not in self.leases:
            claimed = await process.do(Claim(session_id))
            if isinstance(claimed, LeaseHeld):
                return
            self.leases[at] = claimed
        record, lease = self.leases[at].record, self.leases[at].lease
        record = attrs.evolve(record, last_seq=max(record.last_seq, self.last(at)) + 1)
        assert record.last_seq > self.shown.get(session_id, 0)
        self.shown[session_id] = record.last_seq
        self.leases[at] = Claimed(record, lease)
        self.unstored.add(at)
        if store:
            assert await process.do(Commit(record, lease=lease)) is None
            self.unstored.discard(at)

    def last(self, at: tuple[int, str]) -> int:
        return self.leases[at].record.last_seq

    async def passivate(self, index: int) -> None:
        process = await self.process(index)
        for at in [at for at in self.leases if at[0] == index and at not in self.unstored]:
            await process.do(Release(at[1], self.leases.pop(at).lease))

    async def end(self, index: int, *, dies: bool) -> None:
        process = await self.process(index)
        if dies:
            process.die()
        else:
            await self.passivate(index)
            await process.end()
        self.leases = {at: held for at, held in self.leases.items() if at[0] != index}
        self.unstored = {at for at in self.unstored if at[0] != index}
        self.processes[index] = None


steps = st.tuples(
    st.sampled_from(["turn", "turn", "show", "passivate", "end", "die"]), st.integers(0, 2), st.sampled_from(["a", "b"])
)


@given(st.lists(steps, max_size=40))
async def test_no_number_is_shown_twice(script: list[tuple[str, int, str]]) -> None:
    """Whatever processes come, go, die and take sessions over from each other, a session's numbers only rise."""
    with TemporaryDirectory() as folder:
        world = _World(Path(folder))
        first = await Process.starting(world.path)
        for session_id in ("a", "b"):
            await first.do(Commit(SessionRecord(session_id, NOW, NOW, "echo")))
        await first.end()
        for action, index, session_id in script:
            if action in ("turn", "show"):
                await world.turn(index, session_id, store=action == "turn")
            elif action == "passivate":
                await world.passivate(index)
            else:
                await world.end(index, dies=action == "die")
        for index in range(3):
            await world.end(index, dies=False)
