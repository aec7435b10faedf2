"""The updates that a client gets of each event and of each earlier message."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.envelopes import envelope, resumed_turn
from warren.base.errors import AgentError, BudgetExhaustedError, ErrorCode, StoreError, WarrenError
from warren.conversation.events import (
    BudgetWarning,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    Event,
    InputTaken,
    ModelSwitched,
    ReasoningDelta,
    Retrying,
    RunCompleted,
    RunStarted,
    TextComplete,
    TextDelta,
    ToolCallRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolExecutionTimedOut,
    ToolResultReceived,
    TurnCompleted,
    TurnResumed,
    TurnStarted,
    UnknownEvent,
)
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    ReasoningBlock,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)
from warren.conversation.usage import Usage
from warren.transport.acp.updates import (
    Narrator,
    replayed,
    session_info,
    stop_reason,
    stop_reason_of,
)


def told(*events: Event, window: int | None = 1000) -> list[Any]:
    """Return what a client is told of some events."""
    narrator = Narrator(window)
    return [update for seq, event in enumerate(events, 1) for update in narrator.updates(envelope(seq, event))]


def texts(updates: list[Any]) -> list[str]:
    """Return the text of each chunk."""
    return [update["content"]["text"] for update in updates]


def test_text_and_thoughts_come_as_they_are() -> None:
    """Each delta is a chunk of its kind, and the whole text is not said again."""
    updates = told(TurnStarted(0), ReasoningDelta("hm"), TextDelta("a "), TextDelta("b"), TextComplete("a b"))
    assert [update["sessionUpdate"] for update in updates] == [
        "agent_thought_chunk",
        "agent_message_chunk",
        "agent_message_chunk",
    ]
    assert texts(updates) == ["hm", "a ", "b"]


def test_text_that_no_delta_brought_is_not_lost() -> None:
    """A model that does not stream, and a retried call whose end was not streamed, are heard to the end."""
    assert texts(told(TurnStarted(0), TextComplete("whole"))) == ["whole"]
    assert texts(told(TurnStarted(0), TextDelta("a "), TextComplete("a b c"))) == ["a ", "b c"]
    assert texts(told(TurnStarted(0), TextDelta("x y"), TextComplete("a b"))) == ["x y", "\n\na b"]


def test_each_step_has_a_text_of_its_own() -> None:
    """The text of one step does not stand for the beginning of the next one's text."""
    assert texts(told(TurnStarted(0), TextDelta("a"), TextComplete("a"), TurnStarted(1), TextComplete("ab")))[1] == "ab"


def test_a_tool_call_goes_from_pending_to_its_end() -> None:
    """The client sees it asked for, begun and ended, with arguments and result."""
    updates = told(
        ToolCallRequested("c1", "look", {"at": "it"}),
        ToolExecutionStarted("c1", "look"),
        ToolExecutionCompleted("c1", "look", "seen", is_error=False, duration_ms=3),
        ToolResultReceived("c1", "look", is_error=False),
    )
    assert [update["status"] for update in updates] == ["pending", "in_progress", "completed"]
    assert {update["toolCallId"] for update in updates} == {"c1"}
    assert updates[0]["rawInput"] == {"at": "it"}
    assert updates[2]["content"] == [{"type": "content", "content": {"type": "text", "text": "seen"}}]


def test_a_tool_that_fails_or_never_ran_ends_as_failed() -> None:
    """Errors, time limits and refusals each end the call once."""
    updates = told(
        ToolCallRequested("c1", "look", {}),
        ToolCallRequested("c2", "nothing", {}),
        ToolResultReceived("c2", "nothing", is_error=True, result="there is no such tool"),
        ToolExecutionStarted("c1", "look"),
        ToolExecutionTimedOut("c1", "look", 10),
        ToolExecutionCompleted("c1", "look", "timed out", is_error=True, duration_ms=10),
        ToolResultReceived("c1", "look", is_error=True),
    )
    assert [(update["toolCallId"], update["status"]) for update in updates[2:]] == [
        ("c2", "failed"),
        ("c1", "in_progress"),
        ("c1", "failed"),
    ]
    contents = [update["content"][0]["content"]["text"] for update in (updates[2], updates[4])]
    assert contents == ["there is no such tool", "timed out"]


def test_an_id_that_the_model_uses_again_is_a_call_again() -> None:
    """A refused call of a later step ends, though the id has ended before."""
    ran = ToolExecutionCompleted("c1", "look", "seen", is_error=False, duration_ms=3)
    refused = ToolResultReceived("c1", "look", is_error=True)
    updates = told(TurnStarted(0), ran, TurnStarted(1), refused)
    assert [update["status"] for update in updates] == ["completed", "failed"]


def test_an_answer_that_another_model_begins_anew() -> None:
    """Clients cannot take text back, so they are told that it does not count."""
    switched = ModelSwitched("a", "b", "busy", discarded=True)
    updates = told(TurnStarted(0), TextDelta("half"), switched, TextDelta("whole"), TextComplete("whole"))
    texts = [update["content"]["text"] for update in updates]
    assert texts == ["half", "\n\na: busy; b answers, from the beginning\n\n", "whole"]


