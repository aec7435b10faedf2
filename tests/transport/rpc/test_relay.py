"""The events of one turn on their way to its caller."""

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from tests.support.logs import new_log
from warren.conversation.events import Envelope, Event, RunStarted, TextDelta, TurnResumed
from warren.transport.rpc.relay import Relay

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("pace", [0.0, 1.0])
async def test_a_turn_that_is_put_back_ends_for_its_caller(pace: float) -> None:
    """Without a terminal event the newest event is the last one: later ones belong to no call."""
    log, told = new_log(), list[Event]()
    published: list[Event] = [RunStarted("s", "go"), TextDelta("half")]

    async def send(envelope: Envelope) -> None:
        await trio.sleep(pace)
        told.append(envelope.event)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            relay = Relay(send, nursery)
            relay.begin(log.read())
            for event in published:
                log.emit(event)
            if not pace:
                await wait_all_tasks_blocked()
            await relay.settle(None)
            log.emit(TurnResumed(1, 1))
    assert told == published
    assert not log.watched


async def test_a_turn_that_never_began_ends_at_once() -> None:
    """Nobody has to be told of anything."""

    async def send(_envelope: Envelope) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await Relay(send, nursery).settle(None)
