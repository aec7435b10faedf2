"""The memory's actor: crashes and restarts, its index, its end, and what the service says of it."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.compacting import settings, talk
from tests.support.faulty_store import Faults, FaultyStore
from tests.support.memories import MemoryFaults, memory_in, recalling_model, remembered
from tests.support.models import FunctionModel, OneModel, stuck
from tests.support.runtime import memory_of, new_session, open_runtime
from warren.actors.resources.memory import RETRY_AFTER
from warren.actors.runtime import open_runtime as open_actors
from warren.base.errors import AgentError, InvalidParamsError, MemoryDisabledError, ProviderError, StoreError
from warren.calls.reading import SearchRequest
from warren.conversation.memory import MAX_HITS, MemoryEntry
from warren.reports.health import MemoryHealth
from warren.settings.config import Config, Intensity, StoreConfig
from warren.storage.runner import inline_runner
from warren.storage.sqlite import Holder

pytestmark = pytest.mark.virtual_time


def entry(at: int, text: str = "the lynx is called Magda", session_id: str = "s") -> MemoryEntry:
    """Return something to remember."""
    return MemoryEntry(session_id, at, 1, text, datetime.now(UTC))


# -- crashes


async def test_a_crash_refuses_what_waited_and_the_memory_is_opened_anew(tmp_path: Path) -> None:
    """Whoever waited is told that nothing is confirmed; then everything works, and what was stored is there."""
    faults = MemoryFaults()
    async with open_runtime(recalling_model(), memory=memory_in(tmp_path, faults)) as service:
        memory = memory_of(service)
        assert await memory.add([entry(0)]) == 1
        faults.crash_before = 1
        with pytest.raises(StoreError) as caught:
            await memory.add([entry(1)])
        assert caught.value.cause == "crash"
        assert memory.health().status == "degraded"
        assert await memory.add([entry(0), entry(1)]) == 1
        assert len(await service.search_memory("lynx", scope="project")) == 2
        assert faults.opened == 2
        assert faults.told == ["memory closes"]


async def test_what_a_batch_had_done_before_its_crash_stays_answered(tmp_path: Path) -> None:
    """Of entries that wait together those that were taken in before the crash are confirmed."""
    faults = MemoryFaults(gate=trio.Event())
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service, trio.open_nursery() as nursery:
        memory = memory_of(service)
        held = ask(nursery, memory.add, [entry(0)])
        await trio.testing.wait_all_tasks_blocked()
        early = ask(nursery, memory.add, [entry(1)])
        await trio.testing.wait_all_tasks_blocked()
        late = ask(nursery, memory.add, [entry(2)])
        await trio.testing.wait_all_tasks_blocked()
        assert faults.gate is not None
        faults.gate.set()
        assert await held.value() == 1
        faults.crash_after = 1
        assert (await early.failure(StoreError)).cause == "crash"
        assert (await late.failure(StoreError)).cause == "crash"
        assert await memory.add([entry(1), entry(2)]) == 1


async def test_a_search_during_a_restart_waits(tmp_path: Path) -> None:
    """While the memory takes ten seconds to come back a search waits; then it finds what was stored."""
    faults = MemoryFaults()
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service, trio.open_nursery() as nursery:
        memory = memory_of(service)
        await memory.add([entry(0)])
        faults.crash_before, faults.open_delay = 1, 10
        with pytest.raises(StoreError):
            await memory.add([entry(1)])
        search = ask(nursery, service.search_memory, "lynx", scope="project")
        assert len(await search.value()) == 1
        assert 9 < search.took < 11


async def test_an_opening_that_crashes_is_tried_again(tmp_path: Path) -> None:
    """A restart that crashes once more counts as another crash; those who wait go on waiting."""
    faults = MemoryFaults()
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service:
        memory = memory_of(service)
        await memory.add([entry(0)])
        faults.crash_before, faults.crash_open = 1, 2
        with pytest.raises(StoreError):
            await memory.add([entry(1)])
        assert len(await service.search_memory("lynx", scope="project")) == 1


@pytest.mark.parametrize("crash", ["crash_before", "crash_open"])
async def test_past_the_intensity_the_runtime_goes_on_without_the_memory(tmp_path: Path, crash: str) -> None:
    """A memory that crashes again and again refuses at once what comes, and turns run on; then it is back."""
    faults, config = MemoryFaults(), Config(intensity=Intensity(5, 10))
    async with open_runtime(recalling_model(), config=config, memory=memory_in(tmp_path, faults)) as service:
        memory = memory_of(service)
        await memory.add([entry(0)])
        faults.crash_before = 1
        setattr(faults, crash, 20)
        while not memory.resting:
            with contextlib.suppress(StoreError):
                await memory.add([entry(1)])
        began = trio.current_time()
        assert service.health().status == "degraded"
        assert memory.health().status == "degraded"
        assert "it crashed: CrashError" in str(memory.health().last_error)
        with pytest.raises(StoreError, match="the memory is not there now") as caught:
            await service.search_memory("lynx", scope="project")
        assert (caught.value.cause, caught.value.retryable) == ("unreachable", True)
        with pytest.raises(StoreError, match="the memory is not there now"):
            await memory.add([entry(1)])
        session_id = await new_session(service)
        await service.start_turn(session_id, "go on")
        assert trio.current_time() == began
        while getattr(faults, crash):
            with contextlib.suppress(StoreError):
                await memory.add([entry(1)])
            await trio.sleep(0.5)
        assert trio.current_time() - began > 15
        await trio.sleep(120)
        assert memory.health().status == "ok"
        await memory.add([entry(1)])
        assert len(await service.search_memory("lynx", scope="project")) == 2
        assert memory.health() == MemoryHealth("ok", 0, None, "words")


async def test_a_runtime_ends_while_its_memory_rests(tmp_path: Path) -> None:
    """At once, without an error, and without another try to open a memory that may never come back."""
    faults = MemoryFaults()
    async with open_runtime(config=Config(intensity=Intensity(0, 10)), memory=memory_in(tmp_path, faults)) as service:
        faults.crash_before, faults.crash_open = 1, 100
        with pytest.raises(StoreError):
            await memory_of(service).add([entry(0)])
        await trio.sleep(40)
        began, left = trio.current_time(), faults.crash_open
    assert trio.current_time() == began
    assert 0 < faults.crash_open == left


async def test_crashes_far_apart_are_survived(tmp_path: Path) -> None:
    """Crashes that are further apart than the intensity's period never add up."""
    faults, config = MemoryFaults(), Config(intensity=Intensity(1, 10))
    async with open_runtime(config=config, memory=memory_in(tmp_path, faults)) as service:
        memory = memory_of(service)
        for _ in range(5):
            faults.crash_before = 1
            with pytest.raises(StoreError):
                await memory.add([entry(0)])
            await trio.sleep(11)
        assert await memory.add([entry(0)]) == 1


