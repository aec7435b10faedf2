"""The JSON schemas of parameters and results against what the codec takes and shows."""

import json
from datetime import UTC, datetime
from typing import Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support.fake_service import ENTRY
from warren.base.errors import InvalidParamsError
from warren.calls.reading import SearchRequest
from warren.calls.sessions import ListRequest
from warren.conversation import codec, events
from warren.conversation.events import Envelope, RunFailed, TextDelta, TurnCompleted, UnknownEvent
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)
from warren.conversation.options import SessionRequest, TurnRequest
from warren.conversation.usage import Usage
from warren.conversation.views import HistoryEntry, HistoryPage, TurnResult
from warren.transport.rpc.methods import METHODS, Method
from warren.transport.rpc.schemas import Schemas

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def document(cls: type, *, strict: bool) -> dict[str, Any]:
    """Return the schema of a class with everything that it refers to."""
    schemas = Schemas(strict=strict)
    return schemas.of_class(cls) | {"$defs": schemas.definitions}


def fits_schema(cls: type, data: object, *, strict: bool) -> bool:
    """Tell whether data keeps to the schema of a class."""
    return bool(jsonschema.Draft202012Validator(document(cls, strict=strict)).is_valid(data))


def taken(cls: type, data: object) -> bool:
    """Tell whether the codec takes data from outside."""
    try:
        codec.from_data(cls, data)
    except InvalidParamsError:
        return False
    return True


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_has_valid_schemas(method: Method[Any, Any]) -> None:
    """Parameters and result of each method can be described."""
    for cls, strict in ((method.params, True), (method.result, False)):
        jsonschema.Draft202012Validator.check_schema(document(cls, strict=strict))


@pytest.mark.parametrize(
    ("cls", "data", "good"),
    [
        (SessionRequest, {"prompt": None}, True),
        (SessionRequest, {"prompt": "x", "budget": {"max_steps": 3}, "labels": {"a": "b"}, "tools": ["t"]}, True),
        (SessionRequest, {"prompt": "x", "budget": None, "max_tokens": 1}, True),
        (SessionRequest, {}, False),
        (SessionRequest, {"prompt": 1}, False),
        (SessionRequest, {"prompt": "x", "colour": "red"}, False),
        (SessionRequest, {"prompt": "x", "max_tokens": 0}, False),
        (SessionRequest, {"prompt": "x", "max_tokens": 2**63}, False),
        (SessionRequest, {"prompt": "x", "labels": {"a": 1}}, False),
        (SessionRequest, {"prompt": "x", "budget": {"max_seconds": -0.5}}, False),
        (SessionRequest, {"prompt": "x", "budget": {"colour": 1}}, False),
        (SessionRequest, {"prompt": "x", "compaction": {"recent_turn_budget": -1}}, False),
        (SessionRequest, {"prompt": "x", "tools": "t"}, False),
        (TurnRequest, {"session_id": "s", "prompt": None}, False),
        (ListRequest, {}, True),
        (ListRequest, {"limit": 1000, "include_archived": True}, True),
        (ListRequest, {"limit": 1001}, False),
        (ListRequest, {"limit": 0}, False),
        (ListRequest, {"include_archived": 1}, False),
        (SearchRequest, {"query": "x", "scope": "project", "limit": 20}, True),
        (SearchRequest, {"query": "x", "scope": "planet"}, False),
        (SearchRequest, {"query": "x", "limit": 21}, False),
    ],
)
def test_a_schema_takes_what_the_codec_takes(cls: type, data: object, good: bool) -> None:  # noqa: FBT001 - a table
    """A client that keeps to the schema is not refused, and one that does not is."""
    assert (fits_schema(cls, data, strict=True), taken(cls, data)) == (good, good)


HISTORY: tuple[Message, ...] = (
    SystemMessage("be brief"),
    UserMessage("hi"),
    AssistantMessage(
        (
            ReasoningBlock("hm", {"signature": "s"}),
            TextBlock("so"),
            ToolUseBlock("c1", "add", {"left": 1}),
            ToolUseBlock("c2", "add", invalid_args="{"),
            UnknownBlock("picture", {"data": "…"}),
        ),
        "tool_use",
    ),
    ToolResultsMessage((ToolResult("c1", "2"), ToolResult("c2", "no", is_error=True))),
)


@pytest.mark.parametrize(
    "value",
    [
        TurnResult("s1"),
        TurnResult("s1", "hi", 1, 2, Usage(1, 2, estimated=True), "end_turn", {"any": ["thing", None]}),
        HistoryPage("s1", tuple(HistoryEntry(at, NOW, it) for at, it in enumerate(HISTORY)), 0, 4, (ENTRY,)),
        Envelope("s1", 3, NOW, TextDelta("x"), first_seq=2),
        Envelope("s1", 3, NOW, TurnCompleted("end_turn", Usage())),
        Envelope("s1", 3, NOW, RunFailed("s1", "no", "cancelled")),
        Envelope("s1", 3, NOW, UnknownEvent("new", {"a": 1})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_shown_keeps_to_its_schema(value: object) -> None:
    """Whatever clients get is described: kinds that newer versions bring included."""
    data = json.loads(codec.encode(value))
    assert fits_schema(type(value), data, strict=False)


def test_what_is_promised_cannot_be_missing() -> None:
    """A result without a field that is always there, or with one of the wrong type, does not pass."""
    data = json.loads(codec.encode(TurnResult("s1")))
    for name in data:
        assert not fits_schema(TurnResult, {key: it for key, it in data.items() if key != name}, strict=False)
        assert not fits_schema(TurnResult, data | {name: ["wrong"]}, strict=False)


def test_every_event_is_described_under_its_tag() -> None:
    """The log's schema names each kind of event that there is."""
    schemas = Schemas(strict=False)
    schemas.of(Envelope)
    tags = {schema["properties"].get("type", {}).get("const") for schema in schemas.definitions.values()}
    assert set(codec.EVENT_TYPES) <= tags
    assert len(codec.EVENT_TYPES) == len(get_args(events.Event)) - 1


def test_a_type_without_a_schema_is_a_mistake_of_ours() -> None:
    """Nobody can add a field whose type clients could not be told."""
    with pytest.raises(TypeError, match="has no schema"):
        Schemas(strict=True).of(complex)
