"""What waits to be sent to one client."""

from collections import defaultdict

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.sessions import NOW, delta, envelope, texts
from warren.events import (
    Envelope,
    ReasoningDelta,
    RunStarted,
    StreamTruncated,
    TextDelta,
    ToolCallRequested,
    TurnStarted,
)
from warren.transport.rpc.outbox import MERGED_TEXT, PRESSURE, Item, Outbox, Over


def filled(*items: Envelope | bytes, capacity: int = 100) -> Outbox:
    """Make an outbox that was given events and replies."""
    outbox = Outbox(capacity)
    for item in items:
        if isinstance(item, bytes):
            outbox.reply(item)
        else:
            outbox.event(item)
    return outbox


def turn(count: int, session_id: str = "s1", first: int = 1) -> list[Envelope]:
    """Make a turn's first event and deltas after it."""
    return [envelope(first, RunStarted(session_id, "hi"), session_id)] + [
        delta(seq, f"{seq} ", session_id) for seq in range(first + 1, first + count)
    ]


def steps(count: int, session_id: str = "s1") -> list[Envelope]:
    """Make events that cannot be merged."""
    return [envelope(seq, TurnStarted(seq), session_id) for seq in range(1, count + 1)]


def test_everything_leaves_in_order() -> None:
    """A reply leaves after what was put in before it."""
    items: list[Envelope | bytes] = [*turn(3), b"reply", delta(4)]
    outbox = filled(*items)
    assert outbox.take() == items
    assert len(outbox) == 0
    assert outbox.take() == []


def test_few_deltas_stay_as_they_are() -> None:
    """Without pressure nothing is merged."""
    items = [delta(seq) for seq in range(1, PRESSURE + 1)]
    assert filled(*items).take() == items


def test_many_deltas_leave_as_one() -> None:
    """Under pressure adjacent deltas become one envelope that stands for them all."""
    start, *rest = turn(PRESSURE + 3)
    taken = filled(start, *rest).take()
    assert taken == [start, delta(PRESSURE + 3, texts(rest), first_seq=2)]


def test_deltas_merge_past_other_sessions_and_replies() -> None:
    """Only the order within a session counts."""
    mixed = [item for pair in zip(turn(4, "a"), turn(4, "b"), strict=True) for item in pair]
    taken = filled(mixed[0], b"one", *mixed[1:], b"two").take()
    assert taken == [
        mixed[0],
        b"one",
        mixed[1],
        delta(4, "2 3 4 ", "a", first_seq=2),
        delta(4, "2 3 4 ", "b", first_seq=2),
        b"two",
    ]


def test_what_lies_between_keeps_deltas_apart() -> None:
    """Deltas are not merged past another event of their session, another kind, or a missing number."""
    apart = [
        delta(1),
        envelope(2, ReasoningDelta("hm")),
        delta(3),
        envelope(4, TurnStarted(1)),
        delta(5),
        delta(7),
    ]
    assert filled(*apart).take() == apart


def test_a_full_outbox_merges_before_it_drops() -> None:
    """A burst of deltas far over the capacity arrives whole."""
    items = [delta(seq, f"{seq} ") for seq in range(1, 1001)]
    taken = [item for item in filled(*items, capacity=10).take() if isinstance(item, Envelope)]
    assert texts(taken) == texts(items)
    assert not any(isinstance(item.event, StreamTruncated) for item in taken)


def test_merged_text_is_bounded() -> None:
    """Merging stops at a size, so that a long text is not copied over and over."""
    piece = "x" * 1000
    taken = filled(*[delta(seq, piece) for seq in range(1, 101)]).take()
    sizes = [
        len(item.event.delta) for item in taken if isinstance(item, Envelope) and isinstance(item.event, TextDelta)
    ]
    assert sum(sizes) == 100_000
    assert max(sizes) <= MERGED_TEXT + len(piece)


def test_the_bytes_of_events_are_bounded() -> None:
    """Few events that say much leave a marker too; one that is larger than the bound passes where none waits."""
    events = [envelope(seq, ToolCallRequested(f"call-{seq}", "t", {"a": ["x" * 1000]})) for seq in range(1, 10)]
    outbox = Outbox(100, max_bytes=2500)
    for each in events:
        outbox.event(each)
    marker = Envelope("s1", 3, NOW, StreamTruncated(6, 3))
    assert outbox.take() == [*events[:3], marker]
    large = envelope(10, ToolCallRequested("call-10", "t", {"a": "x" * 9000}))
    outbox.event(large)
    assert outbox.take() == [large]


def test_the_bytes_of_replies_are_counted() -> None:
    """Whoever takes them sees none any more."""
    outbox = filled(b"reply", delta(1), b"another")
    outbox.reply(Over("s1"))
    assert outbox.reply_bytes == 12
    outbox.take()
    assert outbox.reply_bytes == 0


