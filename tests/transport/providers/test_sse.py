"""Streams of server-sent events, split into the data of their events."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.transport.providers.sse import Splitter

PARTS = st.lists(
    st.sampled_from(
        [b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"event: x", b"id: 1", b"7", b"\n\n", b"data: ", b"\xff"]
    )
)


def split(*parts: bytes, most: int = 1_000) -> list[bytes]:
    """Return the data of the events of a stream that arrives in these parts."""
    splitter = Splitter(most)
    return [data for part in parts for data in splitter.feed(part)]


def as_the_standard_says(stream: bytes) -> list[bytes]:
    """Return the data of a stream's events, by the words of the standard, one line after the other."""
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    found: list[bytes] = []
    data: list[bytes] = []
    for line in lines:
        name, _, value = line.partition(b":")
        if not line and data:
            found.append(b"\n".join(data))
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return found


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b": ping\n\nevent: x\nid: 7\nretry: 1\n\ndata: a\n: ping\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"datas: a\n\n data: b\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"data: a\n\ndata: cut off\n", [b"a"]),
        (b'event: error\ndata: {"code":7}\n\ndata: a\n\n', [b'{"type":"error","error":{"code":7}}', b"a"]),
        (b"data: no\ndata: luck\nevent:error\n\n", [b'{"type":"error","error":"no\\nluck"}']),
        (b"event: error\n\ndata: a\n\n", [b'{"type":"error","error":""}', b"a"]),
        (b'data: a\n\n{"error":\r\n  7\n}\n\ndata: b\n\n', [b"a", b'{"error":\n  7\n}', b"b"]),
        (b'data: a\n{"error":7}\ndata: b\n\n', [b"a", b'{"error":7}', b"b"]),
        (b'{"error":7}\n\ndata: [DONE]\n\n', [b'{"error":7}', b"[DONE]"]),
        (b"stray words\n\ndata: a\n\nmore of them\n\n", [b"a"]),
        ("data: \N{LINE SEPARATOR}\x0b\x85\n\n".encode(), ["\N{LINE SEPARATOR}\x0b\x85".encode()]),
    ],
)
def test_streams(stream: bytes, events: list[bytes]) -> None:
    """A stream is split as the standard says, in one part and byte by byte."""
    assert split(stream) == events
    assert split(*(bytes([each]) for each in stream)) == events


@pytest.mark.parametrize(
    ("stream", "last"),
    [
        (b"data: a\n\ndata: b\n", b"b"),
        (b"data: a\r\n\r\ndata: b\r", b"b"),
        (b"data: b", b"b"),
        (b"event: error\ndata: 7", b'{"type":"error","error":7}'),
        (b'data: a\n\n{"error":\n7}', b'{"error":\n7}'),
        (b": ping\n\n", None),
        (b"", None),
    ],
)
def test_the_end(stream: bytes, last: bytes | None) -> None:
    """The last event counts without a blank line behind it, wherever the stream is cut."""
    for size in (1, 2, 5, 100):
        splitter = Splitter(1_000)
        for at in range(0, len(stream), size):
            splitter.feed(stream[at : at + size])
        assert splitter.end() == ([] if last is None else [last])
        assert splitter.streams == bool(stream)


@pytest.mark.parametrize("body", [b'{"a":\n\n1}', b"[1]\n", b"<html>\r\nBad Gateway\n", b"\xef\xbb\xbf{}"])
def test_no_stream(body: bytes) -> None:
    """A body that does not begin as a stream does comes back at its end, without a byte order mark and empty lines."""
    expected = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"").replace(b"\n\n", b"\n").rstrip()
    for size in (1, 3, 100):
        splitter = Splitter(1_000)
        assert [event for at in range(0, len(body), size) for event in splitter.feed(body[at : at + size])] == []
        assert (splitter.end(), splitter.streams) == ([expected], False)


@given(PARTS, st.lists(st.integers(0, 60), max_size=9))
def test_streams_cut_anywhere(parts: list[bytes], cuts: list[int]) -> None:
    """Wherever a stream is cut, its events are those of the standard."""
    stream = b"".join(parts)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert split(*(stream[left:right] for left, right in pairwise(edges))) == as_the_standard_says(stream)


@pytest.mark.parametrize("cut", [7, 1_000])
@pytest.mark.parametrize(
    ("stream", "before"),
    [
        (b"data: " + b"x" * 100 + b"\n\n", [b"x" * 100]),
        (b"data: a\n\ndata: " + b"x" * 101 + b"\n\ndata: b\n\n", [b"a"]),
        (b"data: a\n\n" + b"data: xxxxxxxxxx\n" * 11 + b"\ndata: b\n\n", [b"a"]),
        (b"data: a\n\n:" + b"x" * 200 + b"\ndata: b\n\n", [b"a"]),
        (b"data: a\n\ndata: " + b"x" * 200, [b"a"]),
    ],
)
def test_long_events(stream: bytes, before: list[bytes], cut: int) -> None:
    """An event or a line above the bound ends the splitting, however it arrives; the events before it count."""
    splitter = Splitter(100)
    found = [data for at in range(0, len(stream), cut) for data in splitter.feed(stream[at : at + cut])]
    assert found == before
    assert splitter.too_long == (before == [b"a"])
    assert splitter.feed(b"\n\ndata: late\n\n") == ([b"late"] if not splitter.too_long else [])
