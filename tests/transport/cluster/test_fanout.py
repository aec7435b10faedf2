"""Sessions of other nodes with several followers at one node: one subscription over the link serves them all."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
import trio.testing

from tests.support.fake_service import FakeService
from tests.support.models import Emit, reply
from tests.support.waiting import until
from tests.transport.client.cable import Cable, cable
from tests.transport.clients import gateway
from tests.transport.cluster.nodes import Node, node, read_to, shared_store
from warren.actors.events.eventlog import EventLog, LogPage
from warren.base.errors import AgentError, InvalidParamsError
from warren.calls.streams import EventReader
from warren.client import connect
from warren.conversation.events import Envelope, RunStarted, StreamTruncated, TextComplete, TextDelta
from warren.models.model import ModelReply, ModelRequest, ReasoningPiece, TextPiece
from warren.storage.queries import Query
from warren.storage.results import Held
from warren.transport.cluster.fanout import Fanout
from warren.transport.cluster.moving import MovingLog

pytestmark = pytest.mark.time_limit(60)
FOLLOWERS: Final = 100


@attrs.define(eq=False)
class Talk:
    """A model that says a word each time it is told to, and ends its answer with a full stop.

    Attributes:
        words: the words that it has to say.
        more: set when there is another word.
    """

    words: list[str] = attrs.field(factory=list)
    more: trio.Event = attrs.field(factory=trio.Event)

    def say(self, *words: str) -> None:
        """Have it say words at once: deltas that are published together come merged."""
        self.words += words
        self.more.set()

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        said = ""
        while not said.endswith("."):
            await self.more.wait()
            for each in self.words:
                emit(ReasoningPiece(each) if each.startswith("(") else TextPiece(each))
                said += each
            self.words.clear()
            self.more = trio.Event()
        return reply(said)


@attrs.frozen
class Pair:
    """Two nodes. The first has a session, and the second reaches it over a cable."""

    anna: Node
    berta: Node
    wire: Cable
    session_id: str
    talk: Talk

    @property
    def subscriptions(self) -> int:
        """The readers at the node that has the session."""
        return self.anna.service.statistics().subscriptions


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    """Run two nodes on a store in files."""
    talk = Talk()
    with shared_store("files", folder) as store:
        async with (
            cable(0) as wire,
            node(store, "anna", address=wire.url, test=talk) as anna,
            node(store, "berta", test=talk) as berta,
        ):
            wire.target = anna.port
            session_id = (await anna.service.create_session(None, model="test")).session_id
            yield Pair(anna, berta, wire, session_id, talk)


async def follow(service: Any, session_id: str, count: int, stack: AsyncExitStack, after_seq: int | None) -> Any:
    """Subscribe several times."""
    return [await stack.enter_async_context(service.subscribe(session_id, after_seq=after_seq)) for _ in range(count)]


@pytest.mark.parametrize("after_seq", [0, None])
async def test_many_followers_share_one_subscription(tmp_path: Path, after_seq: int | None) -> None:
    """Each has every event once and in order; over the link they cost about what one of them does."""
    carried = list[int]()
    for count in (1, FOLLOWERS):
        async with pair(tmp_path / f"{count}") as at, AsyncExitStack() as stack, trio.open_nursery() as tasks:
            readers = await follow(at.berta.service, at.session_id, count, stack, after_seq)
            seen = list[list[Envelope]]()
            words = [f"word {number} " for number in range(50)]

            async def read(reader: EventReader, seen: list[list[Envelope]]) -> None:
                seen.append(await read_to(reader, 4 + 50 + 2))

            async def turn(at: Pair = at) -> None:
                await at.anna.service.start_turn(at.session_id, "go on")

            for each in readers:
                tasks.start_soon(read, each, seen)
            tasks.start_soon(turn)
            for each in words:
                at.talk.say(each)
                await trio.testing.wait_all_tasks_blocked(0.001)
            assert at.subscriptions == 1
            at.talk.say(".")
            await until(lambda: len(seen) == count)  # noqa: B023 - called here
            for each in seen:
                assert text_of(each) == "".join(words) + "."
                assert numbers_of(each) == list(range(1, each[-1].seq + 1))
            carried.append(at.wire.carried)
            assert at.wire.opened == 2  # the first one got the challenge
    assert carried[1] < 4 * carried[0]  # a follower from now on asks for the number of the newest event


def numbers_of(envelopes: list[Envelope]) -> list[int]:
    """Return the numbers of events, those of merged deltas one by one."""
    return [seq for each in envelopes for seq in range(each.first_seq or each.seq, each.seq + 1)]


def text_of(envelopes: list[Envelope]) -> str:
    """Return the text of deltas."""
    return "".join(each.event.delta for each in envelopes if isinstance(each.event, TextDelta))


async def test_the_subscription_ends_with_its_last_follower(tmp_path: Path) -> None:
    """It stays while one of them is here, and a later follower begins another one."""
    async with pair(tmp_path) as at:
        for _ in range(2):
            async with AsyncExitStack() as stack:
                async with at.berta.service.subscribe(at.session_id, after_seq=0):
                    await follow(at.berta.service, at.session_id, 2, stack, 0)
                assert at.subscriptions == 1
            await until(lambda: at.subscriptions == 0)


async def test_a_follower_that_is_given_up_while_the_subscription_begins_takes_nobody_along(tmp_path: Path) -> None:
    """The first one is cancelled while it waits for the other node: the second one goes on with what it began."""
    async with pair(tmp_path) as at, trio.open_nursery() as tasks:
        readers = list[EventReader]()

        async def subscribe(scope: trio.CancelScope) -> None:
            with scope:
                async with at.berta.service.subscribe(at.session_id, after_seq=0) as reader:
                    readers.append(reader)
                    await trio.sleep_forever()

        first, second = trio.CancelScope(), trio.CancelScope()
        tasks.start_soon(subscribe, first)
        tasks.start_soon(subscribe, second)
        await until(lambda: at.wire.opened > 0)
        first.cancel()
        await until(lambda: bool(readers))
        assert at.subscriptions == 1
        second.cancel()


async def test_a_follower_that_does_not_read_delays_nobody_and_misses_nothing(tmp_path: Path) -> None:
    """The turn has more events than are kept for it: it reads them when it likes, and the others as they come."""
    async with pair(tmp_path) as at, AsyncExitStack() as stack, trio.open_nursery() as tasks:
        at.berta.service.fanout.keep = 10
        slow, quick = await follow(at.berta.service, at.session_id, 2, stack, 0)
        tasks.start_soon(at.anna.service.start_turn, at.session_id, "go on")
        seen = list[Envelope]()
        for number in range(100):
            at.talk.say(f"({number})" if number % 2 else f"{number} ")
            seen += await read_to(quick, 3 + number)
        assert at.subscriptions == 1
        assert await read_to(slow, seen[-1].seq) == seen
        assert at.subscriptions == 2  # only the session's node still has what it has read
        at.talk.say(".")
        await until(lambda: at.subscriptions == 1)


async def test_followers_that_come_back_in_the_middle_of_a_turn_miss_nothing(tmp_path: Path) -> None:
    """Behind any event of it, also one in the middle of deltas that came merged; then they share a subscription."""
    async with pair(tmp_path) as at, AsyncExitStack() as stack, trio.open_nursery() as tasks:
        (first,) = await follow(at.berta.service, at.session_id, 1, stack, 0)
        tasks.start_soon(at.anna.service.start_turn, at.session_id, "go on")
        at.talk.say(*"abcdefgh")
        whole = await read_to(first, 10)
        assert text_of(whole) == "abcdefgh"
        assert any(each.first_seq is not None for each in whole)
        later = [(await follow(at.berta.service, at.session_id, 1, stack, after))[0] for after in range(11)]
        for after, reader in enumerate(later):
            seen = await read_to(reader, 10) if after < 10 else []
            assert numbers_of(seen) == list(range(after + 1, 11))
            assert text_of(seen) == "abcdefgh"[max(after - 2, 0) :]
        at.talk.say(".")
        for reader in later:
            seen = await read_to(reader, 13)
            assert numbers_of(seen) == [11, 12, 13]
        await until(lambda: at.subscriptions == 1)


async def test_a_follower_from_now_on_sees_nothing_older(tmp_path: Path) -> None:
    """It comes as soon as a turn is acknowledged, or while one runs: the next event is its first."""
    async with pair(tmp_path) as at, AsyncExitStack() as stack, trio.open_nursery() as tasks:
        await follow(at.berta.service, at.session_id, 1, stack, 0)
        for number in range(1, 11):
            at.talk.say(f"{number}.")
            last = (await at.berta.service.start_turn(at.session_id, "go on")).last_seq or 0
            (reader,) = await follow(at.berta.service, at.session_id, 1, stack, None)
            assert reader.cursor == last
        tasks.start_soon(at.anna.service.start_turn, at.session_id, "go on")
        at.talk.say("one ")
        await read_to((await follow(at.berta.service, at.session_id, 1, stack, 0))[0], last + 3)
        (reader,) = await follow(at.berta.service, at.session_id, 1, stack, None)
        at.talk.say("two.")
        assert text_of(await read_to(reader, last + 4)) == "two."


async def test_a_number_above_the_log_is_refused(tmp_path: Path) -> None:
    """As at the session's own node, whether somebody follows the session or not."""
    async with pair(tmp_path) as at, AsyncExitStack() as stack:
        for _ in range(2):
            with pytest.raises(InvalidParamsError, match="after_seq"):
                await follow(at.berta.service, at.session_id, 1, stack, 10**9)
            await follow(at.berta.service, at.session_id, 1, stack, 0)
        await until(lambda: at.subscriptions == 1)


