"""The reader of a session that moves from node to node."""

import pytest
import trio

from tests.transport.cluster.test_fanout import all_stored, nothing_stored
from warren.actors.eventlog import EventLog
from warren.errors import StoreCause, StoreError
from warren.events import TextComplete
from warren.transport.cluster.reader import Continuation, MovingReader, TurnFeed


@pytest.mark.virtual_time
@pytest.mark.parametrize("cause", ["closed", "crash", "lease_lost", "unreachable"])
async def test_a_store_that_fails_while_a_session_is_found_again_ends_no_reader(cause: StoreCause) -> None:
    """The session is looked up once more, also if nobody knows what came of the first try."""
    log, failures = EventLog("s1", nothing_stored, all_stored, 10), [StoreError("no", cause=cause)]

    async def again(_cursor: int) -> Continuation:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        return Continuation(log.read())

    reader = MovingReader(TurnFeed("s1", 0), again, lambda _reader: None)
    reader.leave()
    log.emit(TextComplete("1"))
    with trio.fail_after(10):
        assert (await anext(reader)).event == TextComplete("1")