# -- the index


async def test_a_memory_that_refuses_says_so_in_its_health(tmp_path: Path) -> None:
    """While what is to be remembered is refused the memory is degraded and says why; then it is well again."""
    faults = MemoryFaults(refuse=ProviderError("the model is away", retryable=True))
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service:
        memory = memory_of(service)
        assert memory.health().status == "ok"
        with pytest.raises(ProviderError):
            await memory.add([entry(0)])
        assert (memory.health().status, memory.health().last_error) == ("degraded", "the model is away")
        faults.refuse = None
        await memory.add([entry(0)])
        assert memory.health() == MemoryHealth("ok", 0, None, "words")


@pytest.mark.parametrize(
    "error", [StoreError("locked"), OSError(28, "No space left on device"), RuntimeError("the graph is broken")]
)
async def test_an_index_that_cannot_be_brought_forward(tmp_path: Path, error: Exception) -> None:
    """The index is a cache: while it cannot follow, the runtime runs on, and so do the memory and its searches."""
    faults = MemoryFaults(refuse_catch_up=error, behind=True)
    async with open_runtime(recalling_model(), memory=memory_in(tmp_path, faults)) as service:
        await trio.testing.wait_all_tasks_blocked()
        memory = memory_of(service)
        assert await memory.add([entry(0)]) == 1
        assert len(await service.search_memory("lynx", scope="project")) == 1
        faults.refuse_catch_up = None
        await memory.add([entry(1)])
        await trio.testing.wait_all_tasks_blocked()
        assert faults.caught_up == 1


