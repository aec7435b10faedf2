"""The event stream of one session: replay, following, gaps, and what interleaves with them."""

from collections.abc import Iterable

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.checks import numbers
from warren.actors.events.eventlog import TAIL, TEXT, Beginning, EventLog, LogPage, Telling, utc_now
from warren.base.errors import StoreError
from warren.calls.streams import EventReader
from warren.conversation.events import (
    Envelope,
    RunCompleted,
    RunFailed,
    SessionMoved,
    StreamTruncated,
    TextDelta,
    TurnResumed,
    TurnStarted,
)
from warren.conversation.log_rows import LONGEST, envelopes, row_of
from warren.conversation.records import EventRow
from warren.conversation.usage import Usage
from warren.storage.results import Lost

pytestmark = pytest.mark.virtual_time
END = RunCompleted("s", "end", Usage())
FAILED = RunFailed("s", "the store has gone back", "store_error")


@attrs.define(eq=False)
class Stream:
    """A log over a fake store: `commit` moves what is in the journal there.

    Attributes:
        rows: what is stored.
        page: rows a read returns at most.
        gone: up to where retention has removed the rows.
        published: every event, unmerged.
        reads: how often the store was asked.
        missing: whether the store does not have the session.
        faults: the errors of the next reads.
    """

    rows: list[EventRow] = attrs.field(factory=list)
    page: int = 3
    gone: int = 0
    published: list[Envelope] = attrs.field(factory=list)
    reads: int = 0
    missing: bool = False
    faults: list[StoreError] = attrs.field(factory=list)
    log: EventLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.log = EventLog("s", self._read, self._last_stored, 5)

    async def _read(self, session_id: str, after_seq: int) -> LogPage:
        self.reads += 1
        await trio.lowlevel.checkpoint()
        if self.faults:
            raise self.faults.pop(0)
        found = [row for row in self.rows if row.seq > max(after_seq, self.gone)][: self.page]
        gone = self.gone
        await trio.lowlevel.checkpoint()
        return LogPage(list(envelopes(session_id, found, after_seq)), gone)

    async def _last_stored(self, _session_id: str, up_to: int) -> int | None:
        await trio.lowlevel.checkpoint()
        if self.missing:
            return None
        return max((min(row.seq, up_to) for row in self.rows if row.first_seq <= up_to), default=0)

    def say(self, *texts: str) -> None:
        """Publish one delta a text."""
        for text in texts:
            self.publish(self.log.stamp(TextDelta(text)))

    def publish(self, entry: Envelope) -> None:
        """Publish one event."""
        self.published.append(entry)
        self.log.publish(entry)

    def store(self, terminal: Envelope) -> None:
        """Commit the journal and the terminal event, as a turn does: before that event is published."""
        self.rows += map(row_of, self.log.unstored(terminal))

    def end(self) -> None:
        """End a turn: commit, then publish."""
        terminal = self.log.stamp(END)
        self.store(terminal)
        self.publish(terminal)
        self.log.committed()

    def follow(self, after_seq: int | None = None) -> EventReader:
        """Subscribe."""
        return self.log.read(self.log.last_seq if after_seq is None else after_seq)


async def take(subscription: EventReader, count: int | None = None) -> list[Envelope]:
    """Return the next events, or all there are until the stream ends or falls silent."""
    found: list[Envelope] = []
    with trio.move_on_after(0.01):
        async for envelope in subscription:
            found.append(envelope)
            if len(found) == count:
                break
    return found


def text(found: Iterable[Envelope]) -> str:
    """Return the deltas, joined."""
    return "".join(each.event.delta for each in found if isinstance(each.event, TextDelta))


async def test_a_late_subscriber_gets_the_whole_log() -> None:
    """Stored pages first, then what is only in memory, then live events."""
    stream = Stream(page=2)
    for _ in range(3):
        stream.publish(stream.log.stamp(TurnStarted(0)))
        stream.say("a", "b")
        stream.end()
    stream.say("c", "d")
    follower = stream.follow(0)
    found = await take(follower)
    stream.say("e")
    found += await take(follower)
    assert numbers(found) == list(range(1, 16))
    assert text(found) == "abababcde"


