"""What one client is told of each session."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transport.sessions import FakeService, FakeTurn, envelope
from warren.errors import CapacityExceededError, SessionBusyError
from warren.events import Envelope, RunStarted, StreamTruncated
from warren.transport.rpc.feeds import PATIENCE, Feeds
from warren.views import TurnResult

pytestmark = pytest.mark.virtual_time

Out = list[Envelope]


@asynccontextmanager
async def feeds(
    service: FakeService, limit: int = 10, over: Callable[[str], None] = lambda _: None
) -> AsyncIterator[tuple[Feeds, Out]]:
    """A client's feeds and what was sent to it, for a body."""
    out: Out = []
    async with trio.open_nursery() as tasks:
        yield Feeds(service, out.append, tasks, limit, over), out
        tasks.cancel_scope.cancel()


async def run(client: Feeds, service: FakeService, session_id: str = "s1", prompt: str = "a b c") -> TurnResult:
    """Run a turn for a client."""
    return await client.stream(session_id, lambda on_event: service.start_turn(session_id, prompt, on_event=on_event))


def numbers(out: Out) -> list[int]:
    """Return the seqs, in order."""
    return [item.seq for item in out]


async def test_own_turns_are_heard_at_once() -> None:
    """Without a subscription the events of a turn go straight out."""
    service = FakeService()
    async with feeds(service) as (client, out):
        result = await run(client, service)
        assert (result.text, numbers(out)) == ("a b c", [1, 2, 3, 4, 5])


async def test_a_subscriber_hears_its_own_turn_once_and_before_the_result() -> None:
    """With a subscription the events come through it, all of them before the turn's result."""
    service = FakeService()
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        await run(client, service)
        assert numbers(out) == [1, 2, 3, 4, 5]


async def test_a_burst_is_heard_before_the_result() -> None:
    """A turn that ends without letting the subscription run still waits for it."""

    async def burst(turn: FakeTurn) -> None:
        for word in "abc":
            turn.say(word)

    service = FakeService(behaviour=burst)
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        await run(client, service)
        assert numbers(out) == [1, 2, 3, 4, 5]


async def test_a_failed_turn_is_heard_before_its_error() -> None:
    """An error comes after the events too."""

    async def fail(turn: FakeTurn) -> None:
        turn.say("a")
        raise SessionBusyError("for example")

    service = FakeService(behaviour=fail)
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        with pytest.raises(SessionBusyError):
            await run(client, service)
        assert numbers(out) == [1, 2]


async def test_watchers_hear_the_turns_of_others() -> None:
    """A subscription brings what somebody else starts, from where it was asked to begin."""
    service = FakeService()
    await service.start_turn("s1", "old words")
    async with feeds(service) as (client, out):
        await client.subscribe("s1", 2)
        await service.start_turn("s1", "new")
        await wait_all_tasks_blocked()
        assert numbers(out) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("pause", [0.1, 1])
@pytest.mark.parametrize("entering", [0, 2, 30])
async def test_a_subscription_in_mid_turn_loses_and_doubles_nothing(pause: int, entering: int) -> None:
    """A client that subscribes while its own turn runs hears every event once, however long that takes."""

    async def slow(turn: FakeTurn) -> None:
        for word in range(10):
            await trio.sleep(1)
            turn.say(str(word))

    service = FakeService(behaviour=slow, on_subscribe=partial(trio.sleep, entering))
    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        nursery.start_soon(run, client, service)
        await trio.sleep(pause * 4.5)
        await client.subscribe("s1", None)
        await trio.sleep(60)
        assert numbers(out) == list(range(1, 13))


@pytest.mark.parametrize("entering", [0, 2, 30])
async def test_a_turn_that_starts_while_a_subscription_begins_is_heard_whole(entering: int) -> None:
    """A client that subscribes and starts a turn at once hears every event of it once."""

    async def slow(turn: FakeTurn) -> None:
        for word in "abc":
            await trio.sleep(1)
            turn.say(word)

    service = FakeService(behaviour=slow, on_subscribe=partial(trio.sleep, entering))
    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        nursery.start_soon(client.subscribe, "s1", None)
        await wait_all_tasks_blocked()
        await run(client, service)
        assert numbers(out) == [1, 2, 3, 4, 5]
        await trio.sleep(60)
        assert numbers(out) == [1, 2, 3, 4, 5]


