"""The tail of a log: whatever is told, wherever a reader stands, it reads on without a gap and without a double."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.domain import strategies
from tests.support.logs import new_log
from warren.actors.events.eventlog import EventLog
from warren.calls.streams import EventReader
from warren.conversation import codec
from warren.conversation.events import (
    DELTAS,
    Envelope,
    Event,
    ReasoningDelta,
    RunCompleted,
    StreamTruncated,
    TextDelta,
    TurnStarted,
)
from warren.conversation.log_rows import cut, envelopes, release, row_of
from warren.conversation.records import EventRow
from warren.conversation.usage import Usage

EPOCH: Final = datetime(2024, 5, 17, tzinfo=UTC)
END: Final = RunCompleted("s", "", Usage())


def runs_of(log: EventLog) -> int:
    """Return how many runs of events are in memory."""
    return len(log.unstored())


@attrs.frozen
class Commit:
    """The turn ends: the log's events go to the store.

    `late`: the log learns that only after the next event, as when the next turn is quick.
    """

    late: bool = False


@attrs.frozen
class Skip:
    """Numbers are passed over, as after a restart."""

    by: int


@attrs.define
class Story:
    """A session's stream, told to a log and to a store that is a list of rows; `live` is what happened."""

    log: EventLog = attrs.field(factory=new_log)
    store: list[EventRow] = attrs.field(factory=list)
    live: list[Envelope] = attrs.field(factory=list)
    stored: int = 0

    def tell(self, step: Event | Commit | Skip) -> None:
        if isinstance(step, Skip):
            self.log.start_above(self.log.last_seq + step.by)
        elif not isinstance(step, Commit):
            self._append(self._next(step))
        self._confirm()
        if isinstance(step, Commit):
            self._commit()
            if not step.late:
                self._confirm()

    def replay(self, after: int) -> list[Envelope]:
        """Read as a subscriber does: what is below the floor from the store, then the tail."""
        behind = after < self.log.floor
        stored = list(envelopes("s", [row for row in self.store if row.seq > after], after)) if behind else []
        return [*stored, *self.page(stored[-1].seq if stored else after)]

    def page(self, after: int) -> list[Envelope]:
        """Return what is in memory above a number."""
        page = EventReader(self.log, max(after, self.log.floor)).take()
        assert page is not None
        return page

    def _next(self, event: Event) -> Envelope:
        seq = self.log.last_seq + 1
        return Envelope("s", seq, EPOCH + timedelta(seconds=seq), event)

    def _append(self, entry: Envelope) -> None:
        self.log.publish(entry)
        self.live.append(entry)

    def _commit(self) -> None:
        last = self._next(END)
        self.store.extend(map(row_of, self.log.unstored(last)))
        self._append(last)
        self.stored = last.seq

    def _confirm(self) -> None:
        if self.stored > self.log.floor:
            self.log.forget(self.stored)


pieces: Final = st.builds(TextDelta, strategies.text) | st.builds(ReasoningDelta, strategies.text)
steps: Final = (
    pieces | pieces | st.just(TurnStarted(0)) | st.builds(Commit, st.booleans()) | st.builds(Skip, st.integers(1, 3))
)
stories: Final = st.lists(steps, max_size=25)


def told(script: list[Event | Commit | Skip]) -> Story:
    """Return the story of a script."""
    story = Story()
    for step in script:
        story.tell(step)
    return story


def same(read: list[Envelope], happened: list[Envelope]) -> None:
    """Assert that each envelope read stands for exactly the next of those that happened."""
    rest = list(happened)
    for envelope in read:
        first = envelope.first_seq or envelope.seq
        part, rest = rest[: envelope.seq - first + 1], rest[envelope.seq - first + 1 :]
        assert [one.seq for one in part] == list(range(first, envelope.seq + 1))
        assert {type(one.event) for one in part} == {type(envelope.event)}
        if isinstance(envelope.event, DELTAS):
            assert envelope.event.delta == "".join(one.event.delta for one in part if isinstance(one.event, DELTAS))
        else:
            assert (envelope.event, envelope.timestamp) == (part[0].event, part[0].timestamp)
    assert rest == []


@given(stories, st.integers(0, 30))
@example([TextDelta("a"), Skip(2), TextDelta("b")], 2)
@example([TextDelta("a"), Commit(late=True), TextDelta("b"), TextDelta("c"), Commit()], 3)
@example([TextDelta("👨‍👩‍👧"), TextDelta("é"), Commit(), TextDelta("x")], 1)
def test_a_reader_misses_nothing(script: list[Event | Commit | Skip], after: int) -> None:
    """From the store and the tail together a reader gets the events above its place, each once, its text exact."""
    story = told(script)
    same(story.replay(after), [envelope for envelope in story.live if envelope.seq > after])


