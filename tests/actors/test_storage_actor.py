"""The storage actor: groups what waits, restarts after a crash, and gives up past its intensity."""

import functools
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import Asked, ask
from tests.support.checks import numbers
from tests.support.faulty_store import CrashError, Faults, FaultyStore
from tests.support.models import says
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.actors.observe.metrics import REMEMBERED
from warren.actors.resources.storage import StorageActor
from warren.actors.supervision import ActorFailedError, Restarts
from warren.base.errors import SessionNotFoundError, StoreError
from warren.conversation.records import SessionRecord
from warren.conversation.views import TurnResult
from warren.mailbox import Mailbox
from warren.settings.config import Config, Intensity, StoreConfig
from warren.storage.operations import Archive, Commit
from warren.storage.queries import ANY_TENANT, SessionList, SessionRow
from warren.storage.runner import inline_runner
from warren.storage.sqlite import Holder
from warren.storage.store import Store

pytestmark = pytest.mark.virtual_time
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def commit(session_id: str) -> Commit:
    """Return an operation that creates a session."""
    return Commit(SessionRecord(session_id, NOW, NOW, "echo"))


def storage(
    folder: Path, faults: Faults, intensity: Intensity | None = None
) -> AbstractAsyncContextManager[StorageActor]:
    """Return the context of a storage actor over a real store."""
    config = StoreConfig(folder, synchronous="NORMAL")
    opener = functools.partial(FaultyStore.prepared, config, faults, inline_runner, Holder.of(config))
    return StorageActor(opener).running(Restarts(intensity or Intensity()))


async def test_what_waits_is_committed_as_one_group(tmp_path: Path) -> None:
    """While one commit runs all others queue up; they go together in the next one."""
    faults = Faults(gate=trio.Event())
    async with storage(tmp_path, faults) as actor, trio.open_nursery() as nursery:
        writes = [ask(nursery, actor.write, commit("first"))]
        await trio.testing.wait_all_tasks_blocked()
        writes += [ask(nursery, actor.write, commit(f"s{number}")) for number in range(50)]
        await trio.testing.wait_all_tasks_blocked()
        assert faults.gate is not None
        faults.gate.set()
        for write in writes:
            await write.ended.wait()
        assert faults.groups == [1, 50]
        assert len(await (await actor.reader()).read(SessionList("default", limit=100))) == 51


@pytest.mark.parametrize(("group", "groups"), [(20, [20, 20, 10]), (5, [12, 12, 12, 12, 2])])
async def test_a_store_that_prefers_smaller_groups_gets_them(group: int, groups: list[int], tmp_path: Path) -> None:
    """The callers of a group go on while the next one is stored; if very many wait, they are still few groups."""
    faults = Faults(gate=trio.Event())
    config = StoreConfig(tmp_path, synchronous="NORMAL")

    async def opener() -> Store:
        store: Any = await FaultyStore.prepared(config, faults, inline_runner, Holder.of(config))
        store.group = group
        return cast("Store", store)

    async with StorageActor(opener).running(Restarts(Intensity())) as actor, trio.open_nursery() as nursery:
        first = ask(nursery, actor.write, commit("first"))
        await trio.testing.wait_all_tasks_blocked()
        writes = [ask(nursery, actor.write, commit(f"s{number}")) for number in range(50)]
        await trio.testing.wait_all_tasks_blocked()
        faults.delay_after = 1.0
        assert faults.gate is not None
        faults.gate.set()
        await first.ended.wait()
        await trio.sleep(1.5)
        assert sum(write.ended.is_set() for write in writes) == groups[0]
        for write in writes:
            await write.ended.wait()
        assert faults.groups == [1, *groups]


async def test_only_what_is_at_fault_fails(tmp_path: Path) -> None:
    """One bad operation of a group does not spoil the others."""
    faults = Faults(gate=trio.Event())
    async with storage(tmp_path, faults) as actor, trio.open_nursery() as nursery:
        first = ask(nursery, actor.write, commit("first"))
        await trio.testing.wait_all_tasks_blocked()
        good, bad = ask(nursery, actor.write, commit("good")), ask(nursery, actor.write, Archive("unknown"))
        await trio.testing.wait_all_tasks_blocked()
        assert faults.gate is not None
        faults.gate.set()
        await first.ended.wait()
        await bad.failure(SessionNotFoundError)
        await good.ended.wait()
        assert good.error is None
        assert actor.health().last_error is None


async def test_the_last_error_is_kept_for_a_while(tmp_path: Path) -> None:
    """Health says what is wrong, for a minute after writes succeed again, too."""
    faults = Faults(refuse=apsw.FullError("no room"))
    async with storage(tmp_path, faults) as actor:
        with pytest.raises(StoreError, match="full"):
            await actor.write(commit("s"))
        assert "full" in str(actor.health().last_error)
        faults.refuse = None
        await actor.write(commit("s"))
        assert actor.health().status == "ok"
        assert "full" in str(actor.health().last_error)
        await trio.sleep(REMEMBERED)
        assert actor.health().last_error is None


