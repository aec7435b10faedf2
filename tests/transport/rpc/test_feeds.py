"""The events that one client gets of each session."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.support.checks import numbers
from tests.support.envelopes import envelope
from tests.support.fake_service import FakeService, FakeTurn, sessions_of
from warren.base.errors import AgentError, CapacityExceededError, SessionBusyError
from warren.base.principals import LOCAL
from warren.calls.streams import EventReader
from warren.conversation import codec
from warren.conversation.events import Envelope, RunStarted, StreamTruncated, TextDelta
from warren.conversation.log_rows import release
from warren.conversation.views import TurnResult
from warren.transport.client.links import Links
from warren.transport.client.readers import TurnPlace
from warren.transport.cluster.moving import MovingLog
from warren.transport.rpc.feeds import Feeds, frame_of
from warren.transport.rpc.methods import Method
from warren.transport.rpc.outbox import Outbox, pieces_of

pytestmark = pytest.mark.virtual_time

Out = list[Envelope]
Begin = Callable[[EventReader], None]


class Plain:
    """A dialect whose messages are bare envelopes, and the id of a session that is over."""

    methods: Mapping[str, Method[Any, Any]] = {}

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the envelope."""
        return (codec.encode(envelope),)

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return the id."""
        return (session_id.encode(),)


def read_frame(frame: bytes) -> Envelope | str:
    """Return the envelope of a message, or the id of a session that is over."""
    return codec.from_data(Envelope, codec.parse(frame)) if frame.startswith(b"{") else frame.decode()


@asynccontextmanager
async def feeds(
    service: FakeService, limit: int = 10, over: Callable[[str], None] = lambda _: None
) -> AsyncIterator[tuple[Feeds, Out]]:
    """A client's feeds and what was sent to it, for a body; it reads everything at once."""
    out: Out = []

    def read() -> None:
        for item in read_all(outbox):
            out.append(item) if isinstance(item, Envelope) else over(item)
        moved.unpark_all()

    outbox, moved = Outbox(10, notify=read), trio.lowlevel.ParkingLot()
    async with trio.open_nursery() as tasks:
        yield Feeds(service, outbox, Plain(), moved, tasks, limit), out
        tasks.cancel_scope.cancel()