async def test_a_subscription_does_not_wait_for_an_own_turn_that_waits() -> None:
    """A client whose turn has not begun follows the session at once, and misses nothing of that turn later."""
    service = FakeService()

    async def start(client: Feeds) -> None:
        async def late(on_event: Callable[[Envelope], None]) -> TurnResult:
            await trio.sleep(5)
            return await service.start_turn("s1", "a b", on_event=on_event)

        await client.stream("s1", late)

    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        nursery.start_soon(start, client)
        await wait_all_tasks_blocked()
        await client.subscribe("s1", None)
        await service.start_turn("s1", "x")
        await wait_all_tasks_blocked()
        assert (trio.current_time(), numbers(out)) == (0, [1, 2, 3])
        await trio.sleep(6)
        assert numbers(out) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_subscription_begins_with_the_next_event_after_an_own_turn() -> None:
    """What others said between an own turn that has ended and one that waits is not brought again."""
    service, turn = FakeService(), trio.Event()

    async def start(client: Feeds) -> None:
        async def late(on_event: Callable[[Envelope], None]) -> TurnResult:
            await turn.wait()
            return await service.start_turn("s1", "b", on_event=on_event)

        await client.stream("s1", late)

    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        nursery.start_soon(start, client)
        await wait_all_tasks_blocked()
        await run(client, service, prompt="a")
        await service.start_turn("s1", "of others")
        await client.subscribe("s1", None)
        turn.set()
        await wait_all_tasks_blocked()
        assert numbers(out) == [1, 2, 3, 8, 9, 10]


@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_turn_that_a_client_steers_itself_is_heard_once(*, subscribed: bool) -> None:
    """Where a turn tells its events to two calls of one client, each event goes out once, before both replies."""
    service, out_at_reply = FakeService(), list[list[int]]()

    async def slow(turn: FakeTurn) -> None:
        first = turn.on_event
        for word in "abc":
            await trio.sleep(1)
            turn.on_event = first if word == "a" else both
            turn.say(word)

    def both(event: Envelope) -> None:
        for listener in listeners:
            listener(event)

    service.behaviour, listeners, done = slow, list[Callable[[Envelope], None]](), trio.Event()
    async with feeds(service) as (client, out):

        async def start(on_event: Callable[[Envelope], None]) -> TurnResult:
            listeners.append(on_event)
            result = await service.start_turn("s1", "x", on_event=on_event)
            done.set()
            return result

        async def steer(on_event: Callable[[Envelope], None]) -> TurnResult:
            listeners.append(on_event)
            await done.wait()
            return TurnResult("s1")

        async def call(run: Callable[[Callable[[Envelope], None]], Awaitable[TurnResult]]) -> None:
            await client.stream("s1", run)
            out_at_reply.append(numbers(out))

        if subscribed:
            await client.subscribe("s1", None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, start)
            await trio.sleep(0.5)
            nursery.start_soon(call, steer)
        assert out_at_reply == [[1, 2, 3, 4, 5]] * 2


async def test_a_subscription_does_not_wait_for_a_turn_that_is_refused() -> None:
    """Where the own turn never begins, the subscription begins with the next event."""
    service = FakeService()

    async def refuse(_on_event: Callable[[Envelope], None]) -> TurnResult:
        await trio.sleep(5)
        raise SessionBusyError("no")

    async def start(client: Feeds) -> None:
        with pytest.raises(SessionBusyError):
            await client.stream("s1", refuse)

    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        nursery.start_soon(start, client)
        await wait_all_tasks_blocked()
        await client.subscribe("s1", None)
        await service.start_turn("s1", "a")
        await wait_all_tasks_blocked()
        assert numbers(out) == [1, 2, 3]


async def test_a_failed_subscription_loses_nothing_of_an_own_turn() -> None:
    """What was held while a subscription tried to begin goes out when it does not."""

    async def refuse() -> None:
        await trio.sleep(3.5)
        raise CapacityExceededError("no")

    async def slow(turn: FakeTurn) -> None:
        for word in "abcdef":
            await trio.sleep(1)
            turn.say(word)

    service = FakeService(behaviour=slow, on_subscribe=refuse)
    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        nursery.start_soon(run, client, service)
        await trio.sleep(1.5)
        with pytest.raises(CapacityExceededError):
            await client.subscribe("s1", None)
        assert numbers(out) == [1, 2, 3, 4, 5, 6]
        await trio.sleep(10)
        assert numbers(out) == list(range(1, 9))


async def test_unsubscribing_in_mid_turn_goes_on_directly() -> None:
    """A client that leaves a subscription still hears the turn that it started."""

    async def slow(turn: FakeTurn) -> None:
        for word in "abcd":
            await trio.sleep(1)
            turn.say(word)

    service = FakeService(behaviour=slow)
    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        await client.subscribe("s1", None)
        nursery.start_soon(run, client, service)
        await trio.sleep(2.5)
        assert client.unsubscribe("s1") is True
        assert client.unsubscribe("s1") is False
        await trio.sleep(10)
        assert numbers(out) == [1, 2, 3, 4, 5, 6]
        await service.start_turn("s1", "of others")
        assert numbers(out) == [1, 2, 3, 4, 5, 6]