@pytest.mark.parametrize("after_seq", range(10))
async def test_a_subscriber_may_begin_between_merged_deltas(after_seq: int) -> None:
    """Merged rows of the store and of the journal are cut where the reader stands."""
    stream = Stream()
    stream.say("aa", "b", "ccc")
    stream.end()
    stream.say("dd", "e", "fff", "g", "h")
    found = await take(stream.follow(after_seq))
    assert numbers(found) == list(range(after_seq + 1, 10))
    assert text(found) == text(stream.published[after_seq:])


async def test_none_begins_with_the_next_event() -> None:
    """A subscriber without a place sees nothing of what was."""
    stream = Stream()
    stream.say("old")
    follower = stream.follow()
    stream.say("new")
    assert text(await take(follower)) == "new"


async def test_a_terminal_event_that_is_read_before_it_is_published_comes_once() -> None:
    """A reader that finds the terminal event in the store already is not handed it again."""
    stream = Stream()
    stream.end()
    stream.say("hi")
    follower = stream.follow(0)
    terminal = stream.log.stamp(END)
    stream.store(terminal)
    found = await take(follower)
    stream.publish(terminal)
    stream.log.committed()
    found += await take(follower)
    assert numbers(found) == [1, 2, 3]


@settings(max_examples=max(100, settings().max_examples))
@given(data=st.data())
async def test_no_gap_and_no_double_under_interleaving(data: st.DataObject) -> None:
    """Whatever is published, committed and read in whatever order: a lossless reader sees every event once."""
    stream = Stream(page=data.draw(st.integers(1, 3)))
    readers: list[tuple[int, EventReader, list[Envelope]]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["say", "step", "end", "open", "half", "read"])):
            case "say":
                stream.say("x", "yy")
            case "step":
                stream.publish(stream.log.stamp(TurnStarted(0)))
            case "end":
                stream.end()
            case "half":
                terminal = stream.log.stamp(END)
                stream.store(terminal)
                for _, reader, read in readers:
                    read.extend(await take(reader))
                stream.publish(terminal)
                stream.log.committed()
            case "open":
                start = data.draw(st.integers(0, stream.log.last_seq))
                readers.append((start, stream.follow(start), []))
            case "read" if readers:
                _, reader, read = data.draw(st.sampled_from(readers))
                read.extend(await take(reader, data.draw(st.integers(1, 4))))
    for start, reader, read in readers:
        read.extend(await take(reader))
        assert numbers(read) == list(range(start + 1, stream.log.last_seq + 1))
        assert text(read) == text(stream.published[start:])


async def test_a_slow_subscriber_misses_nothing() -> None:
    """A subscriber that follows live and then reads nothing for turns gets every event, in order, and follows on."""
    stream = Stream(page=2)
    slow = stream.follow()
    stream.say("0")
    assert numbers(await take(slow)) == [1]
    for _ in range(3):
        for number in range(10):
            stream.publish(stream.log.stamp(TurnStarted(number)))
            stream.say("a", "b")
        stream.end()
    found = await take(slow)
    stream.say("c")
    found += await take(slow)
    assert numbers(found) == list(range(2, stream.log.last_seq + 1))
    assert text(found) == "ab" * 30 + "c"


async def test_a_subscriber_that_keeps_up_reads_nothing_from_the_store() -> None:
    """The last events of a turn are stored before a subscriber can take them; they are still in memory for it."""
    stream = Stream()
    follower = stream.follow()
    for _ in range(3):
        stream.say("a")
        found = await take(follower)
        stream.publish(stream.log.stamp(TurnStarted(0)))
        stream.end()
        found += await take(follower)
        assert numbers(found)[-3:] == list(range(stream.log.last_seq - 2, stream.log.last_seq + 1))
    assert stream.reads == 0