def test_a_step_that_was_not_kept_is_taken_back() -> None:
    """Clients cannot take text back: they are told that it does not count, and a call that is gone has failed."""
    narrator = Narrator(None)
    shown: list[Any] = [update for each in resumed_turn() for update in narrator.updates(each)]
    assert [each.get("toolCallId") or each["content"]["text"] for each in shown] == [
        *("let me see", "c1", "c1", "c1", "half", "half", "c2"),
        "\n\nthe turn goes on after an interruption (1); text of an unfinished step no longer counts\n\n",
        *("c2", "c1", "whole"),
    ]
    statuses = [(each["toolCallId"], each["status"]) for each in shown if "status" in each]
    assert statuses[-3:] == [("c2", "pending"), ("c2", "failed"), ("c1", "failed")]


def test_a_turn_that_goes_on_from_all_that_was_shown_says_nothing() -> None:
    """There is nothing to take back; a kept call is not asked for again."""
    done = ToolExecutionCompleted("c1", "look", "seen", is_error=False, duration_ms=3)
    shown = told(
        TurnStarted(0), TextComplete("let me see"), ToolCallRequested("c1", "look", {}), TurnResumed(1, 3), done
    )
    assert [each["sessionUpdate"] for each in shown] == ["agent_message_chunk", "tool_call", "tool_call_update"]


def test_how_full_the_context_is() -> None:
    """Each step tells it; where nobody knows the window, nobody guesses one."""
    ended = TurnCompleted("end_turn", Usage(30, 12))
    assert told(ended) == [{"sessionUpdate": "usage_update", "used": 42, "size": 1000}]
    assert told(ended, window=20)[0]["size"] == 42
    assert told(ended, window=None) == []


@pytest.mark.parametrize(
    "event",
    [
        RunStarted("s1", "hello"),
        RunCompleted("s1", "done", Usage()),
        Retrying(2, 3, "again", 10),
        ModelSwitched("a", "b", "busy"),
        BudgetWarning("tokens", 8, 10, 80.0),
        CompactionStarted(10, 10, 4),
        CompactionCompleted(3, 8, 4),
        CompactionFailed("no", "empty_summary"),
        UnknownEvent("of_tomorrow", {}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_no_conversation_is_not_shown(event: Event) -> None:
    """Compaction, retries and warnings leave no trace in the client's conversation."""
    assert told(event) == []


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        (SystemMessage("be nice"), []),
        (UserMessage("hello"), ["user_message_chunk"]),
        (
            AssistantMessage((ReasoningBlock("hm"), TextBlock("hi"), ToolUseBlock("c1", "look"))),
            ["agent_thought_chunk", "agent_message_chunk", "tool_call"],
        ),
        (AssistantMessage((ReasoningBlock("", {"signature": "x"}), TextBlock(""), UnknownBlock("new", {}))), []),
        (
            ToolResultsMessage((ToolResult("c1", "seen"), ToolResult("c2", "no", is_error=True))),
            ["tool_call_update"] * 2,
        ),
    ],
)
def test_the_past_is_told_as_it_was(message: Message, kinds: list[str]) -> None:
    """Every part of a message that a person would have seen comes again; the system prompt and hidden parts do not."""
    updates: list[Any] = list(replayed(message))
    assert [update["sessionUpdate"] for update in updates] == kinds


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("content_filter", "refusal"),
        ("cancelled", "cancelled"),
        (None, "end_turn"),
    ],
)
def test_an_answer_ends_for_a_reason_of_the_protocol(reason: StopReason | None, shown: str) -> None:
    """Each of the model's reasons is one of the five."""
    assert stop_reason(reason) == shown


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AgentError("x", cause="cancelled"), "cancelled"),
        (AgentError("x", cause="crash"), None),
        (BudgetExhaustedError("x", details={"budget_type": "tokens"}), "max_tokens"),
        (BudgetExhaustedError("x", details={"budget_type": "steps"}), "max_turn_requests"),
        (BudgetExhaustedError("x", details={"budget_type": "time"}), "max_turn_requests"),
        (StoreError("x"), None),
    ],
)
def test_only_what_is_no_error_becomes_a_stop_reason(error: WarrenError, shown: str | None) -> None:
    """It agrees with the table of errors: a stop reason is what has no number there."""
    assert stop_reason_of(error) == shown
    assert (error.numbers.acp is None) == (shown is not None)
    assert error.code is not ErrorCode.SESSION_NOT_RUNNING


def test_a_session_without_a_title_has_no_name() -> None:
    """Nothing stands for the title of a session in which nothing was said yet."""
    assert session_info(None, datetime(2026, 1, 2, tzinfo=UTC)).keys() == {"sessionUpdate", "updatedAt"}


@pytest.mark.parametrize("kind", ["steer", "peer", "context"])
def test_what_enters_a_running_turn_is_seen(kind: Any) -> None:
    """It is told as it will be when the session is loaded."""
    (update,) = told(InputTaken("i1", kind, "hurry up"))
    assert update == next(iter(replayed(ContextMessage("hurry up"))))


@pytest.mark.parametrize(
    ("name", "kind"), [("read_file", "read"), ("edit_file", "edit"), ("shell", "execute"), ("their_own", "other")]
)
def test_the_tools_of_the_runtime_have_their_kinds(name: str, kind: str) -> None:
    """Clients show a file that is read otherwise than a command."""
    (update,) = told(ToolCallRequested("c1", name, {}))
    assert update["kind"] == kind