def test_overflow_leaves_one_marker_in_place() -> None:
    """Events without room are counted in one marker; what comes after the gap goes on."""
    items = steps(7)
    outbox = filled(*items[:6], b"reply", capacity=4)
    marker = Envelope("s1", 4, NOW, StreamTruncated(2, 4))
    assert outbox.take() == [*items[:4], marker, b"reply"]
    outbox.event(items[6])
    assert outbox.take() == [items[6]]


def test_each_session_has_its_own_marker() -> None:
    """What one session floods, another one is told of too, each with its own numbers."""
    kept = steps(4, "a")
    outbox = filled(*kept, *steps(2, "b"), envelope(5, TurnStarted(5), "a"), capacity=4)
    assert outbox.take() == [
        *kept,
        Envelope("b", 0, NOW, StreamTruncated(2, 0)),
        Envelope("a", 4, NOW, StreamTruncated(1, 4)),
    ]


def test_a_dropped_marker_is_counted_with_its_own() -> None:
    """A gap in the subscription that finds no room is added to the outbox's own gap."""
    kept = steps(4)
    lost = [envelope(4, StreamTruncated(3, 4)), delta(9, "abc", first_seq=8)]
    assert filled(*kept, *lost, capacity=4).take() == [*kept, Envelope("s1", 4, NOW, StreamTruncated(5, 4))]


def test_replies_are_never_dropped() -> None:
    """A full outbox takes replies, and counts them."""
    outbox = filled(*steps(9), b"one", b"two", capacity=2)
    assert outbox.replies == 2
    assert outbox.take()[-2:] == [b"one", b"two"]
    assert outbox.replies == 0


def test_whatever_is_put_in_is_announced() -> None:
    """The writer hears of what came first since it took the rest, be it an event or a reply."""
    heard: list[int] = []
    outbox = Outbox(1, notify=lambda: heard.append(len(outbox)))
    for item in steps(3):
        outbox.event(item)
    assert heard == [1]
    outbox.take()
    outbox.reply(b"reply")
    outbox.reply(b"another")
    assert heard == [1, 1]


def test_a_closed_outbox_takes_nothing() -> None:
    """Once the client is gone, nothing is kept for it."""
    outbox = filled(*steps(3), b"reply", capacity=2)
    outbox.close()
    outbox.event(delta(4))
    outbox.reply(b"late")
    assert (len(outbox), outbox.replies, outbox.take()) == (0, 0, [])


@attrs.define
class Reader:
    """A client that checks what it is told."""

    at: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    missing: int = 0
    text: str = ""
    replies: int = 0
    ends: list[tuple[str, int]] = attrs.field(factory=list)

    def read(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Over):
                self.ends.append((item.session_id, self.at[item.session_id]))
            elif isinstance(item, bytes):
                self.replies += 1
            elif isinstance(item.event, StreamTruncated):
                assert item.event.resume_after == self.at[item.session_id]
                self.at[item.session_id] += item.event.dropped
                self.missing += item.event.dropped
            else:
                assert (item.first_seq or item.seq) == self.at[item.session_id] + 1
                self.at[item.session_id] = item.seq
                self.text += item.event.delta if isinstance(item.event, TextDelta) else ""


SCRIPTS = st.lists(st.sampled_from(["a delta", "b delta", "a step", "b step", "reply", "a over", "take"]), max_size=80)


@given(SCRIPTS, st.integers(1, 8))
def test_nothing_is_lost_untold(script: list[str], capacity: int) -> None:
    """Whatever the mix: per session the numbers have no hole that no marker names, no reply is lost, an end is last."""
    outbox, reader = Outbox(capacity), Reader()
    ends: list[tuple[str, int]] = []
    sent: dict[str, int] = defaultdict(int)
    for word in script:
        session_id, _, kind = word.partition(" ")
        if word == "take":
            reader.read(outbox.take())
        elif word == "reply":
            outbox.reply(b"reply")
        elif kind == "over":
            outbox.reply(Over(session_id))
            ends.append((session_id, sent.get(session_id, 0)))
        else:
            sent[session_id] += 1
            seq = sent[session_id]
            outbox.event(
                delta(seq, "x", session_id) if kind == "delta" else envelope(seq, TurnStarted(seq), session_id)
            )
    reader.read(outbox.take())
    assert {key: value for key, value in reader.at.items() if value} == dict(sent)
    assert reader.replies == script.count("reply")
    assert [session_id for session_id, _ in reader.ends] == [session_id for session_id, _ in ends]
    assert all(heard >= said for (_, heard), (_, said) in zip(reader.ends, ends, strict=True))
    if not reader.missing:
        assert len(reader.text) == script.count("a delta") + script.count("b delta")


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_small_outboxes_hold_what_they_say(capacity: int) -> None:
    """As many events as the capacity says find room."""
    assert filled(*steps(capacity), capacity=capacity).take() == steps(capacity)