@given(stories)
def test_every_place_is_a_good_place(script: list[Event | Commit | Skip]) -> None:
    """A reader that takes one envelope and comes back later reads the same text as one that reads it all."""
    story = told(script)
    for envelope in story.live:
        assert text(story.replay(0)) == text(up_to(story, envelope.seq)) + text(story.replay(envelope.seq))


def up_to(story: Story, seq: int) -> list[Envelope]:
    """Return what happened up to an event."""
    return [envelope for envelope in story.live if envelope.seq <= seq]


def text(stream: list[Envelope]) -> str:
    """Return the answer's text in a stream."""
    return "".join(envelope.event.delta for envelope in stream if isinstance(envelope.event, TextDelta))


@given(stories)
def test_the_store_reads_as_the_tail_did(script: list[Event | Commit | Skip]) -> None:
    """The tail shows the same before a commit as the store after it."""
    story = told(script)
    before = story.replay(0)
    story.tell(Commit())
    assert story.replay(0) == [*before, story.live[-1]]
    assert not story.log.pending


def adjacent(left: Envelope, right: Envelope) -> bool:
    """Tell whether two envelopes can be merged: adjacent deltas of one kind in one log."""
    kind = type(left.event)
    return (
        kind is type(right.event)
        and (right.first_seq or right.seq) == left.seq + 1
        and left.session_id == right.session_id
        and kind in DELTAS
    )


def merged(run: Sequence[Envelope]) -> Envelope:
    """Merge envelopes into one. Each must be `adjacent` to the next."""
    first, last = run[0], run[-1]
    if first is last or not isinstance(first.event, DELTAS):
        return first
    text = "".join([each.event.delta for each in run if isinstance(each.event, DELTAS)])
    return Envelope(first.session_id, last.seq, first.timestamp, type(first.event)(text), first.first_seq or first.seq)


@given(stories)
def test_merging_live_events_is_what_the_log_does(script: list[Event | Commit | Skip]) -> None:
    """Live envelopes, merged, are those that a late reader gets."""
    story = told([step for step in script if not isinstance(step, Commit)])
    runs: list[list[Envelope]] = []
    for envelope in story.live:
        if runs and adjacent(runs[-1][-1], envelope):
            runs[-1].append(envelope)
        else:
            runs.append([envelope])
    assert [merged(run) for run in runs] == story.page(0)


@given(stories, st.integers(0, 4))
def test_without_a_store_the_newest_stay(script: list[Event | Commit | Skip], keep: int) -> None:
    """Forgetting the oldest moves the floor: a reader at or above it misses nothing, one below can tell."""
    story = told([step for step in script if not isinstance(step, Commit)])
    runs, floor = runs_of(story.log), story.log.floor
    story.log.forget_oldest(keep)
    assert runs_of(story.log) == min(runs, keep)
    assert (story.log.floor > floor) == (runs > keep)
    for after in range(story.log.floor, story.log.last_seq + 1):
        same(story.page(after), [envelope for envelope in story.live if envelope.seq > after])


@given(stories)
def test_deltas_of_a_kind_share_a_row(script: list[Event | Commit | Skip]) -> None:
    """No two rows could have been one: a long answer is a few rows, not thousands."""
    story = told([*script, Commit()])
    read = list(envelopes("s", story.store, 0))
    assert not any(adjacent(left, right) for left, right in itertools.pairwise(read))


def test_rows_do_not_hang_on_the_closing_event() -> None:
    """Asking for rows changes nothing: a commit that fails can be asked for again."""
    story = told([TextDelta("a"), TextDelta("b")])
    last = Envelope("s", 3, EPOCH, END)
    assert story.log.unstored(last) == story.log.unstored(last)
    assert (story.log.last_seq, runs_of(story.log)) == (2, 1)


def test_an_event_is_encoded_once() -> None:
    """All readers get the same envelopes, also of merged deltas, and the rows have the JSON that was made for them."""
    log = told([TextDelta("a"), TextDelta("b"), TurnStarted(0)]).log
    read = EventReader(log, 0).take() or []
    made = [codec.encode_event(each) for each in read]
    assert list(map(id, (EventReader(log, 0).take() or []))) == list(map(id, read))
    rows = list(map(row_of, log.unstored()))
    assert [row.body for row in rows] == [
        b'{"type":"text_delta","delta":"ab"}',
        b'{"type":"turn_started","turn_number":0}',
    ]
    assert [id(row.body) for row in rows] == list(map(id, made))


