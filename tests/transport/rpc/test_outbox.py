"""Messages that wait for one client."""

from collections.abc import Iterable

import attrs
from hypothesis import given
from hypothesis import strategies as st

from warren.transport.rpc.outbox import PIECE, Outbox, pieces_of


@attrs.define(eq=False)
class Counter:
    """A source whose messages say how often it was asked."""

    asked: int = 0

    def frames(self) -> Iterable[bytes]:
        self.asked += 1
        return (b"asked %d" % self.asked,)


def filled(*replies: bytes, told: Iterable[bytes] = (), capacity: int = 100) -> Outbox:
    """Make an outbox that was given notifications, then replies."""
    outbox = Outbox(capacity)
    for frame in told:
        outbox.tell(frame)
    for frame in replies:
        outbox.reply(frame)
    return outbox


def test_everything_leaves_in_order() -> None:
    """A reply leaves after what was put in before it."""
    outbox = filled(b"one", b"two", told=[b"news"])
    outbox.tell(b"more")
    assert outbox.take() == [b"news", b"one", b"two", b"more"]
    assert len(outbox.items) == 0
    assert outbox.take() == []


def test_a_source_is_asked_when_its_turn_comes() -> None:
    """Its messages are made once the pieces before its own have left, and not when it is put in."""
    outbox, source, long = Outbox(1), Counter(), bytes(PIECE)
    outbox.reply(long)
    outbox.add(source)
    outbox.reply(b"behind")
    outbox.add(source)
    leaving = pieces_of(outbox.take())
    assert (next(leaving), source.asked) == ([long], 0)
    assert list(leaving) == [[b"asked 1", b"behind", b"asked 2"]]


def test_there_is_room_for_so_many_notifications() -> None:
    """The number of notifications that wait is bounded by whoever adds them; replies take no room of theirs."""
    outbox = filled(b"reply", told=[b"1", b"2", b"3"], capacity=4)
    rooms = [outbox.room]
    outbox.tell(b"4")
    rooms.append(outbox.room)
    outbox.take()
    assert [*rooms, outbox.room] == [True, False, True]


def test_there_is_room_for_so_many_bytes() -> None:
    """Few notifications that say much take all the room too; one that is larger than the bound passes if none waits."""
    outbox, rooms = Outbox(100, max_bytes=2500), list[bool]()
    for _ in range(3):
        outbox.tell(b"x" * 1000)
        rooms.append(outbox.room)
    outbox.take()
    rooms.append(outbox.room)
    outbox.tell(b"x" * 9000)
    assert [*rooms, outbox.room] == [True, True, False, True, False]


def test_the_bytes_of_replies_are_counted() -> None:
    """Whoever takes them sees none any more."""
    outbox = filled(b"reply", b"another", told=[b"news"])
    outbox.add(Counter())
    assert (outbox.replies, outbox.reply_bytes) == (2, 12)
    outbox.take()
    assert (outbox.replies, outbox.reply_bytes) == (0, 0)


def test_whatever_is_put_in_is_announced() -> None:
    """The writer hears of what came first since it took the rest, whatever it is."""
    heard: list[int] = []
    outbox = Outbox(1, notify=lambda: heard.append(len(outbox.items)))
    outbox.add(Counter())
    outbox.tell(b"news")
    assert heard == [1]
    outbox.take()
    outbox.reply(b"reply")
    outbox.reply(b"another")
    assert heard == [1, 1]


def test_a_closed_outbox_takes_nothing() -> None:
    """Once the client is gone, nothing is kept for it."""
    outbox = filled(b"reply", told=[b"1", b"2", b"3"], capacity=2)
    outbox.close()
    outbox.tell(b"4")
    outbox.reply(b"late")
    outbox.add(Counter())
    assert (len(outbox.items), outbox.replies, outbox.take()) == (0, 0, [])


@given(st.lists(st.sampled_from(["news", "reply", "take"]), max_size=80), st.integers(1, 8))
def test_nothing_is_lost(script: list[str], capacity: int) -> None:
    """Whatever the mix, and however full it is: everything comes out, in order."""
    outbox, found, given_in = Outbox(capacity), list[object](), list[bytes]()
    for number, word in enumerate(script):
        frame = b"%d" % number
        if word == "take":
            found += outbox.take()
            continue
        given_in.append(frame)
        outbox.reply(frame) if word == "reply" else outbox.tell(frame)
    assert [*found, *outbox.take()] == given_in