async def test_an_index_that_could_not_be_brought_forward_is_tried_again(tmp_path: Path) -> None:
    """A fault that kept the index behind, such as a server of vectors that was down, is retried without being asked."""
    faults = MemoryFaults(refuse_catch_up=StoreError("not now"), behind=True)
    async with open_runtime(memory=memory_in(tmp_path, faults)):
        await trio.sleep(RETRY_AFTER * 2.5)
        faults.refuse_catch_up = None
        await trio.sleep(RETRY_AFTER)
        assert faults.caught_up == 1
        await trio.sleep(RETRY_AFTER * 10)
        assert faults.caught_up == 1


async def test_work_that_comes_while_the_index_is_brought_forward(tmp_path: Path) -> None:
    """A text that comes at the last moment of bringing the index forward is followed as well, with no further call."""
    faults = MemoryFaults(behind=True, catch_up_gate=trio.Event())
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service:
        await trio.testing.wait_all_tasks_blocked()
        memory = memory_of(service)
        await memory.add([entry(at) for at in range(200)])
        store = await memory.reader()
        assert faults.catch_up_gate is not None
        faults.catch_up_gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (await store.stats()).behind == 0


async def test_a_restarted_memory_goes_on_with_its_index(tmp_path: Path) -> None:
    """An index that was behind when the memory crashed is brought forward after the restart, with no further call."""
    faults = MemoryFaults(behind=True, refuse_catch_up=StoreError("the disk is slow"))
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service:
        await trio.testing.wait_all_tasks_blocked()
        faults.crash_before = 1
        with pytest.raises(StoreError):
            await memory_of(service).add([entry(0)])
        faults.refuse_catch_up = None
        await trio.testing.wait_all_tasks_blocked()
        assert faults.opened == 2
        assert faults.caught_up == 1


async def test_a_rebuild_holds_up_nobody(tmp_path: Path) -> None:
    """While the index is made anew the memory takes in, forgets, answers, and the runtime ends; the next goes on."""
    faults = MemoryFaults(catch_up_gate=trio.Event())
    async with trio.open_nursery() as nursery:
        async with open_runtime(memory=memory_in(tmp_path, faults)) as service:
            memory = memory_of(service)
            await memory.add([entry(at) for at in range(40)])
            rebuild = ask(nursery, memory.rebuild)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(1):
                assert await memory.add([entry(0, session_id="late"), entry(0, session_id="gone")]) == 2
                await memory.forget("gone")
                assert await service.search_memory("lynx", session_id="gone") == ()
                assert len(await service.search_memory("lynx", session_id="late")) == 1
        assert not rebuild.ended.is_set()
        nursery.cancel_scope.cancel()
    async with open_runtime(memory=memory_in(tmp_path)) as service:
        await trio.testing.wait_all_tasks_blocked()
        stats = await (await memory_of(service).reader()).stats()
        assert (stats.entries, stats.indexed, stats.behind) == (41, 41, 0)


async def test_a_cancelled_rebuild_is_finished_by_and_by(tmp_path: Path) -> None:
    """The rest of a cancelled rebuild is done without a further call."""
    faults = MemoryFaults(catch_up_gate=trio.Event())
    async with open_runtime(memory=memory_in(tmp_path, faults)) as service:
        await trio.testing.wait_all_tasks_blocked()
        memory = memory_of(service)
        faults.behind = True
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(memory.rebuild)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert faults.caught_up == 0
        assert faults.catch_up_gate is not None
        faults.catch_up_gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert faults.caught_up == 1


# -- the beginning and the end


class Telling(FaultyStore):
    """A store that tells when it closes."""

    told: list[str]

    async def aclose(self, *, leave: bool = True) -> None:
        self.told.append("storage closes")
        await super().aclose(leave=leave)