@attrs.define(eq=False)
class SlowClient:
    """A client that reads what waits when it is told to.

    Attributes:
        outbox: what waits for it.
        out: what it has read.
    """

    outbox: Outbox = attrs.field(factory=lambda: Outbox(2))
    moved: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    out: list[Envelope | str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.outbox.stalled = True

    def feeds(self, service: FakeService, tasks: trio.Nursery) -> Feeds:
        """Return the client's feeds."""
        return Feeds(service, self.outbox, Plain(), self.moved, tasks, 10)

    async def read(self) -> None:
        """Read until nothing comes any more; never does more wait than may."""
        await wait_all_tasks_blocked()
        while self.outbox.items:
            self.out += read_all(self.outbox)
            self.moved.unpark_all()
            await wait_all_tasks_blocked()

    def seqs(self) -> list[int]:
        """Return the numbers of the events that it has read."""
        return numbers(item for item in self.out if isinstance(item, Envelope))


def read_all(outbox: Outbox) -> list[Envelope | str]:
    """Take what waits for a client; never do more notifications wait than may."""
    items = outbox.take()
    messages = [item for item in items if isinstance(item, bytes) and item.startswith(b"{")]
    assert len(messages) <= outbox.capacity
    return [read_frame(frame) for piece in pieces_of(items) for frame in piece]


async def run(client: Feeds, service: FakeService, session_id: str = "s1", prompt: str = "a b c") -> TurnResult:
    """Run a turn for a client."""
    return await client.stream(session_id, lambda on_begin: service.start_turn(session_id, prompt, on_begin=on_begin))


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
        assert numbers(out) == [1, 2, 3]


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
        async def late(on_begin: Begin | None) -> TurnResult:
            await trio.sleep(5)
            return await service.start_turn("s1", "a b", on_begin=on_begin)

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
    """Turns of others between an own turn that has ended and one that waits are not brought again."""
    service, turn = FakeService(), trio.Event()

    async def start(client: Feeds) -> None:
        async def late(on_begin: Begin | None) -> TurnResult:
            await turn.wait()
            return await service.start_turn("s1", "b", on_begin=on_begin)

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
    """If a turn tells its events to two calls of one client, each event goes out once, before both replies."""
    service, out_at_reply = FakeService(), list[list[int]]()

    async def slow(turn: FakeTurn) -> None:
        for word in "abc":
            await trio.sleep(1)
            turn.say(word)
            if word == "b":
                enters[0](turn.session.events.read(turn.session.events.last_seq - 1))

    service.behaviour, enters, done = slow, list[Begin](), trio.Event()
    async with feeds(service) as (client, out):

        async def start(on_begin: Begin | None) -> TurnResult:
            result = await service.start_turn("s1", "x", on_begin=on_begin)
            done.set()
            return result

        async def steer(on_begin: Begin | None) -> TurnResult:
            assert on_begin is not None
            enters.append(on_begin)
            await done.wait()
            return TurnResult("s1")

        async def call(run: Callable[[Begin | None], Awaitable[TurnResult]]) -> None:
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
    """If the own turn never begins, the subscription begins with the next event."""
    service = FakeService()

    async def refuse(_on_begin: Begin | None) -> TurnResult:
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


@pytest.mark.parametrize("subscribed", [False, True])
async def test_an_own_turn_whose_node_is_lost_holds_no_later_events_up(*, subscribed: bool) -> None:
    """Its error has no numbers, and its last event may never come: the ends of later turns are sent at once."""
    service, shown = FakeService(), 2

    async def nowhere(_cursor: int) -> None:
        await trio.sleep_forever()

    async def lose(on_begin: Begin | None) -> TurnResult:
        assert on_begin is not None
        turn = TurnPlace(cast("Links", None), LOCAL, None)
        on_begin(MovingLog("s1", 0, nowhere, lambda _: None, turn.begin("s1", 0).reader).reader)
        for seq in range(1, shown + 1):
            turn.event(Envelope("s1", seq, datetime.now(UTC), TextDelta("x")))
        turn.lost()
        raise AgentError("lost", cause="connection_lost")

    async with feeds(service) as (client, out):
        if subscribed:
            await client.subscribe("s1", None)
        with pytest.raises(AgentError):
            await client.stream("s1", lose)
        assert numbers(out) == ([] if subscribed else [1, 2])
        out.clear()
        await service.start_turn("s1", "a")
        await wait_all_tasks_blocked()
        assert numbers(out) == ([1, 2, 3] if subscribed else [])


async def test_a_result_that_is_faster_than_the_subscription_waits_for_its_events() -> None:
    """It comes on another connection than the events: the end of the turn is sent as soon as it is there, then it."""
    done, result = trio.Event(), list[TurnResult]()

    async def slow(turn: FakeTurn) -> None:
        turn.say("a")
        await done.wait()

    async def nowhere(_cursor: int) -> None:
        await trio.sleep_forever()

    async def fast(on_begin: Begin | None) -> TurnResult:
        assert on_begin is not None
        turn = TurnPlace(cast("Links", None), LOCAL, None)
        on_begin(MovingLog("s1", 0, nowhere, lambda _: None, turn.begin("s1", 0).reader).reader)
        return TurnResult("s1", first_seq=1, last_seq=3)

    async def stream(client: Feeds) -> None:
        result.append(await client.stream("s1", fast))

    service = FakeService(behaviour=slow)
    async with feeds(service) as (client, out), trio.open_nursery() as nursery:
        await client.subscribe("s1", None)
        nursery.start_soon(service.start_turn, "s1", "x")
        await wait_all_tasks_blocked()
        nursery.start_soon(stream, client)
        await wait_all_tasks_blocked()
        assert (numbers(out), result) == ([1, 2], [])
        done.set()
        await wait_all_tasks_blocked()
        assert (numbers(out), len(result)) == ([1, 2, 3], 1)


async def test_a_failed_subscription_loses_nothing_of_an_own_turn() -> None:
    """Events that were held while a subscription tried to begin go out when it does not."""

    async def refuse() -> None:
        service.on_subscribe = trio.lowlevel.checkpoint
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
        await wait_all_tasks_blocked()
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
        assert service.readers("s1") == 1


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


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_slow_client_gets_its_own_turns_whole_and_nothing_of_others(*, subscribed: bool, stored: bool) -> None:
    """Events wait in the log or in the store; a result waits until the client was sent all of its turn."""
    service, client = FakeService(), SlowClient()
    async with trio.open_nursery() as tasks:
        own = client.feeds(service, tasks)
        if subscribed:
            await own.subscribe("s1", None)
        done = list[TurnResult]()

        async def turn(words: str) -> None:
            done.append(await run(own, service, prompt=words))

        tasks.start_soon(turn, "a b c d e")
        await wait_all_tasks_blocked()
        await service.start_turn("s1", "of others")
        tasks.start_soon(turn, "f g")
        await wait_all_tasks_blocked()
        if stored:
            service.sessions["s1"].store()
        assert not done
        await client.read()
        assert len(done) == 2
        others = [8, 9, 10, 11] if subscribed else []
        assert client.seqs() == [*range(1, 8), *others, *range(12, 16)]
        tasks.start_soon(turn, "h")
        await client.read()
        assert client.seqs()[-3:] == [16, 17, 18]
        tasks.cancel_scope.cancel()


async def test_few_stored_events_are_held_for_a_client_that_does_not_read() -> None:
    """Subscriptions read their stored events one after another, as the client makes room for them."""
    names = [f"s{number}" for number in range(8)]
    service, client = FakeService(sessions=sessions_of(*names)), SlowClient()
    for name in names:
        await service.start_turn(name, "a b c d e")
    async with trio.open_nursery() as tasks:
        own = client.feeds(service, tasks)
        for name in names:
            await own.subscribe(name, 0)
        await wait_all_tasks_blocked()
        for name in names:
            service.sessions[name].store()
        assert read_all(client.outbox) == []  # the store is asked
        await wait_all_tasks_blocked()
        held = sum(len(feed.page) for feed in own._feeds.values())  # noqa: SLF001 - nobody else can see them
        events = len(service.sessions["s0"].log)
        assert 0 < held < 2 * events
        while len(client.out) < len(names) * events:
            await client.read()
        assert len(client.out) == len(names) * events
        tasks.cancel_scope.cancel()


async def test_a_client_that_is_gone_holds_nothing_up() -> None:
    """Events for a client that reads no more are forgotten, and its turn's caller is not left waiting."""
    service, client = FakeService(), SlowClient()
    async with trio.open_nursery() as tasks:
        own = client.feeds(service, tasks)
        tasks.start_soon(run, own, service)
        await wait_all_tasks_blocked()
        client.outbox.close()
        client.moved.unpark_all()
        with trio.fail_after(1):
            await own.drain()
            await run(own, service)


async def test_what_cannot_be_read_of_an_own_turn_is_reported() -> None:
    """If the log cannot be read a marker says so, and the turn has its result."""
    service, client = FakeService(), SlowClient()
    with trio.fail_after(5):
        async with trio.open_nursery() as tasks:
            own = client.feeds(service, tasks)
            for _ in range(2):
                tasks.start_soon(run, own, service)
                await wait_all_tasks_blocked()
            service.sessions["s1"].store(fault=CapacityExceededError("no"))
            await client.read()
    *told, marker = (item for item in client.out if isinstance(item, Envelope))
    assert (numbers(told), marker.event) == ([1, 2, 3, 4, 5], StreamTruncated(1, 5))


async def test_a_client_that_leaves_while_the_store_is_read_is_told_nothing() -> None:
    """If the client has gone there is nobody to report to, and the reading ends with it."""
    service, client = FakeService(), SlowClient()
    with trio.fail_after(5):
        async with trio.open_nursery() as tasks:
            own = client.feeds(service, tasks)
            for _ in range(2):
                tasks.start_soon(run, own, service)
                await wait_all_tasks_blocked()
            service.sessions["s1"].store()
            assert len(next(pieces_of(client.outbox.take()))) == 3  # the first turn, its deltas as one
            tasks.cancel_scope.cancel()
    assert list(pieces_of(client.outbox.take())) == []


async def test_a_gap_that_nobody_can_fill_is_passed_on() -> None:
    """A watcher is told how much is missing, and from where to replay."""
    service = FakeService()
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        await run(client, service)
        service.sessions["s1"].store(gone=10)
        await wait_all_tasks_blocked()
        gap = out.pop()
        assert (gap.seq, gap.event) == (5, StreamTruncated(5, 5))
        await run(client, service)
        assert numbers(out) == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]