async def test_memory_holds_little_for_a_subscriber_that_does_not_read() -> None:
    """A stored event stays in memory for one turn at most, and only up to a size."""
    stream = Stream()
    stream.follow()
    for size in (10, TAIL + 1, 10, 10):
        stream.say("x" * size)
        stream.end()
        assert stream.log.size <= TAIL
    assert stream.log.floor >= stream.log.last_seq - 2


async def test_what_is_stored_is_forgotten_with_the_last_subscriber() -> None:
    """A log that nobody watches holds nothing that the store has."""
    stream = Stream()
    readers = [stream.follow(), stream.follow()]
    stream.say("a")
    stream.end()
    for reader in readers:
        assert stream.log.size > 0
        reader.close()
    assert stream.log.size == 0
    assert numbers(await take(stream.follow(0))) == [1, 2]


async def test_long_texts_are_read_in_pieces() -> None:
    """Deltas that are merged for a reader stay below a size, and a page of them holds no whole turn."""
    stream = Stream()
    stream.say(*["x" * 1000] * 1000)
    reader = stream.follow(0)
    found = await take(reader)
    assert numbers(found) == list(range(1, 1001))
    assert len(text(found)) == 1_000_000
    assert max(len(text([each])) for each in found) <= LONGEST + 1000
    assert len(text(EventReader(stream.log, 0).take() or [])) <= TEXT + LONGEST + 1000


@pytest.mark.parametrize(("begin", "gone"), [(0, 5), (2, 10), (0, 10), (4, 5)])
async def test_what_retention_removed_is_one_gap(begin: int, gone: int) -> None:
    """A reader behind what is kept is told once what is missing, then gets the rest and follows."""
    stream = Stream(page=1)
    for _ in range(2):
        stream.publish(stream.log.stamp(TurnStarted(0)))
        stream.say("a", "b", "c")
        stream.end()
    stream.gone = gone
    reader = stream.follow(begin)
    found = await take(reader)
    stream.say("d")
    found += await take(reader)
    assert (found[0].seq, found[0].event) == (begin, StreamTruncated(gone - begin, begin))
    assert numbers(found[1:]) == list(range(gone + 1, 12))


async def test_retention_beside_a_reader() -> None:
    """Events that go while a reader is on its way through the log are one gap in its middle; read ones are none."""
    stream = Stream(page=1)
    for _ in range(4):
        stream.publish(stream.log.stamp(TurnStarted(0)))
        stream.end()
    reader = stream.follow(0)
    found = await take(reader, 2)
    stream.gone = 2
    found += await take(reader, 1)
    stream.gone = 6
    found += await take(reader)
    assert [each.seq for each in found] == [1, 2, 3, 3, 7, 8]
    assert found[3].event == StreamTruncated(3, 3)


async def test_closing_ends_the_iteration_after_what_was_published() -> None:
    """Nothing that was published before the end is lost to a follower or to a late reader."""
    stream = Stream()
    follower = stream.follow()
    await take(follower)
    stream.say("a", "b")
    late = stream.follow(0)
    stream.log.close()
    with trio.fail_after(1):
        assert text([each async for each in follower]) == "ab"
        assert text([each async for each in late]) == "ab"


async def test_a_reader_behind_numbers_that_were_skipped() -> None:
    """Numbers jump where a process died with events shown and not stored; a waiting reader follows the jump."""
    stream = Stream()
    stream.say("a", "b")
    reader = stream.follow(2)
    stream.log.start_above(1_000_000)
    stream.say("c")
    found = await take(reader)
    assert (numbers(found), text(found)) == ([1_000_001], "c")


@pytest.mark.parametrize("begin", [0, 1, 2])
async def test_a_jump_with_nothing_behind_it(begin: int) -> None:
    """A reader may arrive between the jump and the next event."""
    stream = Stream()
    stream.say("a", "b")
    stream.log.start_above(1_000_000)
    reader = stream.follow(begin)
    found = await take(reader)
    stream.say("c")
    found += await take(reader)
    assert text(found) == "abc"[begin:]