async def test_subscribing_again_moves_on() -> None:
    """A second subscription takes the place of the first, from where the client says."""
    service = FakeService()
    await service.start_turn("s1", "a b c")
    async with feeds(service) as (client, out):
        await client.subscribe("s1", 3)
        await wait_all_tasks_blocked()
        await client.subscribe("s1", None)
        await client.subscribe("s1", 1)
        await wait_all_tasks_blocked()
        assert numbers(out) == [4, 5, 2, 3, 4, 5]
        await service.start_turn("s1", "d")
        await wait_all_tasks_blocked()
        assert numbers(out)[6:] == [6, 7, 8]
        assert len(service.watchers["s1"]) == 1


async def test_the_number_of_subscriptions_is_bounded() -> None:
    """One more than the limit is refused; leaving one makes room."""
    async with feeds(FakeService(), limit=2) as (client, _):
        await client.subscribe("s1", None)
        await client.subscribe("s2", None)
        await client.subscribe("s2", 0)
        with pytest.raises(CapacityExceededError, match="2 subscriptions"):
            await client.subscribe("s3", None)
        client.unsubscribe("s1")
        await client.subscribe("s3", None)


async def test_a_gap_of_the_subscription_is_filled_with_what_is_known() -> None:
    """Where a subscription drops events of an own turn, the client gets them all the same."""
    service = FakeService(withhold=True)
    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        service.withhold = False
        await client.subscribe("s1", None)
        service.behaviour = drop_two
        nursery.start_soon(run, client, service)
        await wait_all_tasks_blocked()
        assert numbers(out) == [1, 2, 3, 4]
        assert not any(isinstance(item.event, StreamTruncated) for item in out)


async def drop_two(turn: FakeTurn) -> None:
    """Say two words that only the turn's own caller hears, then have the watchers told of a gap."""
    watchers = turn.service.watchers.pop(turn.session_id)
    turn.say("a")
    turn.say("b")
    turn.service.watchers[turn.session_id] = watchers
    watchers[0].send_nowait(envelope(1, StreamTruncated(2, 1)))


async def test_a_gap_that_nobody_can_fill_is_passed_on() -> None:
    """A watcher is told how much is missing, and from where to replay."""
    service = FakeService()
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        gap = envelope(3, StreamTruncated(5, 3))
        service.watchers["s1"][0].send_nowait(gap)
        await wait_all_tasks_blocked()
        assert out == [gap]


async def test_a_result_does_not_wait_for_ever() -> None:
    """A subscription that brings nothing delays the turn's result by a bound, no more."""
    service = FakeService(withhold=True)
    async with feeds(service) as (client, _):
        await client.subscribe("s1", None)
        assert (await run(client, service)).text == "a b c"
        assert trio.current_time() == pytest.approx(PATIENCE, abs=0.1)


async def test_a_subscription_that_breaks_tells_the_client_to_come_again() -> None:
    """An error within a subscription ends it with a marker; the client's other sessions go on."""
    service = FakeService()
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        await client.subscribe("s2", None)
        await service.start_turn("s1", "a")
        await wait_all_tasks_blocked()
        service.watchers["s1"][0].send_nowait(RuntimeError("boom"))
        await wait_all_tasks_blocked()
        assert out[-1].event == StreamTruncated(1, 3)
        await service.start_turn("s1", "b")
        await service.start_turn("s2", "c")
        await wait_all_tasks_blocked()
        assert [item.session_id for item in out] == ["s1"] * 4 + ["s2"] * 3
        assert client.unsubscribe("s1") is False


@pytest.mark.parametrize("failing", [False, True])
async def test_the_end_of_a_subscription_is_told_once(*, failing: bool) -> None:
    """One that ends by itself or breaks is told of behind all else; one that was left or replaced is not."""
    service, told = FakeService(), list[tuple[str, int]]()
    async with feeds(service, over=lambda session_id: told.append((session_id, len(out)))) as (client, out):
        for session_id in ("s1", "s2"):
            await client.subscribe(session_id, None)
            await service.start_turn(session_id, "a")
        await client.subscribe("s1", 1)
        client.unsubscribe("s2")
        await wait_all_tasks_blocked()
        assert told == []
        (watcher,) = service.watchers["s1"]
        watcher.send_nowait(RuntimeError("boom") if failing else envelope(4, RunStarted("s1", "b")))
        watcher.close()
        await wait_all_tasks_blocked()
        assert told == [("s1", len(out))]
        assert out[-1].event == (StreamTruncated(1, 3) if failing else RunStarted("s1", "b"))
        await client.subscribe("s1", None)
        assert len(service.watchers["s1"]) == 1


async def test_what_is_over_is_forgotten() -> None:
    """A client that has used many sessions costs no more than one that has used few."""
    service = FakeService()
    async with feeds(service) as (client, _):
        for number in range(20):
            await run(client, service, f"s{number}")
            await client.subscribe(f"s{number}", None)
            client.unsubscribe(f"s{number}")
        await wait_all_tasks_blocked()
        assert client._feeds == {}  # noqa: SLF001 - nothing else shows what is kept