async def test_a_crash_restarts_it(tmp_path: Path) -> None:
    """A caller that waited gets a store error; the store is opened anew; the next write works."""
    faults = Faults(crash_before=1)
    async with storage(tmp_path, faults) as actor:
        with pytest.raises(StoreError) as caught:
            await actor.write(commit("s"))
        assert caught.value.cause == "crash"
        await actor.write(commit("s"))
        assert faults.opened == 2
        assert await (await actor.reader()).read(SessionRow("s", ANY_TENANT)) is not None


async def test_reads_during_a_restart_wait_for_it(tmp_path: Path) -> None:
    """A caller that reads in that moment gets the store that is opened anew; at the end nobody is left waiting."""
    faults = Faults(crash_before=1, crash_open=0)
    async with storage(tmp_path, faults) as actor, trio.open_nursery() as nursery:
        faults.crash_open = 1
        write = ask(nursery, actor.write, commit("s"))
        read = ask(nursery, actor.reader)
        await write.failure(StoreError)
        again = ask(nursery, actor.reader)
        assert await (await again.value()).read(SessionRow("s", ANY_TENANT)) is None
        assert await read.value() is not None
    with pytest.raises(StoreError) as caught:
        await actor.reader()
    assert (caught.value.cause, caught.value.retryable) == ("closed", False)


async def test_the_time_during_a_restart_is_that_of_the_store(tmp_path: Path) -> None:
    """The clock of the machine may be far from the one by which all deadlines of the store are."""
    faults = Faults(crash_before=1)
    async with storage(tmp_path, faults) as actor, trio.open_nursery() as nursery:
        store: Any = await actor.reader()
        store.behind.me.clock = lambda: datetime(2040, 1, 1, tzinfo=UTC).timestamp()
        faults.crash_open = 1
        write = ask(nursery, actor.write, commit("s"))
        await write.failure(StoreError)
        assert faults.opened == 1
        assert actor.now().year == 2040


async def test_writes_during_a_restart_wait_for_it(tmp_path: Path) -> None:
    """A request that is sent while the actor restarts is neither refused nor lost."""
    faults = Faults(crash_before=1, crash_open=0)
    async with storage(tmp_path, faults) as actor, trio.open_nursery() as nursery:
        broken = ask(nursery, actor.write, commit("a"))
        await trio.testing.wait_all_tasks_blocked()
        later = ask(nursery, actor.write, commit("b"))
        await broken.failure(StoreError)
        await later.ended.wait()
        assert later.error is None


async def test_a_store_that_cannot_be_opened_again_is_tried_again(tmp_path: Path) -> None:
    """A failing reopening counts as a crash, not as the end."""
    faults = Faults(crash_before=1)
    async with storage(tmp_path, faults) as actor:
        faults.crash_open = 2
        with pytest.raises(StoreError):
            await actor.write(commit("a"))
        await actor.write(commit("b"))
        assert faults.opened == 2


async def test_past_its_intensity_it_gives_up_with_the_cause(tmp_path: Path) -> None:
    """The error says which actor, carries the last crash, and is no exception group."""
    faults = Faults(crash_before=100)

    async def body() -> None:
        async with storage(tmp_path, faults, Intensity(restarts=2, seconds=10)) as actor:
            for _ in range(100):
                with pytest.raises(StoreError):
                    await actor.write(commit("a"))

    with pytest.raises(ActorFailedError, match="storage") as caught:
        await body()
    assert isinstance(caught.value.__cause__, CrashError)
    assert len(faults.groups) == 3


async def test_crashes_that_are_far_apart_are_forgiven(tmp_path: Path) -> None:
    """Only crashes within the period count."""
    faults = Faults()
    async with storage(tmp_path, faults, Intensity(restarts=1, seconds=10)) as actor:
        for _ in range(5):
            faults.crash_before = 1
            with pytest.raises(StoreError):
                await actor.write(commit("a"))
            await trio.sleep(11)
        await actor.write(commit("a"))


async def test_leaving_commits_what_waits(tmp_path: Path) -> None:
    """Writes that were sent before the end are on the disk after it; later ones are refused."""
    faults = Faults(gate=trio.Event())
    async with trio.open_nursery() as nursery:
        async with storage(tmp_path, faults) as actor:
            writes = [ask(nursery, actor.write, commit(f"s{number}")) for number in range(3)]
            await trio.testing.wait_all_tasks_blocked()
            assert faults.gate is not None
            faults.gate.set()
        for write in writes:
            await write.ended.wait()
            assert write.error is None
    with pytest.raises(StoreError, match="closed"):
        await actor.write(commit("late"))