async def test_a_detached_subscription_is_not_counted() -> None:
    """A reader that has left costs nothing; leaving twice is fine."""
    stream = Stream()
    reader = stream.follow()
    reader.close()
    reader.close()
    assert not stream.log.needed
    stream.say("a")
    assert stream.log.needed


async def test_readers_of_a_store_that_has_gone_back_hear_what_is_gone() -> None:
    """Each once, whatever it was shown: the numbers that are gone, then the end of the turn that ran."""
    stream = Stream()
    stream.say("a", "b")
    stream.end()
    stream.say("c", "d")
    shown, behind, new = stream.follow(0), stream.follow(0), stream.follow(0)
    assert numbers(await take(shown)) == [1, 2, 3, 4, 5]
    stream.rows.clear()
    stream.rows.append(row_of(stream.published[0]))
    stream.publish(stream.log.stamp(FAILED))
    stream.log.doubt()
    new.cursor = 1
    for reader, last in ((shown, 5), (behind, 0), (new, 1)):
        found = await reader.load() if reader.take() is None else []
        gone = [each.event for each in found if isinstance(each.event, SessionMoved)]
        assert gone == ([SessionMoved(2, last)] if last > 1 else [])
        ends = [each for each in found if isinstance(each.event, RunFailed)]
        assert [each.seq for each in ends] == ([6] if last else [])  # the one behind has stored events to read
    stream.log.begin(1_000_001)
    stream.say("later")
    for reader in (shown, new):
        assert text(await take(reader)) == "later"
    assert text(await take(behind)) == "alater"


async def test_a_reader_hears_what_is_gone_of_a_store_that_went_back_twice() -> None:
    """Also if a later turn was stored in between, and another one ended when the store went back again."""
    stream = Stream()
    stream.say("a", "b", "c")
    reader = stream.follow(0)
    assert numbers(await take(reader)) == [1, 2, 3]
    stream.rows[:] = [row_of(stream.published[0])]
    stream.log.doubt()
    stream.log.begin(1_000_001)
    stream.say("later")
    stream.rows.append(row_of(stream.published[-1]))
    stream.log.committed()
    stream.publish(stream.log.stamp(FAILED))
    stream.log.doubt()
    assert reader.take() is None
    assert [each.event for each in await reader.load()] == [SessionMoved(2, 3)]
    assert text(await take(reader)) == "later"


async def test_a_reader_ends_with_a_session_that_the_store_does_not_have_any_more() -> None:
    """It is told that all events are gone."""
    stream = Stream()
    stream.say("a")
    reader = stream.follow(0)
    assert text(await take(reader)) == "a"
    stream.missing = True
    stream.log.doubt()
    with trio.fail_after(1):
        assert [each.event async for each in reader] == [SessionMoved(1, 1)]


async def test_a_store_that_cannot_be_read_for_a_while_is_waited_for() -> None:
    """No event is gone, so the reader is told of none; a fault that lasts breaks it off."""
    stream = Stream()
    stream.say("a", "b")
    stream.end()
    reader = stream.follow(0)
    stream.log.forget(stream.log.last_seq)
    stream.faults += [StoreError("it cannot be reached", cause="unreachable"), StoreError("busy", cause="locked")]
    assert text([await anext(reader), await anext(reader)]) == "ab"
    stream.faults.append(StoreError("a row is damaged", cause="corrupt"))
    with pytest.raises(StoreError, match="damaged"):
        await anext(stream.follow(0))


async def test_a_reader_of_a_turn_that_may_be_lost_hears_its_end_once() -> None:
    """As soon as it is lost for certain, before all later events; until then the reader goes on."""
    stream = Stream()
    answers = [Lost(1, 1_000_000, final=False), Lost(1, 1_000_000)]

    async def find(_session_id: str, seq: int) -> Lost:
        await trio.lowlevel.checkpoint()
        assert seq in (3, 5)
        return answers.pop(0)

    reader = stream.follow(3)
    stream.log.expect_lost(reader, find)
    unsure = [stream.log.unsure]
    assert reader.take() == []
    stream.log.begin(5)  # the process may still store the turn
    assert await reader.load() == []
    stream.log.begin(1_000_000)
    (end,) = await reader.load()
    assert (end.seq, type(end.event)) == (1_000_000, RunFailed)
    unsure.append(stream.log.unsure)
    assert unsure == [True, False]
    stream.say("later")
    assert text(await take(reader)) == "later"


