"""The bounds of a client's messages, by the heads of their frames."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Ping, Pong, TextMessage

from warren.transport.gateway.websocket import AT_ONCE, LONGEST, PART, SPARE, Bounds

MOST = 70_000
SIZES = st.sampled_from([0, 1, 125, 126, 127, 1_000, 0xFFFF, 0x10000, MOST, MOST + 1, 100_000])
TEXTS = st.builds(lambda size, letter: letter * (size // len(letter.encode())), SIZES, st.sampled_from("a\u20ac"))
MESSAGES = st.one_of(
    st.lists(TEXTS, min_size=1, max_size=4).map(lambda parts: [(TextMessage, part) for part in parts]),
    st.builds(lambda size: [(BytesMessage, b"x" * size)], SIZES),
)


def passed(bounds: Bounds, data: bytes, cuts: list[int]) -> bytes:
    """Return what is passed on of bytes that arrive cut into pieces, up to a problem."""
    found, at = b"", 0
    for edge in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        while at < edge:
            taken = bounds.take(data[at:edge])
            found += data[at : at + taken]
            if bounds.problem is not None:
                return found
            if not taken and not bounds.long:
                break  # a head that has not come whole
            at, bounds.long = at + taken + bounds.long, 0
    return found


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(0, 300_000), max_size=9))
@example([[(TextMessage, "x" * 100_000)], [(TextMessage, "y")]], [*range(40)])
def test_the_first_frame_that_is_too_much(messages: list[list[tuple[Any, str | bytes]]], cuts: list[int]) -> None:
    """Wherever a stream is cut, all before it is passed on, but for texts that are too long in one frame."""
    client, stream, expected = Connection(ConnectionType.CLIENT), b"", b""
    problem = None
    for parts in messages:
        size = 0
        for number, (kind, part) in enumerate(parts):
            last = number == len(parts) - 1
            size += len(part.encode() if isinstance(part, str) else part)
            ping, frame = client.send(Ping(b"there?")), client.send(kind(part, message_finished=last))
            stream += ping + frame
            if problem is None:
                expected += ping
                if size <= MOST:
                    expected += frame
                elif kind is not TextMessage or len(parts) > 1:
                    problem = f"the message has more than {MOST} bytes"
    bounds = Bounds(MOST)
    assert (passed(bounds, stream, cuts), bounds.problem) == (expected, problem)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_any_bytes(stream: bytes, cuts: list[int]) -> None:
    """Bytes that are no frames are passed on in their order: it is not for the bounds to judge them."""
    assert stream.startswith(passed(Bounds(MOST), stream, cuts))


def test_frames_are_passed_on_a_few_at_once() -> None:
    """Sixty-four KiB of empty frames are not handled in one go, and what is left follows."""
    empty = Connection(ConnectionType.CLIENT).send(Pong())
    bounds = Bounds(MOST)
    assert bounds.take(empty * 10_000) == AT_ONCE * len(empty)
    assert bounds.take(empty * 10) == 10 * len(empty)


@pytest.mark.parametrize("dribbled", [False, True])
def test_the_parts_of_a_message_are_bounded(*, dribbled: bool) -> None:
    """A message may come in many parts, frames or pieces of one, but not in any number of them."""
    client, bounds = Connection(ConnectionType.CLIENT), Bounds(MOST)
    most = SPARE + MOST // PART
    whole = client.send(TextMessage("x" * MOST if dribbled else "", message_finished=False))
    parts = [whole[:LONGEST], *(bytes([byte]) for byte in whole[LONGEST:-1])] if dribbled else [whole] * MOST
    passed_on = 0
    while bounds.problem is None:
        bounds.take(parts[passed_on])
        passed_on += 1
    assert abs(passed_on - most) < 20
    assert bounds.problem == f"the message comes in more than {most} parts"


def test_a_finished_message_makes_room() -> None:
    """Any number of messages may follow each other, whatever each of them has."""
    client, bounds = Connection(ConnectionType.CLIENT), Bounds(1_000)
    for _ in range(2 * SPARE):
        for event in (TextMessage("x" * 999, message_finished=False), TextMessage("x")):
            data = client.send(event)
            assert bounds.take(data) == len(data)
    assert bounds.problem is None
