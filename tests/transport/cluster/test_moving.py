"""The log of a session that moves from node to node."""

import pytest
import trio

from warren.actors.events.eventlog import EventLog, LogPage
from warren.base.errors import StoreCause, StoreError
from warren.calls.streams import EventReader
from warren.conversation.events import TextComplete
from warren.transport.cluster.moving import MovingLog


async def _nothing(_session_id: str, _after_seq: int) -> LogPage:
    await trio.lowlevel.checkpoint()
    return LogPage()


async def _none_stored(_session_id: str, _up_to: int) -> int:
    await trio.lowlevel.checkpoint()
    return 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("cause", ["closed", "crash", "lease_lost", "unreachable"])
async def test_a_store_that_fails_while_a_session_is_found_again_ends_no_reader(cause: StoreCause) -> None:
    """The session is looked up once more, also if nobody knows what came of the first try."""
    log, failures = EventLog("s1", _nothing, _none_stored, 10), [StoreError("no", cause=cause)]

    async def again(_cursor: int) -> EventReader:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        return log.read()

    reader = MovingLog("s1", 0, again, lambda _log: None).reader
    log.emit(TextComplete("1"))
    with trio.fail_after(10):
        assert (await anext(reader)).event == TextComplete("1")
