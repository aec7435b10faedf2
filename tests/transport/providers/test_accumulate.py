"""Tool calls put together from fragments, and tokens counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.conversation import codec
from warren.conversation.messages import Block, ReasoningBlock, TextBlock, ToolUseBlock, UnknownBlock
from warren.conversation.usage import Usage
from warren.transport.providers.accumulate import Counts, Ids, ToolCalls, parse_arguments

Fragment = tuple[object, str, str, str]
AB = '{"a": 1}', '{"b": 2}'


def built(*fragments: Fragment) -> list[tuple[str, str, dict[str, Any], str | None]]:
    """Return id, name, arguments and invalid arguments of the calls that fragments make."""
    calls = ToolCalls()
    for fragment in fragments:
        calls.add(*fragment)
    blocks = list(calls.blocks(Ids(())))
    ids = ["" if block.id.startswith("call_") else block.id for block in blocks]
    return [(own, each.name, dict(each.args), each.invalid_args) for own, each in zip(ids, blocks, strict=True)]


CASES: dict[str, tuple[list[Fragment], list[tuple[str, str, dict[str, Any], str | None]]]] = {
    "whole": ([(0, "i", "f", AB[0])], [("i", "f", {"a": 1}, None)]),
    "fragments": ([(0, "i", "f", ""), (0, "", "", '{"a"'), (0, "", "", ": 1}")], [("i", "f", {"a": 1}, None)]),
    "name in every fragment": (
        [(0, "i", "f", ""), (0, "i", "f", '{"a": '), (0, "i", "f", "1}")],
        [("i", "f", {"a": 1}, None)],
    ),
    "name in every fragment, id in the first": (
        [(0, "i", "f", '{"a": {'), (0, "", "f", "}"), (0, "", "f", "}")],
        [("i", "f", {"a": {}}, None)],
    ),
    "id new in every fragment": (
        [(0, "i", "f", ""), (0, "j", "f", '{"a": '), (0, "k", "f", "1}")],
        [("i", "f", {"a": 1}, None)],
    ),
    "name in parts": ([(0, "i", "get_", ""), (0, "", "weather", "{}")], [("i", "get_weather", {}, None)]),
    "name growing": ([(0, "i", "get", ""), (0, "i", "get_weather", "{}")], [("i", "get_weather", {}, None)]),
    "two by index": (
        [(0, "i", "f", ""), (1, "j", "g", AB[1]), (0, "", "", AB[0])],
        [("i", "f", {"a": 1}, None), ("j", "g", {"b": 2}, None)],
    ),
    "two with the same index": (
        [(0, "i", "f", AB[0]), (0, "j", "f", AB[1])],
        [("i", "f", {"a": 1}, None), ("j", "f", {"b": 2}, None)],
    ),
    "two without index": (
        [(None, "i", "f", '{"a"'), (None, "", "", ": 1}"), (None, "j", "g", AB[1])],
        [("i", "f", {"a": 1}, None), ("j", "g", {"b": 2}, None)],
    ),
    "two without arguments at one index": (
        [(0, "i", "f", ""), (0, "j", "g", "")],
        [("i", "f", {}, None), ("j", "g", {}, None)],
    ),
    "two without index, told apart by their ids": (
        [
            (None, "i", "f", ""),
            (None, "", "", '{"a"'),
            (None, "", "", ": 1}"),
            (None, "j", "f", ""),
            (None, "", "", "{}"),
        ],
        [("i", "f", {"a": 1}, None), ("j", "f", {}, None)],
    ),
    "two that take turns, by their ids": (
        [(0, "i", "f", ""), (0, "j", "g", ""), (0, "i", "", '{"a": '), (0, "j", "", AB[1]), (0, "i", "", "1}")],
        [("i", "f", {"a": 1}, None), ("j", "g", {"b": 2}, None)],
    ),
    "id and name in every fragment, without index": (
        [(None, "i", "f", '{"a"'), (None, "i", "f", ": 1}"), (None, "j", "f", '{"b"'), (None, "j", "f", ": 2}")],
        [("i", "f", {"a": 1}, None), ("j", "f", {"b": 2}, None)],
    ),
    "whole, without index and ids": (
        [(None, "", "f", AB[0]), (None, "", "f", AB[0]), (None, "", "g", "{}")],
        [("", "f", {"a": 1}, None), ("", "f", {"a": 1}, None), ("", "g", {}, None)],
    ),
    "two with the same id": (
        [(None, "i", "f", AB[0]), (None, "i", "g", AB[1])],
        [("i", "f", {"a": 1}, None), ("", "g", {"b": 2}, None)],
    ),
    "a whole call again at the end": (
        [(0, "i", "f", '{"a"'), (0, "", "", ": 1}"), (0, "i", "f", '{"a": 1}')],
        [("i", "f", {"a": 1}, None)],
    ),
    "id new in every fragment, the last one empty": (
        [(0, "i", "f", ""), (0, "j", "f", '{"a": '), (0, "k", "f", "1}"), (0, "l", "f", "")],
        [("i", "f", {"a": 1}, None)],
    ),
    "first index is not 0": ([(1, "i", "f", AB[0])], [("i", "f", {"a": 1}, None)]),
    "malformed": ([(0, "i", "f", '{"a": ')], [("i", "f", {}, '{"a": ')]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", CASES)
def test_fragments(name: str) -> None:
    """Fragments become the calls that the model made, in the ways in which servers are known to send them."""
    fragments, calls = CASES[name]
    assert built(*fragments) == calls


json_objects = st.dictionaries(st.text(max_size=5), st.text(max_size=8) | st.integers() | st.none(), max_size=4)


@given(st.lists(json_objects, max_size=4), st.integers(1, 9), st.booleans())
def test_any_fragments(arguments: list[dict[str, Any]], size: int, repeated: bool) -> None:  # noqa: FBT001 - drawn
    """However the arguments are cut, and with the name repeated or not, the calls are the same."""
    fragments: list[Fragment] = []
    for index, args in enumerate(arguments):
        text = codec.encode(args).decode()
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        fragments += [(index, f"id{index}" * (not at), "f" * (repeated or not at), p) for at, p in enumerate(parts)]
    assert built(*fragments) == [(f"id{index}", "f", args, None) for index, args in enumerate(arguments)]


def test_ids_are_unique() -> None:
    """Calls without an id, with one given twice, or with one of an earlier answer get ids of their own."""
    calls = ToolCalls()
    for index, call_id in enumerate(["", "twice", "twice", "known", ""]):
        calls.add(index, call_id, "f", "{}")
    ids = [block.id for block in calls.blocks(Ids({"known"}))]
    assert ids[1] == "twice"
    assert len(set(ids)) == 5
    assert not {"", "known"} & set(ids)


@pytest.mark.parametrize(
    ("raw", "args", "invalid"),
    [
        ("", {}, None),
        ("  \n", {}, None),
        ("null", {}, None),
        ("{}", {}, None),
        (' {"a": [1]} ', {"a": [1]}, None),
        (r'{"a": "\ud83d"}', {"a": "\ufffd"}, None),
        ("[1]", {}, "[1]"),
        ('"text"', {}, '"text"'),
        ('{"a": 1', {}, '{"a": 1'),
        ('{"a": 1}{"b": 2}', {}, '{"a": 1}{"b": 2}'),
        ('{"a": NaN}', {}, '{"a": NaN}'),
    ],
)
def test_arguments(raw: str, args: dict[str, Any], invalid: str | None) -> None:
    """Nothing is no arguments; what is not a JSON object is kept verbatim."""
    assert parse_arguments(raw) == (args, invalid)


BLOCKS: tuple[Block, ...] = (
    TextBlock("héllo!!"),  # 8 bytes
    ReasoningBlock("1234"),
    ToolUseBlock("i", "f", {"a": 1}),  # 1 + 7
    ToolUseBlock("j", "f", {}, "ab"),  # 1 + 2
    UnknownBlock("video", {"x": 1}),
)


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        (Counts(10, 5, 1, 2), Usage(10, 5, 1, 2)),
        (Counts(10, 0), Usage(10, 0)),
        (Counts(), Usage(100, 6, estimated=True)),
        (Counts(10, None), Usage(10, 6, estimated=True)),
        (Counts(None, 5), Usage(100, 5, estimated=True)),
        (Counts(0, 0), Usage(100, 6, estimated=True)),
    ],
)
def test_usage(counts: Counts, usage: Usage) -> None:
    """Token counts that a server does not report are estimated at four UTF-8 bytes a token, and marked."""
    assert counts.usage(400, BLOCKS) == usage


def test_many_fragments_with_the_name_in_each() -> None:
    """Arguments that look whole after every fragment are not parsed every time: that would take minutes."""
    fragments: list[Fragment] = [(0, "", "f", '{"a": "'), *[(0, "", "f", "x" * 60 + "}")] * 100_000]
    ((_, name, args, invalid),) = built(*fragments)
    assert (name, args, invalid) == ("f", {}, '{"a": "' + ("x" * 60 + "}") * 100_000)


def test_a_name_without_end() -> None:
    """The parts of a name are added up to a bound."""
    ((_, name, _, _),) = built(*[(0, "i", f"n{number}" * 10, "") for number in range(100_000)])
    assert len(name) < 1_000