async def test_a_subscription_that_breaks_tells_the_client_to_come_again() -> None:
    """An error within a subscription ends it with a marker; the client's other sessions go on."""
    service = FakeService()
    async with feeds(service) as (client, out):
        await client.subscribe("s1", None)
        await client.subscribe("s2", None)
        await service.start_turn("s1", "a")
        await wait_all_tasks_blocked()
        service.sessions["s1"].store(gone=4, fault=RuntimeError("boom"))
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
        if failing:
            service.sessions["s1"].store(gone=4, fault=RuntimeError("boom"))
        else:
            service.sessions["s1"].publish(RunStarted("s1", "b"))
            await service.archive("s1")
        await wait_all_tasks_blocked()
        assert told == [("s1", len(out))]
        assert out[-1].event == (StreamTruncated(1, 3) if failing else RunStarted("s1", "b"))
        await client.subscribe("s2", None)
        assert service.readers("s2") == 1


async def test_what_is_over_is_forgotten() -> None:
    """A client that has used many sessions costs no more than one that has used few."""
    service = FakeService(sessions=sessions_of(*(f"s{number}" for number in range(20))))
    async with feeds(service) as (client, _):
        for number in range(20):
            await run(client, service, f"s{number}")
            await client.subscribe(f"s{number}", None)
            client.unsubscribe(f"s{number}")
        await wait_all_tasks_blocked()
        assert client._feeds == {}  # noqa: SLF001 - nothing else shows what is kept


