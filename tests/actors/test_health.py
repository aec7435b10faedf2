"""The health of a runtime, part by part."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.compacting import chatty
from tests.support.faulty_store import Faults
from tests.support.memories import MemoryFaults, memory_in
from tests.support.models import FunctionModel, GatedModel
from tests.support.runtime import memory_of, new_session, open_runtime
from tests.support.waiting import until
from warren.actors.calls.service import Service
from warren.actors.events.eventlog import utc_now
from warren.actors.observe.metrics import ENOUGH, INTERVAL, PATIENCE, LoopLag, Samples, Writes
from warren.actors.runtime import open_runtime as open_actors
from warren.base.errors import StoreCause, StoreError
from warren.conversation import codec
from warren.conversation.memory import MemoryEntry
from warren.reports.health import (
    FAILED_AFTER,
    LATE_LOOP_MS,
    LoopHealth,
    MemoryHealth,
    ProjectorHealth,
    StoreHealth,
    worst,
)
from warren.settings.config import Config, Limits, StoreConfig
from warren.storage.projection import Follower
from warren.storage.sqlite import SqliteStore
from warren.transport.providers import open_providers

virtual = pytest.mark.virtual_time
FULL = apsw.FullError("no room")


@virtual
async def test_a_runtime_that_is_well(tmp_path: Path) -> None:
    """Each part that there is says that it is ok; what there is not says nothing."""
    async with open_runtime(store=tmp_path, memory=memory_in(tmp_path / "memory")) as service:
        await service.create_session("hello")
        health = service.health()
        assert (health.status, health.live_sessions, health.running_turns) == ("ok", 1, 0)
        assert health.store == StoreHealth("ok", None, 0.0, 0.0)
        assert (health.memory, health.projector, health.loop) == (
            MemoryHealth("ok", weighs="words"),
            None,
            LoopHealth(),
        )
    async with open_runtime() as service:
        assert (service.health().status, service.health().store, service.health().memory) == ("ok", None, None)


@virtual
async def test_how_long_commits_take(tmp_path: Path) -> None:
    """The middle one and the slowest of the recent commits, in milliseconds."""
    faults = Faults()
    async with open_runtime(store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        for _ in range(99):
            faults.delay = 0.004
            await service.start_turn(session_id, "go on")
        faults.delay = 0.5
        await service.start_turn(session_id, "go on")
        await service.start_turn(session_id, "go on")
        store = service.health().store
        assert store is not None
        assert (store.commit_p50_ms, store.commit_p99_ms) == (4.0, 500.0)


@virtual
async def test_commits_that_are_slow(tmp_path: Path) -> None:
    """A single one says nothing; when one in a hundred is, the store is degraded, and so is the whole."""
    faults = Faults(delay=2.0)
    async with open_runtime(store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        assert service.health().status == "ok"
        for _ in range(ENOUGH):
            await service.start_turn(session_id, "go on")
        store = service.health().store
        assert store is not None
        assert (store.status, store.last_error, service.health().status) == ("degraded", None, "degraded")


@virtual
async def test_a_store_that_refuses_writes(tmp_path: Path) -> None:
    """It is degraded at once, with the reason, and failed when that does not end; a write that succeeds ends it."""
    faults = Faults()
    async with open_runtime(store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.refuse = apsw.CorruptError("malformed")
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go on")
        health = service.health()
        assert health.store is not None
        assert (health.status, health.store.status) == ("degraded", "degraded")
        assert "malformed" in str(health.store.last_error)
        await trio.sleep(FAILED_AFTER)
        assert service.health().status == "failed"
        faults.refuse = None
        await service.start_turn(session_id, "go on")
        assert service.health().status == "ok"


@virtual
async def test_a_disk_that_has_room_again(tmp_path: Path) -> None:
    """That the store can be written is tried also while no turn ends: what has passed is not told for ever."""
    faults = Faults(refuse=FULL, refusals=1)
    async with open_runtime(store=tmp_path, faults=faults) as service:
        with pytest.raises(StoreError):
            await new_session(service)
        assert service.health().status == "degraded"
        await new_session(service)
        assert service.health().status == "ok"
        faults.refusals = 1
        with pytest.raises(StoreError):
            await new_session(service)
        await trio.sleep(6)
        assert service.health().status == "ok"


async def test_a_store_that_cannot_be_written_is_noticed_without_a_turn(tmp_path: Path) -> None:
    """Another process keeps the file locked: the next try to write, some seconds later, says so."""
    config = StoreConfig(tmp_path, lease=0.3, busy_timeout=0.0)
    async with opened(config) as service:
        await new_session(service)
        lock = apsw.Connection(str(tmp_path / "sessions.sqlite3"))
        lock.execute("BEGIN IMMEDIATE")
        await until(lambda: service.health().status != "ok")
        store = service.health().store
        assert store is not None
        assert "locked" in str(store.last_error)
        lock.execute("ROLLBACK")
        lock.close()
        await until(lambda: service.health().status == "ok")


@asynccontextmanager
async def opened(config: StoreConfig) -> AsyncIterator[Service]:
    """Open a runtime on a real store, with its projector."""
    async with (
        open_providers({}) as providers,
        open_actors(
            Config(),
            providers,
            open_store=partial(SqliteStore.open, config),
            open_projection=partial(Follower, config),
        ) as runtime,
    ):
        yield runtime.service


@virtual
async def test_a_write_that_hangs(tmp_path: Path) -> None:
    """A commit that does not come back is noticed while it lasts, though nothing has failed."""
    faults = Faults()
    async with open_runtime(store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        faults.gate = trio.Event()
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.sleep(0.5)
        assert service.health().status == "ok"
        await trio.sleep(1)
        assert service.health().status == "degraded"
        await trio.sleep(FAILED_AFTER)
        assert service.health().status == "failed"
        faults.gate.set()
        await turn.ended.wait()
        assert service.health().status == "ok"


@virtual
async def test_a_session_at_fault_is_not_the_store(tmp_path: Path) -> None:
    """A failure of one session says nothing of the store: another process runs a turn of it."""
    model = GatedModel()
    async with (
        open_runtime(model, store=tmp_path) as service,
        open_runtime(store=tmp_path) as other,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreError) as refused:
            await other.archive(session_id)
        assert refused.value.cause == "leased"
        assert (other.health().status, service.health().status) == ("ok", "ok")
        model.gate.set()
        await turn.ended.wait()


@virtual
@pytest.mark.parametrize("cause", ["corrupt", "permission"])
async def test_a_damaged_session_takes_no_process_out_of_service(cause: StoreCause) -> None:
    """Its write failed and will fail again; the renewals after it show that the store takes others."""
    writes = Writes()
    writes.began()
    writes.ended([StoreError("a row is damaged", session_id="s", cause=cause)])
    await trio.sleep(PATIENCE)
    assert not writes.answered_within(1.0)
    writes.probed()
    assert writes.answered_within(1.0)
    assert writes.fault is not None
    writes.began()
    await trio.sleep(PATIENCE)
    assert not writes.answered_within(1.0), "a write that hangs counts all the same"


@virtual
async def test_as_many_turns_as_may_run(tmp_path: Path) -> None:
    """At its capacity a runtime is degraded: it refuses turns."""
    model = GatedModel()
    config = Config(limits=Limits(max_sessions=1))
    async with open_runtime(model, store=tmp_path, config=config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        health = service.health()
        assert (health.status, health.running_turns, health.max_sessions) == ("degraded", 1, 1)
        model.gate.set()
        await turn.ended.wait()
        assert service.health().status == "ok"


@virtual
async def test_an_index_that_cannot_be_brought_forward(tmp_path: Path) -> None:
    """The memory says why; the store is not to blame."""
    faults = MemoryFaults(behind=True, refuse_catch_up=OSError("no more handles"))
    model = FunctionModel(chatty)
    async with open_runtime(model, store=tmp_path, memory=memory_in(tmp_path / "memory", faults)) as service:
        entries = [MemoryEntry("a", number, 1, f"text {number}", utc_now()) for number in range(40)]
        await memory_of(service).add(entries)
        await trio.testing.wait_all_tasks_blocked()
        health = service.health()
        assert (health.status, health.memory) == ("degraded", MemoryHealth("degraded", 0, "no more handles", "words"))
        assert health.store is not None
        assert health.store.status == "ok"
        faults.refuse_catch_up = None
        await trio.sleep(61)
        assert (service.health().status, service.health().memory) == ("ok", MemoryHealth("ok", weighs="words"))


async def test_the_projector(tmp_path: Path) -> None:
    """It says how many changes its files do not show yet, and what is wrong where they cannot be written."""
    async with opened(StoreConfig(tmp_path)) as service:
        await service.create_session("hello")
        await until(lambda: service.health().projector == ProjectorHealth("ok", projecting=True, behind=0))


@virtual
async def test_a_loop_that_is_on_time() -> None:
    """Nothing is late on a clock that only moves when everybody waits."""
    lag = LoopLag()
    with trio.move_on_after(INTERVAL * (ENOUGH + 10)):
        await lag.watch()
    assert lag.health() == LoopHealth("ok", 0.0)


@virtual
async def test_a_loop_that_is_held_up() -> None:
    """A blocked loop is seen in how late everything else is."""
    lag, clock = LoopLag(), trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.watch)
        await trio.sleep(INTERVAL - 0.1)
        clock.jump(0.4)  # time goes by, and no task runs meanwhile
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert lag.health() == LoopHealth("ok", 300.0), "once is not often"


def test_percentiles() -> None:
    """The newest durations count, by the nearest rank."""
    samples = Samples()
    assert (samples.percentile(0.99), samples.exceed(0)) == (None, False)
    for number in range(1, ENOUGH + 1):
        samples.add(number / 1000)
    assert (samples.percentile(0.5), samples.percentile(0.99)) == (50.0, 99.0)
    assert (samples.exceed(98.5), samples.exceed(99.5)) == (True, False)
    for _ in range(1_000):
        samples.add(LATE_LOOP_MS)
    assert samples.percentile(0.01) == LATE_LOOP_MS * 1000


def test_the_worst_counts() -> None:
    """A whole is as its worst part."""
    assert worst() == worst("ok", "ok") == "ok"
    assert worst("ok", "degraded") == "degraded"
    assert worst("failed", "degraded", "ok") == "failed"


async def test_it_goes_out_as_json(tmp_path: Path) -> None:
    """Every part arrives at a client under its name."""
    async with opened(StoreConfig(tmp_path)) as service:
        await service.create_session("hello")
        data = codec.to_data(service.health())
    assert {"status", "live_sessions", "running_turns", "max_sessions", "store", "projector"} <= set(data)
    assert {"status", "commit_p50_ms", "commit_p99_ms"} == set(data["store"])
    assert 0 < data["store"]["commit_p50_ms"] <= data["store"]["commit_p99_ms"]


@virtual
async def test_a_small_write_does_not_hide_a_turn_that_was_refused(tmp_path: Path) -> None:
    """The reason is there at once, and for a minute after other writes succeed: an operator gets to read it."""
    faults = Faults()
    async with open_runtime(store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.too_large = True
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go on")
        await service.label(session_id, {"small": "write"})
        store = service.health().store
        assert store is not None
        assert "full" in str(store.last_error)
        await trio.sleep(61)
        store = service.health().store
        assert store is not None
        assert store.last_error is None


@virtual
async def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    """A read that fails is told of at once, as a write is, and no longer once reads succeed."""
    async with open_runtime(store=tmp_path) as service:
        session_id = await new_session(service)
        change_file(tmp_path, "ALTER TABLE sessions RENAME TO gone")
        with pytest.raises(StoreError):
            await service.list()
        health = service.health()
        assert health.store is not None
        assert (health.status, health.store.status) == ("degraded", "degraded")
        assert "no such table" in str(health.store.last_error)
        change_file(tmp_path, "ALTER TABLE gone RENAME TO sessions")
        assert [row.session_id for row in (await service.list()).sessions] == [session_id]
        assert service.health().store == StoreHealth("ok", None, 0.0, 0.0)


def change_file(folder: Path, statement: str) -> None:
    """Change the store's file behind its back."""
    db = apsw.Connection(str(folder / "sessions.sqlite3"))
    db.execute(statement)
    db.close()