async def test_the_end_of_a_lost_turn_comes_before_events_in_memory() -> None:
    """Also if the log here was begun before the numbers that the takeover has left out."""
    stream = Stream()

    async def find(_session_id: str, _seq: int) -> Lost:
        await trio.lowlevel.checkpoint()
        return Lost(1, 1_000_000)

    reader = stream.follow(3)
    stream.log.expect_lost(reader, find)
    stream.log.publish(Envelope("s", 1_000_001, utc_now(), TextDelta("later")))
    assert [type((await anext(reader)).event) for _ in range(2)] == [RunFailed, TextDelta]


async def test_a_reader_of_a_turn_that_goes_on_hears_nothing_of_its_loss() -> None:
    """As soon as the turn has another process for certain, the reader goes on behind what it was shown in vain."""
    stream = Stream()
    stream.say("kept")
    stream.rows += map(row_of, stream.log.unstored())
    stream.log.committed()
    answers = [Lost(2, 1_000_000, ended=True, final=False), Lost(2, 1_000_000, ended=True)]

    async def find(_session_id: str, _seq: int) -> Lost:
        await trio.lowlevel.checkpoint()
        return answers.pop(0)

    reader = stream.follow(4)
    stream.log.expect_lost(reader, find)
    assert await reader.load() == []
    stream.log.begin(1_000_000)
    stream.publish(stream.log.stamp(TurnResumed(1, 1)))
    stream.say("rest")
    stream.end()
    found = [await anext(reader) for _ in range(3)]
    assert [each.event for each in found] == [TurnResumed(1, 1), TextDelta("rest"), END]
    assert numbers(found) == [1_000_001, 1_000_002, 1_000_003]


@pytest.mark.parametrize("seen", [0, 2, 3, 6])
async def test_a_slow_reader_of_a_turn_that_no_store_takes_sees_its_end(seen: int) -> None:
    """Also if another process has gone on with the session before the reader came so far."""
    stream = Stream()
    stream.say("a")
    stream.end()
    stream.say("b", "c", "d")
    reader = stream.follow(0)
    assert numbers(await take(reader)) == [1, 2, 3, 4, 5]
    stream.publish(stream.log.stamp(FAILED))
    slow = stream.follow(seen)
    stream.rows.append(row_of(Envelope("s", 1_000_001, utc_now(), END)))
    stream.log.begin(1_000_001)
    assert numbers(await take(reader.another())) == [6, 1_000_001]
    assert numbers(await take(reader)) == [6, 1_000_001]
    unread = range(seen + 1, 7) if seen >= 2 else (1, 2)  # a reader that was shown nothing of that turn passes it over
    assert numbers(await take(slow)) == [*unread, 1_000_001]


@pytest.mark.parametrize("later", ["refused", "stored", "overtaken"])
@pytest.mark.parametrize("seen", [1, 2, 4])
async def test_events_beyond_the_bound_that_no_store_took_are_one_gap(seen: int, later: str) -> None:
    """A reader that was shown some of a turn is told of the dropped ones, whatever the store takes afterwards."""
    stream = Stream(page=10)
    stream.publish(stream.log.stamp(TurnStarted(0)))
    stream.end()
    reader = stream.follow(seen)
    for number in range(8):
        stream.publish(stream.log.stamp(TurnStarted(number)))
        stream.log.trim()
    last = [7, 8, 9, 10, 11]
    stream.publish(stream.log.stamp(FAILED))
    stream.log.trim()
    if later == "stored":
        stream.end()
        last.append(12)
    elif later == "overtaken":
        stream.rows.append(row_of(Envelope("s", 1_000_001, utc_now(), END)))
        stream.log.begin(1_000_001)
        last = [*last, 1_000_001] if seen > 1 else [1_000_001]
    found = await take(reader)
    before = max(seen, 2)
    assert [each.event for each in found if isinstance(each.event, StreamTruncated)] == [
        StreamTruncated(6 - before, before)
    ]
    assert [each.seq for each in found] == [*range(seen + 1, before + 1), before, *last]


