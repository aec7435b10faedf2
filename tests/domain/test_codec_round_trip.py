"""The codec reads all that it writes: from outside, from the store, from another version."""

import json
from datetime import UTC, datetime
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain import strategies
from warren.base.errors import InvalidParamsError
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.events import Envelope, Event, RunStarted, TextDelta, TurnCompleted, UnknownEvent
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)
from warren.conversation.options import SessionOptions
from warren.conversation.records import SessionRecord
from warren.conversation.usage import Usage
from warren.conversation.views import Billing, SessionState, SessionView, TurnResult

NOW: Final = datetime(2024, 5, 17, 9, 30, 0, 250_000, UTC)
NO_USAGE: Final = {"input_tokens": 0, "output_tokens": 0, "cache_creation_tokens": 0, "cache_read_tokens": 0}


def both_ways(kind: Any, value: object) -> None:
    """Assert that the value survives the boundary and the store, and that its JSON is stable."""
    raw = codec.encode(value)
    outside = codec.from_data(kind, codec.parse(raw))
    assert outside == value
    assert codec.decode_stored(kind, raw) == value
    assert codec.encode(outside) == raw


@pytest.mark.parametrize("kind", [*strategies.domain_classes(), *strategies.UNIONS], ids=str)
@given(data=st.data())
def test_round_trip(kind: Any, data: st.DataObject) -> None:
    """Every class of the domain comes back as it was, byte for byte when written again."""
    both_ways(kind, data.draw(strategies.of(kind)))


def test_the_classes_above_are_the_domain() -> None:
    """The round trip covers records, views, envelopes and budgets, not a list that has run empty."""
    assert {SessionRecord, SessionView, TurnResult, Envelope, Budget, Usage} <= set(strategies.domain_classes())


@given(strategies.json_values)
def test_plain_data_is_json(value: Any) -> None:
    """Plain data is written as any other JSON library reads it."""
    assert json.loads(codec.encode(value)) == value
    assert codec.parse(codec.encode(value)) == value


@given(strategies.of(Event))
def test_an_event_read_by_its_own_name(event: Event) -> None:
    """`decode_event` reads the rows of the log."""
    assert codec.decode_event(codec.encode(event)) == event


def test_the_names_on_the_wire() -> None:
    """The tags of events are those of the contract, all of them."""
    assert set(codec.EVENT_TYPES) == {
        *("run_started", "turn_started", "text_delta", "reasoning_delta", "text_complete", "tool_call_requested"),
        *("tool_execution_started", "tool_execution_completed", "tool_execution_timed_out", "tool_result_received"),
        *(
            "files_complete",
            "turn_completed",
            "retrying",
            "request_repaired",
            "model_switched",
            "budget_warning",
            "run_completed",
            "run_failed",
            "stream_truncated",
        ),
        *("session_moved", "turn_resumed"),
        *("compaction_started", "compaction_completed", "compaction_failed"),
        *("extraction_completed", "extraction_failed", "input_taken"),
        *("tool_approval_requested", "tool_approval_resolved"),
    }
    assert {UnknownEvent, *codec.EVENT_TYPES.values()} == set(get_args(Event))


MESSAGES: Final[list[tuple[Message, dict[str, Any]]]] = [
    (SystemMessage("be brief"), {"role": "system", "content": "be brief"}),
    (UserMessage("hi"), {"role": "user", "content": "hi"}),
    (
        AssistantMessage((TextBlock("a"), ToolUseBlock("1", "add")), "tool_use"),
        {
            "role": "assistant",
            "blocks": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1", "name": "add"}],
            "stop_reason": "tool_use",
        },
    ),
    (
        ToolResultsMessage((ToolResult("1", "3"), ToolResult("2", "no", is_error=True))),
        {
            "role": "tool_results",
            "results": [
                {"tool_use_id": "1", "content": "3"},
                {"tool_use_id": "2", "content": "no", "is_error": True},
            ],
        },
    ),
]


@pytest.mark.parametrize(("message", "data"), MESSAGES)
def test_a_message_in_json(message: Message, data: dict[str, Any]) -> None:
    """Messages are told apart by `role`, and what is at its default is left out."""
    assert codec.parse(codec.encode(message)) == data


def test_an_envelope_in_json() -> None:
    """An envelope is what the contract says; `first_seq` appears where deltas were merged."""
    single = Envelope("s", 3, NOW, RunStarted("s", "hi"))
    assert codec.parse(codec.encode(single)) == {
        "session_id": "s",
        "seq": 3,
        "timestamp": "2024-05-17T09:30:00.250000Z",
        "event": {"type": "run_started", "session_id": "s", "prompt": "hi"},
    }
    assert codec.parse(codec.encode(Envelope("s", 5, NOW, TextDelta("ab"), 4)))["first_seq"] == 4


@given(strategies.of(Envelope))
def test_an_envelope_around_the_json_of_its_event(envelope: Envelope) -> None:
    """The event is encoded once for all rows and messages, and each has the same bytes as if it were done for it."""
    event = codec.encode_event(envelope)
    assert event == codec.encode(envelope.event)
    assert codec.encode_envelope(envelope) == codec.encode(envelope)
    assert codec.encode_event(envelope) is event