def test_the_json_of_an_event_counts() -> None:
    """The size of the tail has the bytes that its events hold for rows and messages; `release` drops them."""
    log = told([TextDelta("a" * 1000), TurnStarted(0)]).log
    before = log.size
    made = [codec.encode_event(each) for each in EventReader(log, 0).take() or []]
    rows = list(map(row_of, log.unstored()))
    assert log.size >= before + sum(map(len, made))
    release(log.unstored())
    assert log.size == before
    assert list(map(row_of, log.unstored())) == rows


def test_a_row_in_json() -> None:
    """A merged row carries its text joined, the first event's time, and where it may be cut; a single one no cuts."""
    rows = told([TextDelta("né"), TextDelta("👍🏽"), TurnStarted(1), Commit()]).store
    assert [(row.first_seq, row.seq, codec.parse(row.cuts) if row.cuts else None) for row in rows] == [
        (1, 2, [2, 2]),
        (3, 3, None),
        (4, 4, None),
    ]
    assert rows[0].timestamp == EPOCH + timedelta(seconds=1)
    assert codec.parse(rows[0].body) == {"type": "text_delta", "delta": "né👍🏽"}


def test_numbers_go_on_above_what_the_store_has() -> None:
    """A revived session starts above its log, and says that what is below is elsewhere."""
    log = new_log()
    log.start_above(7)
    assert (log.last_seq, log.floor) == (7, 7)
    log.start_above(3)
    assert (log.last_seq, log.floor) == (7, 7)
    log.publish(Envelope("s", 8, EPOCH, TurnStarted(0)))
    log.start_above(20)
    assert (log.last_seq, log.floor, len(EventReader(log, 7).take() or [])) == (20, 7, 1)


def test_what_is_not_stored_yet_stays() -> None:
    """Forgetting up to a number keeps what came after it; forgetting less than before changes nothing."""
    log = told([TextDelta("a"), TurnStarted(1), TextDelta("b")]).log
    log.forget(2)
    assert ([envelope.seq for envelope in EventReader(log, 2).take() or ()], log.floor, log.last_seq) == ([3], 2, 3)
    log.forget(1)
    assert (runs_of(log), log.floor) == (1, 2)


def test_it_has_no_event_of_a_gap() -> None:
    """The numbers of events have gaps: a number between two events of the tail may be of neither."""
    log = new_log()
    for seq, event in ((2, TurnStarted(0)), (7, TextDelta("a")), (8, TextDelta("b")), (1_000_001, END)):
        log.publish(Envelope("s", seq, EPOCH, event))
    assert [seq for seq in (1, 2, 3, 6, 7, 8, 9, 1_000_000, 1_000_001, 1_000_002) if log.has(seq)] == [
        *(2, 7, 8, 1_000_001)
    ]


@pytest.mark.parametrize(("after", "rest", "first"), [(0, "abcd", 4), (3, "abcd", 4), (4, "cd", 5), (5, "d", None)])
def test_a_cut(after: int, rest: str, first: int | None) -> None:
    """Merged deltas are cut where the reader stands; the last delta alone is a single event again."""
    merged = Envelope("s", 6, EPOCH, TextDelta("abcd"), 4)
    assert cut(merged, [2, 1, 1], after) == Envelope("s", 6, EPOCH, TextDelta(rest), first)


def test_a_row_that_cannot_be_read_has_a_marker() -> None:
    """The marker has the row's own number to go on from, and the events behind it follow."""
    bad, good = (
        EventRow(1, 3, EPOCH, b'{"type":"text_delta"}'),
        EventRow(4, 4, EPOCH, b'{"type":"text_delta","delta":"x"}'),
    )
    for rows in ([bad, good], [attrs.evolve(bad, body=b'"\xff"'), good], [attrs.evolve(bad, cuts=b"{"), good]):
        first, second = envelopes("s", rows, 0)
        assert (first.seq, first.event) == (3, StreamTruncated(3, 3, "damaged"))
        assert (second.seq, second.event) == (4, TextDelta("x"))


def test_deltas_that_come_merged_stay_as_they_are() -> None:
    """Their pieces are not known, so nobody can go on in the middle of them; before and behind them it is possible."""
    log = new_log()
    merged = Envelope("s", 4, EPOCH, TextDelta("bcd"), 2)
    for each in (Envelope("s", 1, EPOCH, TextDelta("a")), merged, Envelope("s", 5, EPOCH, TextDelta("e"))):
        log.publish(each)
    assert [each.seq for each in (EventReader(log, 0).take() or [])] == [1, 4, 5]
    assert (EventReader(log, 1).take() or [])[0] is merged
    assert [log.parts_at(seq) for seq in range(7)] == [False, False, True, True, False, False, False]
