"""The reader of answers: the same answer however its bytes are cut, and the errors of those that are none."""

import gc
import weakref
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.transport.providers.http.reader import LONGEST_HEAD, ResponseReader

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\nX: early\r\n\r\nHTTP/1.1 201 Made it\r\nOne: 1\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;note=x\r\n,\r\n6\r\n world\r\n0\r\nTrailer: late\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\nhello, world"
UNSIZED = b"HTTP/1.0 200 OK\r\n\r\nhello, world"
HEADERS = {CHUNKED: [(b"One", b"1"), (b"transfer-encoding", b"chunked")], UNSIZED: []}


def read(answer: bytes, cuts: list[int]) -> tuple[ResponseReader, bytes]:
    """Return the reader of an answer that arrives in parts, and the body."""
    reader, body = ResponseReader(), b""
    for start, end in pairwise([0, *sorted({each % len(answer) for each in cuts} - {0}), len(answer)]):
        reader.feed(answer[start:end])
        body += reader.taken()
    return reader, body


@given(cuts=st.lists(st.integers(0, 1000), max_size=20))
@pytest.mark.parametrize(
    ("answer", "reusable"), [(CHUNKED, True), (SIZED, False), (UNSIZED, False)], ids=["chunked", "sized", "unsized"]
)
def test_cuts_change_nothing(answer: bytes, reusable: bool, cuts: list[int]) -> None:  # noqa: FBT001 - a column
    """Head and body are the same wherever the network cuts them; early answers and trailers are left out."""
    reader, body = read(answer, cuts)
    assert reader.done == (answer is not UNSIZED)
    if answer is UNSIZED:
        reader.feed(b"")
    assert (reader.done, reader.failure, body) == (True, None, b"hello, world")
    assert (reader.status, reader.reason) == ((201, b"Made it") if answer is CHUNKED else (200, b"OK"))
    assert reader.headers == HEADERS.get(answer, reader.headers)
    assert reader.reusable is reusable


@given(cuts=st.lists(st.integers(0, 1000), max_size=20), more=st.binary(min_size=1, max_size=50))
def test_bytes_behind_an_answer_end_its_connection(cuts: list[int], more: bytes) -> None:
    """They do not belong to the answer, and the next request must not take them for its own."""
    reader, body = read(CHUNKED, cuts)
    reader.feed(more)
    assert (reader.done, reader.failure, body + reader.taken()) == (True, None, b"hello, world")
    assert not reader.reusable or not more.strip(b"\r\n")


@pytest.mark.parametrize("answer", [CHUNKED, SIZED], ids=["chunked", "sized"])
@given(data=st.data())
def test_an_answer_that_breaks_off(answer: bytes, data: Any) -> None:
    """The end of the connection before that of the answer is a failure, and the part of the body counts."""
    reader, body = read(answer[: data.draw(st.integers(1, len(answer) - 1))], [])
    reader.feed(b"")
    assert reader.failure is not None
    assert not reader.done
    assert not reader.reusable
    assert b"hello, world".startswith(body)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname with spaces: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nlong: " + b"x" * 2 * LONGEST_HEAD,
    ],
)
def test_an_answer_that_is_not_http(answer: bytes) -> None:
    """It has a failure at once, and its connection is not used again."""
    reader, _ = read(answer, [])
    assert reader.failure
    assert not reader.reusable


@pytest.mark.parametrize("beginning", [b"0\r\nTrailer: ", b"5;note="], ids=["trailer", "extension"])
def test_what_is_no_body_is_bounded(beginning: bytes) -> None:
    """A server cannot send for ever behind the head without a byte of the body."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + beginning)
    sent = 0
    while reader.failure is None and sent < 2 * LONGEST_HEAD:
        reader.feed(b"x" * 1000)
        sent += 1000
    assert (reader.done, reader.failure) == (False, f"headers behind the body of more than {LONGEST_HEAD} bytes")


def test_blanks_around_a_header_do_not_count() -> None:
    """Blanks behind the value of a header are no part of it."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nX-Should-Retry:  true \t \r\nContent-Length: 0\r\n\r\n")
    assert reader.headers[0] == (b"X-Should-Retry", b"true")


def test_an_answer_leaves_no_cycle() -> None:
    """The reader of a whole answer is freed at once, without the garbage collector, and its parser with it."""
    gc.disable()
    try:
        reader, _ = read(SIZED, [])
        gone = weakref.ref(reader)
        del reader
        assert gone() is None
    finally:
        gc.enable()