def test_a_result_shows_all_its_figures() -> None:
    """A turn's result has every key of the contract, also those that are zero; `structured_output` only when set."""
    assert codec.to_data(TurnResult("s")) == {
        "session_id": "s",
        "text": "",
        "turns": 0,
        "tool_calls": 0,
        "usage": NO_USAGE,
        "stop_reason": None,
    }
    assert codec.to_data(TurnResult("s", structured_output={"a": 1}))["structured_output"] == {"a": 1}


def test_the_steps_of_a_result_are_turns_in_json() -> None:
    """In Python the field is called by what it counts; JSON keeps the name of the contract, to the code and back."""
    result = TurnResult("s", steps=3, structured_output={"a": 1})
    data = codec.parse(codec.encode(result))
    assert (data["turns"], "steps" in data) == (3, False)
    assert codec.from_data(TurnResult, data) == result == codec.decode_stored(TurnResult, codec.encode(result))


def test_a_view_shows_all_its_figures() -> None:
    """The answer to `read` has every key of the contract, also those that are zero, empty or null."""
    state = SessionState("s", NOW, NOW, 0, False, None, "live", {}, "echo")
    assert codec.to_data(SessionView(state, Billing(0, Usage()))) == {
        "state": {
            "session_id": "s",
            "created_at": NOW,
            "updated_at": NOW,
            "message_count": 0,
            "is_active": False,
            "last_assistant_text": None,
            "lifecycle": "live",
            "labels": {},
            "model": "echo",
            "compactions": 0,
            "title": None,
        },
        "billing": {"total_tokens": 0, "usage": NO_USAGE},
    }


def test_a_step_shows_its_usage() -> None:
    """Token counts are written out where they are zero; a guess is marked, a report is not."""
    step = codec.to_data(TurnCompleted("end_turn", Usage(3)))
    assert step["usage"] == NO_USAGE | {"input_tokens": 3}
    assert codec.to_data(Usage(estimated=True))["estimated"] is True


def test_a_record_leaves_out_its_defaults() -> None:
    """A fresh session's row is as small as what is known of it."""
    record = SessionRecord("s", NOW, NOW, "echo", SessionOptions(budget=Budget(max_steps=3)))
    data = codec.to_data(record)
    assert data.pop("options") == {"budget": {"max_steps": 3}}
    assert set(data) == {"session_id", "created_at", "updated_at", "model"}


@pytest.mark.parametrize(
    ("kind", "raw", "kept"),
    [
        (Event, b'{"type":"moon_phase","phase":0.25,"of":[1,{"a":null}]}', UnknownEvent),
        (Message, b'{"role":"assistant","blocks":[{"type":"image","url":"x","n":10}]}', AssistantMessage),
    ],
)
def test_an_unknown_tag_is_kept(kind: Any, raw: bytes, kept: type) -> None:
    """Data of a newer version is read, carried along and written again to the byte."""
    value = codec.decode_stored(kind, raw)
    assert isinstance(value, kept)
    assert codec.encode(value) == raw


def test_an_unknown_block_does_not_count_as_text() -> None:
    """A block of a newer version is neither text nor a tool call."""
    message = AssistantMessage((UnknownBlock("image", {"text": "no"}), TextBlock("yes")))
    assert (message.text, message.tool_calls) == ("yes", ())


def test_keys_of_a_newer_version() -> None:
    """A stored row may have keys that we do not know, at any depth; a request may not."""
    raw = b'{"role":"assistant","blocks":[{"type":"text","text":"a","mood":1}],"mood":2}'
    assert codec.decode_message(raw) == AssistantMessage((TextBlock("a"),))
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(AssistantMessage, {"blocks": [{"type": "text", "text": "a", "mood": 1}]})
    assert caught.value.path == "$.blocks[0].mood"


@given(strategies.of(Message), st.integers(0))
def test_a_torn_row_is_damaged(message: Message, where: int) -> None:
    """A row that was cut short is never read as something else."""
    raw = codec.encode(message)
    with pytest.raises(ValueError, match="damaged row"):
        codec.decode_message(raw[: where % len(raw)])


PLAIN: Final = st.builds(UserMessage, st.text()) | st.builds(
    AssistantMessage, st.lists(st.builds(TextBlock, st.text()), max_size=3).map(tuple), strategies.of(StopReason)
)


@given(PLAIN | strategies.of(Message))
def test_the_row_of_a_message_is_the_same_by_the_short_way(message: Message) -> None:
    """Texts alone are written without the general way; the bytes do not tell, except that data comes first."""
    row, with_data = codec.encode_message(message), getattr(message, "structured_output", None) is not None
    assert row.startswith(codec.WITH_DATA) == with_data
    assert with_data or row == codec.encode(message)
    assert codec.parse(row) == codec.parse(codec.encode(message))
    assert codec.decode_message(row) == message


@given(st.lists(strategies.of(Message), max_size=4), st.dictionaries(st.text(max_size=3), st.integers() | st.text()))
def test_what_is_encoded_in_pieces_is_the_same(said: list[Message], data: dict[str, Any]) -> None:
    """Whatever the shape, only the way there differs."""
    value = {"id": 1, "result": {"messages": said, "data": data, "at": NOW, "empty": []}}
    assert codec.encode_in_pieces(value) == codec.encode(value)
    assert codec.encode_in_pieces(said) == codec.encode(said)