async def test_sessions_end_before_the_memory_and_the_memory_before_storage(tmp_path: Path) -> None:
    """A turn that runs at the end is stored and notified first; then the memory closes, then the store."""
    faults = MemoryFaults()

    async def open_store() -> Any:
        config = StoreConfig(tmp_path)
        store = await Telling.prepared(config, Faults(), inline_runner, Holder.of(config))
        store.told = faults.told
        return store

    providers: Any = OneModel(FunctionModel(stuck))
    opened = open_actors(
        Config(model="test"), providers, open_store=open_store, open_memory=memory_in(tmp_path / "memory", faults)
    )
    async with trio.open_nursery() as nursery:
        async with opened as runtime:
            session_id = await new_session(runtime.service)
            turn = ask(nursery, runtime.service.start_turn, session_id, "go on")
            nursery.start_soon(_tell, turn.ended, faults.told)
            await trio.testing.wait_all_tasks_blocked()
        await turn.failure(AgentError)
    assert faults.told == ["turn ended", "memory closes", "storage closes"]


async def _tell(ended: trio.Event, told: list[str]) -> None:
    await ended.wait()
    told.append("turn ended")


async def test_what_waits_at_the_end_is_taken_in(tmp_path: Path) -> None:
    """A compaction that waits for the memory while the runtime ends leaves what it sent in the memory."""
    faults = MemoryFaults(gate=trio.Event())
    async with trio.open_nursery() as nursery:
        async with open_runtime(
            recalling_model(), store=tmp_path, config=settings(), memory=memory_in(tmp_path / "m", faults)
        ) as service:
            session_id = await new_session(service)
            await talk(service, session_id, 4)
            turn = ask(nursery, service.start_turn, session_id, "go on")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(_open_later, faults)
        await turn.failure(AgentError)
    assert len(remembered(tmp_path / "m")) == faults.fresh[0] > 0


async def _open_later(faults: MemoryFaults) -> None:
    await trio.sleep(1)
    assert faults.gate is not None
    faults.gate.set()


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_deletion_while_the_memory_is_away_is_finished_when_it_is_back(tmp_path: Path, refusals: int) -> None:
    """The client is told that the memory failed; no search finds the deleted session once the memory is back."""
    faults, config = MemoryFaults(), Config(intensity=Intensity(0, 10))
    async with open_runtime(store=tmp_path, config=config, memory=memory_in(tmp_path / "m", faults)) as service:
        memory, session_id = memory_of(service), await new_session(service)
        await service.start_turn(session_id, "hello")
        await memory.add([entry(0, session_id=session_id)])
        faults.crash_before = 1
        with pytest.raises(StoreError):
            await memory.add([entry(1)])
        with pytest.raises(StoreError):
            await service.delete(session_id)
        if refusals > 1:
            faults.refuse_forget = StoreError("the disk is full")
            await trio.sleep(RETRY_AFTER + 1)
            faults.refuse_forget = None
        assert await service.search_memory("lynx", scope="project") if refusals > 1 else memory.resting
        await trio.sleep(RETRY_AFTER + 1)
        assert await service.search_memory("lynx", scope="project") == ()


async def test_a_memory_that_crashes_when_it_is_opened(tmp_path: Path) -> None:
    """The sessions run without it, and the health has the reason."""
    opener = memory_in(tmp_path / "memory", MemoryFaults(crash_open=1))
    async with open_runtime(recalling_model(), store=tmp_path, memory=opener) as service:
        await service.create_session("hello")
        health = service.health()
        assert health.memory is not None
        assert health.memory.status == "degraded"
        assert "the memory crashed when it was opened: CrashError" in str(health.memory.last_error)


async def test_after_the_end_everything_is_refused(tmp_path: Path) -> None:
    """Whoever kept the memory beyond its runtime gets an error, and does not wait for ever."""
    async with open_runtime(memory=memory_in(tmp_path)) as service:
        memory = memory_of(service)
    for call in (
        partial(memory.add, [entry(0)]),
        partial(memory.forget, "s"),
        partial(memory.search, SearchRequest("lynx", scope="project"), "default"),
    ):
        with trio.fail_after(1), pytest.raises(StoreError) as caught:
            await call()
        assert caught.value.cause == "closed"
    with pytest.raises(AgentError):
        await service.search_memory("lynx", scope="project")