async def test_events_that_no_log_has_are_said_to_be_missing() -> None:
    """The session's node has lost events that no store has: each follower hears of it, also if it keeps up."""
    service = FakeService()
    service.sessions["s1"].events = log = EventLog("s1", nothing_stored, all_stored, 10_000)
    async with gateway(service) as port, connect(f"127.0.0.1:{port}") as remote, trio.open_nursery() as tasks:
        fanout = Fanout(tasks, no_store, nothing_stored, all_stored)

        async def again(cursor: int) -> EventReader:
            return await fanout.follow(remote, "s1", cursor, at_once)

        followers = [
            MovingLog("s1", 0, again, lambda _log: None, await fanout.follow(remote, "s1", 0, at_once)).reader
            for _ in range(2)
        ]
        log.emit(TextComplete("1"))
        for each in followers:
            assert (await anext(each)).seq == 1
        assert log.subscriptions == 1
        for number in range(2, 5):
            log.emit(TextComplete(f"{number}"))
        log.forget_oldest(1)
        for each in followers:
            with trio.fail_after(10):
                marker, last = await anext(each), await anext(each)
            assert (marker.event, last.seq) == (StreamTruncated(2, 1), 4)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("keep", [1_000, 1])
async def test_a_reader_in_a_lost_turn_does_not_go_on_with_the_next_one(keep: int) -> None:
    """Another process has gone on: a reader that is behind reads what is here, and then finds the session again."""
    later = Envelope("s1", 1_000_004, datetime.now(UTC), RunStarted("s1", "go on"))

    async def next_turn(_session_id: str, _after_seq: int) -> LogPage:
        await trio.lowlevel.checkpoint()
        return LogPage([later])

    service = FakeService()
    service.sessions["s1"].events = log = EventLog("s1", nothing_stored, all_stored, 10_000)
    async with gateway(service) as port, connect(f"127.0.0.1:{port}") as remote, trio.open_nursery() as tasks:
        fanout = Fanout(tasks, no_store, next_turn, all_stored, keep)
        reader = await fanout.follow(remote, "s1", 0, at_once)
        for number in range(1, 4):
            log.emit(TextComplete(f"{number}"))
        await until(lambda: reader.newest == 3)
        fanout.stored({"s1": Held(2, 1_000_003, 1)})
        if keep == 1:
            with pytest.raises(AgentError):
                await reader.load()
        else:
            assert numbers_of(reader.take() or []) == [1, 2, 3]
        tasks.cancel_scope.cancel()


