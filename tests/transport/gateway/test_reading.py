"""The frames of a client, told apart before wsproto sees them."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Event, Ping, TextMessage

from warren.transport.gateway.reading import Splitter

MOST = 70_000
SIZES = st.sampled_from([0, 1, 5, 125, 126, 127, 1_000, 0xFFFF, 0x10000, MOST])
TEXTS = st.builds(lambda size, letter: letter * (size // len(letter.encode())), SIZES, st.sampled_from("a\u20ac"))
EVENTS = st.one_of(
    st.builds(TextMessage, TEXTS),
    st.builds(TextMessage, TEXTS, message_finished=st.just(False)),
    st.builds(BytesMessage, st.just(b"\x00\xff")),
    st.builds(Ping, st.just(b"there?")),
)


def sendable(events: Sequence[Event]) -> list[Event]:
    """Leave out bytes within a text that is not finished: a client cannot send them."""
    found, unfinished = list[Event](), False
    for event in events:
        if isinstance(event, TextMessage):
            unfinished = not event.message_finished
        if not (unfinished and isinstance(event, BytesMessage)):
            found.append(event)
    return found


def read(protocol: Connection, data: bytes) -> list[Event]:
    """Return the events that wsproto finds in some bytes."""
    protocol.receive_data(data)
    return list(protocol.events())


def messages(events: list[Event]) -> list[object]:
    """Return whole messages, with their pieces joined, and the payloads of pings, up to a fault."""
    found: list[object] = []
    parts: list[str | bytes] = []
    for event in events:
        if isinstance(event, TextMessage | BytesMessage):
            parts.append(bytes(event.data) if isinstance(event, BytesMessage) else event.data)
            if event.message_finished:
                found.append((type(event), parts[0][:0].join(parts)))  # type: ignore[arg-type] # all are of one type
                parts = []
        else:
            found.append((type(event), event))
            if not isinstance(event, Ping):
                break
    return found


def split(stream: bytes, cuts: list[int], most: int = MOST) -> list[Event]:
    """Return the events of a stream that arrives cut into parts; wsproto reads what the splitter leaves to it."""
    splitter, protocol, found = Splitter(most), Connection(ConnectionType.SERVER), list[Event]()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for left, right in pairwise(edges):
        for part, is_text in splitter.feed(stream[left:right]):
            found += [TextMessage(part.decode())] if is_text else read(protocol, part)
    return found


@given(st.lists(EVENTS, max_size=6).map(sendable), st.lists(st.integers(0, 140_000), max_size=9))
def test_frames_cut_anywhere(events: list[Event], cuts: list[int]) -> None:
    """Wherever a stream of frames is cut, its messages, and its first fault, are those that wsproto finds."""
    client = Connection(ConnectionType.CLIENT)
    stream = b"".join(client.send(event) for event in events)
    assert messages(split(stream, cuts)) == messages(read(Connection(ConnectionType.SERVER), stream))


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_any_bytes(stream: bytes, cuts: list[int]) -> None:
    """Bytes that are no frames have the fault that wsproto finds in them, if their heads are there."""
    found = messages(split(stream, cuts))
    assert found == messages(read(Connection(ConnectionType.SERVER), stream))[: len(found)]


@pytest.mark.parametrize("size", [20, 125, 126, 1_000, 0xFFFF])
def test_short_messages_pass_wsproto_by(size: int) -> None:
    """A short message in one frame is read at once, also among pings; one that arrives in pieces is left to wsproto."""
    client = Connection(ConnectionType.CLIENT)
    ping, text = client.send(Ping(b"there?")), client.send(TextMessage("a" * size))
    splitter = Splitter(MOST)
    assert splitter.feed(ping + text + ping + text) == [(ping, False), (b"a" * size, True)] * 2
    assert splitter.feed(text[:9]) + splitter.feed(text[9:]) == [(text[:9], False), (text[9:], False)]
    assert splitter.feed(text) == [(b"a" * size, True)]


def test_long_messages_are_left_to_wsproto() -> None:
    """A message of more bytes than a head with two bytes can say, or than there may be, is left to wsproto."""
    client = Connection(ConnectionType.CLIENT)
    long, text = client.send(TextMessage("a" * 0x10000)), client.send(TextMessage("a" * 100))
    assert Splitter(MOST).feed(long) == [(long, False)]
    assert Splitter(99).feed(text) == [(text, False)]