# -- the service


async def test_without_a_memory_a_search_is_disabled(store: Path | None) -> None:
    """A search says that there is no memory; deleting and compacting work as ever."""
    async with open_runtime(recalling_model(), store=store, config=settings()) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6)
        with pytest.raises(MemoryDisabledError):
            await service.search_memory("lynx", session_id=session_id)
        assert (await service.read(session_id)).state.compactions
        assert not service.capabilities().memory_store


BAD = {
    "$.query": [{"query": ""}, {"query": " \n"}, {"query": 5}, {"query": "\ud800"}],
    "$.scope": [{"scope": "world"}, {"scope": None}],
    "$.session_id": [{"session_id": None}, {"session_id": 5}, {"session_id": "\ud800"}],
    "$.limit": [{"limit": 0}, {"limit": -1}, {"limit": MAX_HITS + 1}, {"limit": "5"}, {"limit": True}],
}


@pytest.mark.parametrize(("path", "change"), [(path, change) for path in BAD for change in BAD[path]])
async def test_a_search_that_cannot_be(path: str, change: dict[str, Any]) -> None:
    """Each bad parameter is an error that names it."""
    async with open_runtime(memory=memory_in(None)) as service:
        search: Any = service.search_memory
        with pytest.raises(InvalidParamsError) as caught:
            await search(**{"query": "lynx", "session_id": "s", **change})
        assert caught.value.details["path"] == path


async def test_a_search_by_a_client(store: Path | None) -> None:
    """A client searches one session, known or not, or all of them; it gets no more than it asked for."""
    async with open_runtime(store=store, memory=memory_in(None)) as service:
        memory = memory_of(service)
        await memory.add([entry(at, session_id=name) for name in ("a", "b") for at in range(15)])
        assert {hit.session_id for hit in await service.search_memory("lynx", session_id="a", limit=20)} == {"a"}
        assert len(await service.search_memory("lynx", session_id="a")) == 5
        assert len(await service.search_memory("lynx", scope="project", limit=MAX_HITS)) == MAX_HITS
        assert await service.search_memory("lynx", session_id="unknown") == ()
        assert await service.search_memory("heron", scope="project") == ()


async def test_without_compaction_nothing_is_remembered(store: Path | None, tmp_path: Path) -> None:
    """A memory beside sessions that never compact takes nothing in by itself, and what a host adds is found."""
    folder = tmp_path / "memory"
    async with open_runtime(recalling_model(), store=store, memory=memory_in(folder)) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 8)
        assert not remembered(folder)
        await memory_of(service).add([entry(0, session_id=session_id)])
        assert len(await service.search_memory("lynx", session_id=session_id)) == 1


# -- a memory that cannot be opened


def of_text(path: Path) -> None:
    """Let the memory be a text."""
    path.write_text("no database at all" * 1_000)


def of_another_program(path: Path) -> None:
    """Let the memory be another program's database."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE theirs (a)")


def of_the_future(path: Path) -> None:
    """Let the memory be of a version that nobody knows yet."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.pragma("user_version", 99)


@pytest.mark.parametrize("damage", [of_text, of_another_program, of_the_future])
async def test_sessions_run_without_a_memory_that_cannot_be_opened(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Turns run and are stored; health, log and a search say what is wrong; the file is not touched."""
    memory, folder = memory_in(tmp_path / "memory"), tmp_path / "store"
    await (await memory()).aclose()
    path = tmp_path / "memory" / "memory.sqlite3"
    if damage is of_text or damage is of_another_program:
        path.unlink()
    damage(path)
    before = path.read_bytes()
    async with open_runtime(recalling_model(), store=folder, memory=memory) as service:
        assert (await service.create_session("hello")).text
        health = service.health()
        assert health.memory is not None
        assert (health.status, health.memory.status) == ("degraded", "degraded")
        assert "memory store" in str(health.memory.last_error)
        assert not service.capabilities().memory_store
        with pytest.raises(MemoryDisabledError) as caught:
            await service.search_memory("lynx", scope="project")
        assert str(health.memory.last_error) in caught.value.message
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert path.read_bytes() == before
