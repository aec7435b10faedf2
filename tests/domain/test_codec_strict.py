"""The boundary: exact types, no unknown keys, and an error that names the place."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain import strategies
from warren.base.errors import InvalidParamsError
from warren.base.fields import LARGEST
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.messages import Block, Message, ToolUseBlock
from warren.conversation.usage import Usage
from warren.settings.config import Config


@attrs.frozen
class Request:
    """Every kind of field that a request has."""

    prompt: str | None
    flag: bool = False
    count: int = 0
    seconds: float = 0.0
    when: datetime | None = None
    folder: Path | None = None
    mode: Literal["fast", "slow"] = "fast"
    budget: Budget | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    names: tuple[str, ...] = ()
    words: Sequence[str] = ()
    items: list[Usage] = attrs.field(factory=list)
    nested: Mapping[str, tuple[Usage, ...]] = attrs.field(factory=dict)
    anything: Any = None


# What is sent, the path that is named, what is said of it.
BAD: Final[list[tuple[Any, str, str]]] = [
    ({}, "$.prompt", "is required"),
    (None, "$", "must be an object"),
    ([], "$", "must be an object"),
    ("prompt", "$", "must be an object"),
    ({"prompt": 5}, "$.prompt", "must be a string"),
    ({"prompt": ["a"]}, "$.prompt", "must be a string"),
    ({"prompt": {}}, "$.prompt", "must be a string"),
    ({"prompt": True}, "$.prompt", "must be a string"),
    ({"prompt": "\ud800"}, "$.prompt", "has a lone surrogate, which UTF-8 cannot hold"),
    ({"flag": "false"}, "$.flag", "must be true or false"),
    ({"flag": 0}, "$.flag", "must be true or false"),
    ({"flag": None}, "$.flag", "must be true or false"),
    ({"count": "12"}, "$.count", "must be an integer"),
    ({"count": 1.5}, "$.count", "must be an integer"),
    ({"count": 1.0}, "$.count", "must be an integer"),
    ({"count": True}, "$.count", "must be an integer"),
    ({"count": None}, "$.count", "must be an integer"),
    ({"seconds": "1"}, "$.seconds", "must be a number"),
    ({"seconds": False}, "$.seconds", "must be a number"),
    ({"when": 5}, "$.when", "must be a string"),
    ({"when": "yesterday"}, "$.when", "must be an RFC 3339 time"),
    ({"when": "2024-05-17T09:30:00"}, "$.when", "must have a time zone"),
    ({"folder": 5}, "$.folder", "must be a string"),
    ({"mode": "medium"}, "$.mode", "must be one of fast, slow"),
    ({"mode": ["fast"]}, "$.mode", "must be one of fast, slow"),
    ({"budget": 5}, "$.budget", "must be an object"),
    ({"budget": {"max_tokens": 0}}, "$.budget.max_tokens", "must be above 0"),
    ({"budget": {"max_tokens": "12"}}, "$.budget.max_tokens", "must be an integer"),
    ({"budget": {"max_tokens": True}}, "$.budget.max_tokens", "must be an integer"),
    ({"budget": {"max_tokens": 10**30}}, "$.budget.max_tokens", f"must be at most {LARGEST}"),
    ({"budget": {"max_seconds": 10**400}}, "$.budget.max_seconds", f"must be at most {LARGEST}"),
    ({"budget": {"max_token": 5}}, "$.budget.max_token", "is not a known field"),
    ({"labels": []}, "$.labels", "must be an object"),
    ({"labels": {"x": 5}}, "$.labels.x", "must be a string"),
    ({"labels": {"ok": "a", "7": None}}, "$.labels.7", "must be a string"),
    ({"names": "abc"}, "$.names", "must be a list"),
    ({"names": {"a": "b"}}, "$.names", "must be a list"),
    ({"names": None}, "$.names", "must be a list"),
    ({"names": ["a", 5]}, "$.names[1]", "must be a string"),
    ({"words": "abc"}, "$.words", "must be a list"),
    ({"items": "abc"}, "$.items", "must be a list"),
    ({"items": [{}, {}, {"input_tokens": "3"}]}, "$.items[2].input_tokens", "must be an integer"),
    ({"items": [[]]}, "$.items[0]", "must be an object"),
    ({"nested": {"a b": [{"output_tokens": 1.5}]}}, "$.nested.a b[0].output_tokens", "must be an integer"),
    ({"promt": "a"}, "$.promt", "is not a known field"),
]


@pytest.mark.parametrize(("data", "path", "problem"), BAD, ids=lambda value: repr(value)[:60])
def test_bad_input_is_named(data: Any, path: str, problem: str) -> None:
    """Each kind of bad input gives the path of the field and what is wrong with it."""
    complete = {"prompt": None, **data} if isinstance(data, dict) and data else data
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(Request, complete)
    assert (caught.value.path, str(caught.value)) == (path, f"{path}: {problem}")
    assert caught.value.body()["details"] == {"path": path}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"role": "assistant", "blocks": [{"type": "text", "text": 1}]}, "$.blocks[0].text"),
        ({"role": "assistant", "blocks": [{"type": "text", "text": ""}, {"type": "text"}]}, "$.blocks[1].text"),
        ({"role": "assistant", "blocks": [{"text": "untagged"}]}, "$.blocks[0]"),
        ({"role": "assistant", "blocks": [5]}, "$.blocks[0]"),
        ({"role": "assistant", "blocks": {}}, "$.blocks"),
        ({"role": "assistant", "blocks": [], "stop_reason": "bored"}, "$.stop_reason"),
        ({"role": "tool_results", "results": [{"tool_use_id": "1", "content": None}]}, "$.results[0].content"),
        ({"role": "robot", "content": "x"}, "$"),
        ({"role": ["user"], "content": "x"}, "$"),
        ({"content": "x"}, "$"),
        ("user", "$"),
    ],
)
def test_a_bad_message_is_named(data: Any, path: str) -> None:
    """Inside a union the path goes on through index and field."""
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(Message, data)  # type: ignore[arg-type] # a union is no class to mypy
    assert caught.value.path == path


def test_the_root_of_the_path_is_the_callers() -> None:
    """A surface that takes a field out of a request names it as its user wrote it."""
    with pytest.raises(InvalidParamsError, match=r"^\$\.prompt: must be a string$"):
        codec.from_data(str, 5, root="$.prompt")


def test_what_is_accepted() -> None:
    """Null for what may be absent, an integer for a number, any offset of a time, any data where it says so."""
    data = {
        "prompt": None,
        "seconds": 2,
        "when": "2024-05-17T09:30:00+02:00",
        "folder": "/tmp/x",  # noqa: S108
        "budget": None,
        "items": [{"input_tokens": 3}],
        "words": ["a"],
        "anything": [{"a": None}],
    }
    request = codec.from_data(Request, data)
    assert (request.seconds, request.folder, request.budget) == (2, Path("/tmp/x"), None)  # noqa: S108
    assert request.when is not None
    assert request.when.isoformat() == "2024-05-17T09:30:00+02:00"
    assert (request.items, request.words, request.anything) == ([Usage(3)], ("a",), [{"a": None}])


@given(st.sampled_from([Request, Budget, Config, *strategies.domain_classes()]), strategies.json_values)
def test_no_input_crashes(kind: type, data: Any) -> None:
    """Whatever JSON is sent, there is an object or an InvalidParamsError with a path; nothing else is raised."""
    path = path_of_the_error(kind, data)
    assert path is None or path.startswith("$")


def path_of_the_error(kind: Any, data: Any) -> str | None:
    """Return the path that is named, or None where the data was accepted as the right kind."""
    try:
        value = codec.from_data(kind, data)
    except InvalidParamsError as error:
        return error.path
    assert isinstance(value, kind)
    return None


@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"",
            b"{",
            b"{'a':1}",
            b"nul",
            b"NaN",
            b"[1,]",
            b"{} {}",
            b'"\xff"',
            b'"\\ud800"',
            b'{"\\udc00":1}',
            b"1e999",
        ),
        '"\ud800"',
        b"\xef\xbb\xbf{}",
        b"9" * 5000,
    ],
)
def test_what_is_not_json(raw: bytes | str) -> None:
    """Broken, truncated, badly encoded and unholdable JSON is a ValueError with a reason."""
    with pytest.raises(ValueError, match=r"\w"):
        codec.parse(raw)


def test_huge_integers_are_exact() -> None:
    """An integer that no machine word holds does not become a float on its way through."""
    huge = 2**200 + 1
    assert codec.parse(str(huge)) == huge
    call = ToolUseBlock("1", "f", {"n": huge})
    assert codec.decode_stored(Block, codec.encode(call)) == call


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """Return JSON of so many containers inside each other."""
    return opening * depth + ("1" if opening != "[" else "") + closing * depth


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_depth_is_limited(brackets: tuple[str, str]) -> None:
    """Data that nests too deeply is refused at the door, by a limit that does not hang on the stack of the moment."""
    assert codec.parse(nested(codec.MAX_DEPTH, *brackets))
    for depth in (codec.MAX_DEPTH + 1, 400, 5_000, 200_000):
        for raw in (nested(depth, *brackets), nested(depth, *brackets).encode()):
            with pytest.raises(ValueError, match=f"nests deeper than {codec.MAX_DEPTH} levels"):
                codec.parse(raw)


def test_what_was_read_can_be_written() -> None:
    """The deepest data that is let in fits on the stack when it is written, also from a deep call."""
    args = codec.parse(nested(codec.MAX_DEPTH, '{"a":', "}"))
    call = ToolUseBlock("1", "f", args)

    def deeper(frames: int) -> bytes:
        return codec.encode(call) if frames == 0 else deeper(frames - 1)

    assert codec.decode_stored(Block, deeper(sys.getrecursionlimit() // 3)) == call


def test_brackets_in_text_are_no_depth() -> None:
    """A long text of brackets, and many shallow containers, are not deep."""
    assert codec.parse(codec.encode("[" * 1_000)) == "[" * 1_000
    assert codec.parse(codec.encode([[]] * 1_000)) == [[]] * 1_000


def test_keys_that_read_alike() -> None:
    """A program may pass keys that are no text: the bad value is found beside a good one whose key reads the same."""
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(Request, {"prompt": None, "labels": {1: 5, "1": "five"}})
    assert caught.value.path == "$.labels.1"
    assert "must be a string" in caught.value.message
