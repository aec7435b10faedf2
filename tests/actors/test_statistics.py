"""The statistics count what the runtime does at that moment."""

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.faulty_store import Faults
from tests.support.models import GatedModel, says
from tests.support.runtime import new_session, open_runtime, supervisor_of
from warren.actors.protocol import Loaded
from warren.reports.statistics import RuntimeStatistics, SessionStatistics, StorageStatistics
from warren.settings.config import Config, Limits

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


async def test_operations_that_wait_for_a_commit(tmp_path: Path) -> None:
    """While a commit hangs, further operations wait for the next one."""
    faults = Faults()
    async with open_runtime(says(["hi"]), store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        before = service.statistics().storage
        faults.gate = trio.Event()
        nursery.start_soon(service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(service.label, session_id, {"a": "b"})
        await trio.testing.wait_all_tasks_blocked()
        meanwhile = service.statistics().storage
        faults.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert before == StorageStatistics(0, 0.0)
        assert meanwhile == StorageStatistics(3, 0.0)
        assert service.statistics().storage == StorageStatistics(0, 0.0)


async def test_messages_that_no_actor_has_received() -> None:
    """They count until their actors run."""
    async with open_runtime(says()) as service:
        one, two = [await new_session(service) for _ in range(2)]
        for session_id in (one, two, two):
            supervisor_of(service).revive(session_id).mailbox.tell(Loaded())
        found = service.statistics()
        assert (found.mailbox_messages, found.largest_mailbox) == (3, 2)
        await trio.testing.wait_all_tasks_blocked()
        found = service.statistics()
        assert (found.mailbox_messages, found.largest_mailbox) == (0, 0)


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
