"""Foreign JSON read, and our ids and names written, in forms that every provider takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.base.errors import ProviderError
from warren.transport.providers import wire

HIGH, LOW = r"\ud83d", r"\ude00"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (HIGH + LOW, "\N{GRINNING FACE}"),
        (HIGH, "\ufffd"),
        (LOW, "\ufffd"),
        (LOW + HIGH, "\ufffd\ufffd"),
        (HIGH + HIGH + LOW, "\ufffd\N{GRINNING FACE}"),
        (r"a\n" + HIGH + "b", "a\n\ufffdb"),
        ("\\" + HIGH + HIGH, "\\ud83d\ufffd"),
        (r"\uD83D\uDE00\uDBFF", "\N{GRINNING FACE}\ufffd"),
    ],
)
def test_surrogates(raw: str, text: str) -> None:
    """A pair of surrogate escapes is one character; a lone one, which UTF-8 cannot hold, becomes U+FFFD."""
    assert wire.parse(f'"{raw}"') == text


@given(st.lists(st.sampled_from([HIGH, LOW, r"\\", r"\n", "u", "d83d", "x"])))
def test_no_surrogate_comes_through(parts: list[str]) -> None:
    """Whatever a JSON string is made of, its value can be written as UTF-8."""
    wire.parse(f'"{"".join(parts)}"').encode()


@pytest.mark.parametrize("raw", ["", "{", "nonsense", "[1,]", "NaN", '"' + "\\ud83d"])
def test_what_is_not_json(raw: str) -> None:
    """A text that is not JSON is refused, with and without surrogates in it."""
    with pytest.raises(ValueError, match=r"malformed|truncated"):
        wire.parse(raw)


def test_what_is_not_utf8() -> None:
    """Bytes that are no character become U+FFFD, beside characters and escapes that are whole."""
    assert wire.parse(b'["a\xff\xc3\xa4\\ud83d"]') == ["a\ufffdä\ufffd"]
    assert wire.parse_object(b'{"a": "\xe2\x82"}') == {"a": "\ufffd"}


@pytest.mark.parametrize("raw", [b"oops", b"[]", b'"text"', b"null", b"\xff"])
def test_not_an_object(raw: bytes) -> None:
    """An event that is not a JSON object is a bad response."""
    with pytest.raises(ProviderError) as caught:
        wire.parse_object(raw)
    assert caught.value.cause == "bad_response"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"image": 1}, 3], ""),
        (None, ""),
        (7, ""),
        ({"text": "a"}, ""),
    ],
)
def test_as_text(value: object, text: str) -> None:
    """Text comes as a string or as a list of parts; anything else is none."""
    assert wire.as_text(value) == text


@pytest.mark.parametrize(("value", "count"), [(0, 0), (7, 7), (-1, None), (True, None), (1.0, None), ("7", None)])
def test_as_count(value: object, count: int | None) -> None:
    """A number of tokens is a whole number that is not negative."""
    assert wire.as_count(value) == count


@given(st.text(max_size=80))
def test_call_ids_fit(own: str) -> None:
    """Any call id becomes one of at most 40 letters, digits, dashes and underscores, always the same one."""
    fitting = wire.call_id(own)
    assert 0 < len(fitting) <= 40
    assert fitting.isascii()
    assert fitting.replace("-", "").replace("_", "").isalnum()
    assert fitting == wire.call_id(own)


def test_call_ids_stay_apart() -> None:
    """Ids that fit are kept; others do not collide."""
    assert wire.call_id("toolu_01-x") == "toolu_01-x"
    assert wire.call_id("functions.f:0") != wire.call_id("functions.f:1")