async def test_a_turn_begins_once_for_its_caller() -> None:
    """The reader comes with the first event, stands before it, and goes on; the slot is empty then."""
    stream, readers = Stream(), list[EventReader]()
    stream.say("before")
    begun = Beginning(readers.append)
    stream.log.beginning.append(begun)
    assert readers == []
    stream.say("first", "second")
    assert (len(readers), begun.on_begin, stream.log.beginning) == (1, None, [])
    assert text(readers[0].take() or ()) == "firstsecond"


async def test_a_caller_that_comes_later_gets_the_whole_turn() -> None:
    """A reader of all events, the stored ones too; a function that is called with each gets those in memory."""
    stream, readers, seen = Stream(), list[EventReader](), list[Envelope]()
    stream.say("before")
    stream.end()
    stream.say("first", "second")
    stream.rows += map(row_of, stream.log.unstored())
    stream.log.committed()
    stream.say("third")
    stream.log.beginning += [Beginning(readers.append), Beginning(Telling(seen.append))]
    stream.log.tell_begun(2)
    stream.say("fourth")
    (reader,) = readers
    assert text([await anext(reader), await anext(reader)]) == "firstsecondthirdfourth"
    assert text(seen) == "thirdfourth"


@pytest.mark.parametrize("told", [False, True])
async def test_a_caller_that_left_gets_no_reader(told: bool) -> None:  # noqa: FBT001
    """A turn that begins later has its events told all the same, to a function that asked for each of them."""
    stream, seen = Stream(), list[object]()
    begun = Beginning(Telling(seen.append) if told else seen.append)
    stream.log.beginning.append(begun)
    with trio.move_on_after(1):
        await begun.of(trio.Event().wait())
    stream.say("late")
    assert [getattr(each, "event", None) for each in seen] == ([TextDelta("late")] if told else [])


async def test_a_caller_with_its_answer_gets_no_later_reader() -> None:
    """Neither from a turn of another caller, nor with a function that asked for each event."""
    stream, seen = Stream(), list[Envelope]()
    begun = Beginning(Telling(seen.append))
    stream.log.beginning.append(begun)
    answered = trio.Event()
    answered.set()
    await begun.of(answered.wait())
    stream.say("late")
    assert seen == []


async def test_a_caller_of_a_turn_that_is_put_back_is_told_no_more() -> None:
    """The error ends the call; the turn may go on, and nobody reads for the function then."""
    stream, seen = Stream(), list[Envelope]()
    begun = Beginning(Telling(seen.append))
    stream.log.beginning.append(begun)

    async def put_back() -> None:
        await trio.lowlevel.checkpoint()
        stream.say("first")
        raise StoreError("no", cause="disk_full")

    with pytest.raises(StoreError):
        await begun.of(put_back())
    stream.say("late")
    assert text(seen) == "first"
    assert not stream.log.watched


async def test_deltas_are_not_merged_across_an_interruption() -> None:
    """A reader that is behind gets the lost piece, the mark, and the piece of the next try, each for itself."""
    stream = Stream()
    reader = stream.follow(0)
    for event in (TextDelta("ha"), TextDelta("lf"), TurnResumed(1, 0), TextDelta("who"), TextDelta("le")):
        stream.publish(stream.log.stamp(event))
    events = [TextDelta("half"), TurnResumed(1, 0), TextDelta("whole")]
    assert [each.event for each in reader.take() or ()] == events
    stream.end()
    late = stream.follow(0)
    assert [each.event for each in [*await late.load(), *await late.load()]][:3] == events