def span_of(result: TurnResult) -> set[int]:
    """Return the numbers of the events of a turn."""
    assert result.first_seq is not None
    assert result.last_seq is not None
    return set(range(result.first_seq, result.last_seq + 1))


def check_replies(out: list[Envelope | str]) -> None:
    """Fail if a reply, which has the number of its turn's last event, comes before that event."""
    at = 0
    for item in out:
        if isinstance(item, Envelope):
            at = item.seq
        else:
            assert at >= int(item)


STEPS = st.sampled_from(["own", "other", "store", "read", "subscribe", "unsubscribe", "keeps up"])


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=25))
async def test_whatever_the_client_does_it_gets_its_turns_once_and_in_order(script: list[str]) -> None:
    """Slow or quick, subscribed or not, from memory or the store: no event twice, none missing, each reply behind."""
    service, client = FakeService(), SlowClient()
    session, own_turns, wanted, waiting = service.sessions["s1"], list[TurnResult](), set[int](), set[int]()
    async with trio.open_nursery() as tasks:
        own = client.feeds(service, tasks)
        subscribed = False

        async def turn() -> None:
            result = await run(own, service)
            own_turns.append(result)
            client.outbox.reply(f"{result.last_seq}".encode())

        for step in [*script, "read"]:
            match step:
                case "own":
                    tasks.start_soon(turn)
                case "other":
                    result = await service.start_turn("s1", "of others")
                    waiting |= span_of(result) if subscribed else set()
                case "store":
                    session.store()
                case "read":
                    await client.read()
                    wanted |= waiting
                    waiting.clear()
                case "subscribe":
                    await own.subscribe("s1", None)
                    subscribed = True
                case "unsubscribe":
                    own.unsubscribe("s1")
                    subscribed = False
                    waiting.clear()
                case _:
                    client.outbox.stalled = not client.outbox.stalled
            await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(own_turns) == script.count("own")
    seqs = client.seqs()
    assert seqs == sorted(set(seqs))
    assert wanted.union(*map(span_of, own_turns)) <= set(seqs)
    assert "subscribe" in script or set(seqs) == set[int]().union(*map(span_of, own_turns))
    check_replies(client.out)


async def test_a_request_without_a_number_leaves_a_subscription_that_begins_beside_it() -> None:
    """Two requests wait for the log at the same time, and the one without a number is slower: no event is left out."""
    service, slow_client, slow, newest = FakeService(), SlowClient(), trio.Event(), list[int]()
    await service.start_turn("s1", "a b c")
    async with trio.open_nursery() as tasks:
        client = slow_client.feeds(service, tasks)

        async def ask() -> None:
            newest.append(await client.subscribe("s1", None))

        service.on_subscribe = slow.wait
        tasks.start_soon(ask)
        await wait_all_tasks_blocked()
        service.on_subscribe = trio.lowlevel.checkpoint
        assert await client.subscribe("s1", 1) == 1
        slow.set()
        await wait_all_tasks_blocked()
        assert (newest, service.readers("s1")) == ([5], 1)
        await slow_client.read()
        assert slow_client.seqs() == [2, 3, 4, 5]
        tasks.cancel_scope.cancel()


def test_all_subscribers_share_the_notification_of_an_event() -> None:
    """It is made once for each envelope, and dropped with the event's JSON."""
    told = envelope(7, TextDelta("hello"))
    frame = frame_of(told)
    assert frame_of(told) is frame is told.frame
    assert json.loads(frame) == {"jsonrpc": "2.0", "method": "session/event", "params": json.loads(codec.encode(told))}
    release([told])
    assert told.encoded is None
    assert frame_of(told) == frame
    assert frame_of(told) is not frame
