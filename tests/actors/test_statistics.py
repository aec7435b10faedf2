"""The statistics count what the runtime does at that moment."""

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.faulty_store import Faults
from tests.support.models import GatedModel, says
from tests.support.runtime import new_session, open_runtime
from warren.config import Config, Limits
from warren.statistics import RuntimeStatistics, SessionStatistics, StorageStatistics

pytestmark = pytest.mark.virtual_time


async def test_sessions_and_turns(tmp_path: Path) -> None:
    """Of three live sessions one runs a turn, one waits for room and one is idle; what ends is no longer counted."""
    model, config = GatedModel(), Config(limits=Limits(max_sessions=1, idle_after=10))
    async with open_runtime(model, store=tmp_path, config=config) as service, trio.open_nursery() as nursery:
        assert service.statistics() == RuntimeStatistics(0, 0, storage=StorageStatistics(0, None))
        runs, waits, rests = [await new_session(service) for _ in range(3)]
        running = ask(nursery, service.start_turn, runs, "go")
        await trio.testing.wait_all_tasks_blocked()
        waiting = ask(nursery, service.start_turn, waits, "go", mode="queue")
        await trio.testing.wait_all_tasks_blocked()
        async with service.subscribe(rests):
            found = service.statistics()
            assert (found.live_sessions, found.running_turns, found.waiting_sessions, found.idle_sessions) == (
                (3, 1, 1, 1)
            )
            assert (found.event_logs, found.subscriptions, found.evictions) == (3, 1, 0)
            assert found.event_bytes > 0, "the running turn has begun, and is not stored"
            assert service.session_statistics(runs) == SessionStatistics(True, 0, 0, 2, 0)
            assert service.session_statistics(waits) == SessionStatistics(False, 0, 1, 0, 0)
            assert service.session_statistics(rests) == SessionStatistics(False, 0, 0, 0, 1)
            model.gate.set()
            await running.value()
            await waiting.value()
            await trio.sleep(11)
            found = service.statistics()
            assert (found.live_sessions, found.idle_sessions, found.leaving_sessions, found.evictions) == (0, 0, 0, 3)
            assert (found.event_logs, found.subscriptions, found.event_bytes) == (1, 1, 0), "one is watched"
        assert service.session_statistics(rests) is None
        assert service.statistics().event_logs == 0


async def test_queues(tmp_path: Path) -> None:
    """Messages that an actor has not received count, and operations that wait for a commit that hangs."""
    faults = Faults()
    async with open_runtime(says(), store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        one, two = [await new_session(service) for _ in range(2)]
        faults.gate = trio.Event()
        asked = [ask(nursery, service.start_turn, one, "go")]
        await trio.testing.wait_all_tasks_blocked()
        asked += [ask(nursery, service.label, each, {"a": "b"}) for each in (one, two, two)]
        await trio.testing.wait_all_tasks_blocked()
        storage = service.statistics().storage
        assert storage is not None
        assert storage.queued == 3
        assert storage.last_commit_ms is not None
        archived = [ask(nursery, service.archive, two) for _ in range(2)]
        await trio.lowlevel.checkpoint()
        found = service.statistics()
        assert (found.mailbox_messages, found.largest_mailbox) == (2, 2)
        faults.gate.set()
        for each in (*asked, *archived):
            await each.ended.wait()
        assert service.statistics().storage == attrs.evolve(storage, queued=0)


async def test_without_a_store() -> None:
    """Sessions in memory are never idle in the sense that they can be evicted, and there is no queue of writes."""
    async with open_runtime(says(["hi"])) as service:
        await service.create_session("go")
        found = service.statistics()
        assert (found.live_sessions, found.idle_sessions, found.storage) == (1, 0, None)


@pytest.mark.parametrize("kind", [RuntimeStatistics, SessionStatistics, StorageStatistics])
def test_each_figure_is_explained(kind: type) -> None:
    """The docstring has a line for each field, in their order."""
    lines = [line.strip().partition(":")[0] for line in (kind.__doc__ or "").splitlines() if ": " in line]
    assert lines == [field.name for field in attrs.fields(kind)]
