"""What waits to be sent to one client."""

from collections import defaultdict

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.support.envelopes import delta, envelope, texts
from warren.events import (
    Envelope,
    ReasoningDelta,
    RunStarted,
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


def test_merged_text_is_bounded() -> None:
    """Merging stops at a size, so that a long text is not copied over and over."""
    piece = "x" * 1000
    taken = filled(*[delta(seq, piece) for seq in range(1, 101)]).take()
    sizes = [
        len(item.event.delta) for item in taken if isinstance(item, Envelope) and isinstance(item.event, TextDelta)
    ]
    assert sum(sizes) == 100_000
    assert max(sizes) <= MERGED_TEXT + len(piece)


def test_there_is_room_for_so_many_events() -> None:
    """The number of events that wait is bounded by whoever adds them; replies take no room of theirs."""
    outbox = filled(*steps(3), b"reply", capacity=4)
    rooms = [outbox.room]
    outbox.event(delta(4))
    rooms.append(outbox.room)
    outbox.take()
    assert [*rooms, outbox.room] == [True, False, True]


def test_there_is_room_for_so_many_bytes() -> None:
    """Few events that say much take all the room too; one that is larger than the bound passes if none waits."""
    outbox, rooms = Outbox(100, max_bytes=2500), list[bool]()
    for seq in range(1, 4):
        outbox.event(envelope(seq, ToolCallRequested(f"call-{seq}", "t", {"a": ["x" * 1000]})))
        rooms.append(outbox.room)
    outbox.take()
    rooms.append(outbox.room)
    outbox.event(delta(4, "x" * 9000))
    assert [*rooms, outbox.room] == [True, True, False, True, False]


def test_the_bytes_of_replies_are_counted() -> None:
    """Whoever takes them sees none any more."""
    outbox = filled(b"reply", delta(1), b"another")
    outbox.reply(Over("s1"))
    assert outbox.reply_bytes == 12
    outbox.take()
    assert outbox.reply_bytes == 0


def test_nothing_is_dropped() -> None:
    """A full outbox takes events and replies, and counts the replies."""
    outbox = filled(*steps(9), b"one", b"two", capacity=2)
    assert outbox.replies == 2
    assert outbox.take() == [*steps(9), b"one", b"two"]
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
    text: str = ""
    replies: int = 0
    ends: list[tuple[str, int]] = attrs.field(factory=list)

    def read(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Over):
                self.ends.append((item.session_id, self.at[item.session_id]))
            elif isinstance(item, bytes):
                self.replies += 1
            else:
                assert (item.first_seq or item.seq) == self.at[item.session_id] + 1
                self.at[item.session_id] = item.seq
                self.text += item.event.delta if isinstance(item.event, TextDelta) else ""


SCRIPTS = st.lists(st.sampled_from(["a delta", "b delta", "a step", "b step", "reply", "a over", "take"]), max_size=80)


@given(SCRIPTS, st.integers(1, 8))
def test_nothing_is_lost(script: list[str], capacity: int) -> None:
    """Whatever the mix: per session the numbers have no hole, no reply is lost, an end is last."""
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
    assert len(reader.text) == script.count("a delta") + script.count("b delta")