async def test_a_cancelled_write_is_written_all_the_same(tmp_path: Path) -> None:
    """A caller that goes away loses the answer, not the write."""
    faults = Faults(delay=5)
    async with storage(tmp_path, faults) as actor:
        with trio.move_on_after(1):
            await actor.write(commit("a"))
        await actor.write(commit("b"))
        assert {record.session_id for record in await (await actor.reader()).read(SessionList("default"))} == {"a", "b"}


async def test_the_runtime_ends_with_the_cause_when_storage_gives_up(tmp_path: Path) -> None:
    """The body is cancelled, a running turn's caller gets an error, and the cause leaves without a group."""
    faults = Faults()
    config = Config(intensity=Intensity(restarts=0))
    turns: list[Asked[TurnResult]] = []

    async def body(nursery: trio.Nursery) -> None:
        async with open_runtime(says(["hi"]), store=tmp_path, faults=faults, config=config) as service:
            session_id = await new_session(service)
            faults.crash_before = 1
            turns.append(ask(nursery, service.start_turn, session_id, "hello"))
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        with pytest.raises(ActorFailedError) as caught:
            await body(nursery)
        assert (await turns[0].failure(StoreError)).details["text"] == "hi"
    assert isinstance(caught.value.__cause__, CrashError)


async def test_a_turn_whose_commit_was_lost_in_a_crash(tmp_path: Path) -> None:
    """The storage actor crashed before the commit: the caller is told, with the text; the session goes on."""
    faults = Faults()
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.crash_before = 1
        with pytest.raises(StoreError) as caught:
            await service.start_turn(session_id, "first")
        assert caught.value.details["text"] == "one"
        assert (await service.start_turn(session_id, "second")).text == "two"
        assert len(await transcript(service, session_id)) == 2


async def test_a_turn_whose_commit_was_done_before_a_crash(tmp_path: Path) -> None:
    """The storage actor crashed after the commit: the turn is looked up in the file, and its caller gets the answer."""
    faults, recorder = Faults(), Recorder()
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.crash_after = 1
        assert (await service.start_turn(session_id, "first", on_event=recorder)).text == "one"
        assert (await service.start_turn(session_id, "second", on_event=recorder)).text == "two"
        assert len(await transcript(service, session_id)) == 4
        assert numbers(await replay(service, session_id)) == numbers(recorder.envelopes)


async def test_its_mailbox_is_not_the_sessions(tmp_path: Path) -> None:
    """Far more writes may wait than a session's mailbox would hold."""
    faults = Faults(gate=trio.Event())
    async with storage(tmp_path, faults) as actor, trio.open_nursery() as nursery:
        many = Mailbox().capacity + 100
        writes = [ask(nursery, actor.write, commit(f"s{number}")) for number in range(many)]
        await trio.testing.wait_all_tasks_blocked()
        assert faults.gate is not None
        faults.gate.set()
        for write in writes:
            await write.ended.wait()
            assert write.error is None
        assert isinstance(actor, StorageActor)


@attrs.define(eq=False)
class GoingBack:
    """A store that goes back, and registers this process anew, in its next write or before it."""

    key: int = 1
    went_back: int = 0
    lapses: int = 0
    proof: float = 3.6
    group: int = 25
    at_write: bool = False
    written: int = 0
    noted: int = 0

    def go_back(self) -> None:
        """Go back."""
        self.key, self.went_back, self.lapses = self.key + 1, self.went_back + 1, self.lapses + 1

    async def write(self, operations: list[Any]) -> list[None]:
        """Take them all."""
        self.written += len(operations)
        if self.at_write:
            self.go_back()
        return [None] * len(operations)

    async def aclose(self, *, leave: bool) -> None:
        """Nothing is open."""


@asynccontextmanager
async def going_back(store: GoingBack) -> AsyncIterator[StorageActor]:
    """Run a storage actor over such a store, whose leases are proved for three seconds."""

    async def opener() -> Store:
        return cast("Store", store)

    async with StorageActor(opener).running(Restarts(Intensity())) as actor:
        actor.fence.renewed(actor.fence.clock(), 3.0, 0)
        yield actor


async def test_leases_that_are_registered_anew_are_proved_for_a_time() -> None:
    """Though the same write found that the store had gone back."""
    store = GoingBack(at_write=True)
    async with going_back(store) as actor:
        await actor.write(commit("s"))
        assert actor.fence.lapses == 1
        assert math.isfinite(actor.fence.until)
        assert actor.fence.proved


async def test_what_follows_from_the_former_state_is_not_written() -> None:
    """A renewal has found that the store has gone back, but the actor has not looked yet; new leases need a proof."""
    store = GoingBack()
    async with going_back(store) as actor:
        store.go_back()
        with pytest.raises(StoreError) as refused:
            await actor.write(commit("s"))
        assert (refused.value.cause, refused.value.retryable, store.written) == ("lease_lost", True, 0)
        assert not actor.fence.proved
        await actor.write(commit("s"))
        assert store.written == 1