async def test_a_slow_follower_of_a_turn_that_another_node_overtakes_sees_its_end() -> None:
    """The store has later events by then, and never takes those of the turn."""
    service = FakeService()
    service.sessions["s1"].events = log = EventLog("s1", nothing_stored, all_stored, 10_000)
    async with gateway(service) as port, connect(f"127.0.0.1:{port}") as remote, trio.open_nursery() as tasks:
        fanout = Fanout(tasks, no_store, nothing_stored, all_stored)
        reader = await fanout.follow(remote, "s1", 0, at_once)
        log.emit(TextComplete("1"))
        with trio.fail_after(10):
            assert (await anext(reader)).seq == 1
            for number in (2, 3):
                log.emit(TextComplete(f"{number}"))
            await until(lambda: reader.newest == 3)
            fanout.stored({"s1": Held(None, 1_000_001, 1)})
            assert [(await anext(reader)).seq for _ in range(2)] == [2, 3]
        tasks.cancel_scope.cancel()


async def at_once(_log: EventLog, reader: EventReader, after_seq: int) -> None:
    """Move a reader."""
    await trio.lowlevel.checkpoint()
    reader.cursor = after_seq


async def nothing_stored(_session_id: str, _after_seq: int) -> LogPage:
    """Read the log of a store that has nothing."""
    await trio.lowlevel.checkpoint()
    return LogPage(gone=None)


async def all_stored(_session_id: str, up_to: int) -> int:
    """Find all events in the store."""
    await trio.lowlevel.checkpoint()
    return up_to


@attrs.frozen
class NoStore:
    """A store that has no session."""

    async def read(self, _query: Query[Any]) -> dict[str, Any]:
        """Return nothing: nobody is asked for but holders."""
        await trio.lowlevel.checkpoint()
        return {}


async def no_store() -> Any:
    """Return the store."""
    await trio.lowlevel.checkpoint()
    return NoStore()
