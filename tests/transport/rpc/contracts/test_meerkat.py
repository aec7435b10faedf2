"""Meerkat's protocol in the words of ours: events, parameters, transcripts; and which versions there are."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.envelopes import NOW, delta, envelope
from tests.support.fake_service import FakeService
from tests.transport.stdio.client import near
from warren.base.errors import InvalidParamsError
from warren.conversation import codec
from warren.conversation.categories import Switches
from warren.conversation.events import (
    BudgetWarning,
    CompactionFailed,
    Envelope,
    Event,
    InputTaken,
    RunFailed,
    RunStarted,
    StreamTruncated,
    ToolApprovalRequested,
    ToolApprovalResolved,
    ToolExecutionCompleted,
    ToolResultReceived,
    TurnResumed,
)
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
)
from warren.conversation.views import HistoryEntry, HistoryPage
from warren.models.catalog import window_of
from warren.transport.providers.settings import ANTHROPIC
from warren.transport.rpc.contracts import dialect_of
from warren.transport.rpc.contracts.meerkat.catalog import providers
from warren.transport.rpc.contracts.meerkat.dialect import MAX_STREAMS, Meerkat
from warren.transport.rpc.contracts.meerkat.events import payload_of
from warren.transport.rpc.contracts.meerkat.params import CreateParams, StartParams
from warren.transport.rpc.contracts.meerkat.results import history_result
from warren.transport.rpc.dialect import Native
from warren.transport.rpc.feeds import frame_of
from warren.transport.rpc.settings import Settings

EVENTS: list[tuple[Event, dict[str, Any]]] = [
    (RunStarted("s1", "hi"), {"prompt": "hi", "input": {"kind": "content", "content": "hi"}}),
    (
        RunFailed("s1", "no", "provider_error"),
        {
            "error": "no",
            "error_class": "llm",
            "terminal_cause_kind": "llm_failure",
            "error_report": {"class": "llm", "message": "no"},
        },
    ),
    (RunFailed("s1", "no", "cancelled"), {"error_class": "cancelled"}),
    (
        ToolExecutionCompleted("c", "t", "out", is_error=False, duration_ms=3),
        {"result": "out", "content": [{"type": "text", "text": "out"}]},
    ),
    (BudgetWarning("time", 8.4, 10.0, 84.0), {"used": 8, "limit": 10, "percent": 0.84}),
    (CompactionFailed("no", "empty_summary"), {"error": "no", "reason": {"kind": "empty_summary"}}),
    (StreamTruncated(7, 3), {"reason": {"kind": "stream_lagged", "dropped": 7}}),
]


@pytest.mark.parametrize(("event", "fields"), EVENTS)
def test_events_have_what_these_clients_want_besides(event: Event, fields: dict[str, Any]) -> None:
    """Each event has its tag, and the fields of Meerkat's wire beside or in place of ours."""
    data = payload_of(event)
    assert data is not None
    assert data.items() >= fields.items()
    assert data["type"] == codec.to_data(event)["type"]


def test_a_warning_that_these_clients_do_not_know_is_kept_back() -> None:
    """A budget of steps is ours alone: its warning would be a malformed event there."""
    assert payload_of(BudgetWarning("steps", 8, 10, 80.0)) is None
    assert Meerkat((0, 6, 0)).frames(envelope(1, BudgetWarning("steps", 8, 10, 80.0))) == ()


def test_the_text_of_a_refused_call_is_ours_alone() -> None:
    """The end of a call has the fields that it has always had there."""
    refused = ToolResultReceived("c", "t", is_error=True, result="there is no such tool")
    assert payload_of(refused) == {"type": "tool_result_received", "id": "c", "name": "t", "is_error": True}
    assert payload_of(refused) == payload_of(ToolResultReceived("c", "t", is_error=True))


UNKNOWN_THERE: list[Event] = [
    InputTaken("i", "context", "it rains", None),
    ToolApprovalRequested("c", "t", {}, "shell", 1000),
    ToolApprovalResolved("c", "t", "allow", None),
    TurnResumed(1, 4),
]


@pytest.mark.parametrize("event", UNKNOWN_THERE)
@pytest.mark.parametrize("version", ["0.4", "0.6", "0.7", "0.9"])
def test_events_that_these_clients_do_not_know_are_kept_back(event: Event, version: str) -> None:
    """From 0.7 on an event of an unknown type ends the client's stream."""
    assert frames_of(version, envelope(1, event)) == ()


def frames_of(version: str, event: Envelope) -> Sequence[bytes]:
    """Return the messages of a contract for an event."""
    frames = dialect_of(version).frames
    assert frames is not None
    return frames(event)


def test_a_gap_is_told_as_the_version_has_it() -> None:
    """Up to 0.7 the reason is a text, from 0.8 on an object."""
    told = [payload_of(StreamTruncated(7, 3), version) for version in ((0, 7, 31), (0, 8, 0))]
    assert [event["reason"] for event in told if event] == [
        "7 events were dropped: the reader is too slow",
        {"kind": "stream_lagged", "dropped": 7},
    ]


WRAPPED = [("0.4", False), ("0.6", False), ("0.8.0", False), ("0.8.1", True), ("0.8", True), ("0.9", True)]


@pytest.mark.parametrize(("version", "wrapped"), WRAPPED)
def test_the_version_decides_on_the_envelope(version: str, *, wrapped: bool) -> None:
    """Up to 0.8.0 an event is flat, from 0.8.1 on it is in an envelope that says where it comes from."""
    (frame,) = frames_of(version, delta(5, "hi"))
    params = codec.parse(frame)["params"]
    payload = {"type": "text_delta", "delta": "hi"}
    assert params["session_id"] == "s1"
    if wrapped:
        event = params["event"]
        assert (event["seq"], event["payload"]) == (5, payload)
        assert event["source"] == {"type": "session", "session_id": "s1"}
        assert event["timestamp_ms"] == int(NOW.timestamp() * 1000)
    else:
        assert params["event"] == payload


@pytest.mark.parametrize("version", ["0", "0.3", "0.10", "1.0", "1.6", "0.6.x", "99999.1", "0.6\n"])
def test_a_version_that_nobody_has_tried_is_refused(version: str) -> None:
    """The error names the option."""
    with pytest.raises(InvalidParamsError) as caught:
        dialect_of(version)
    assert caught.value.path == "$.contract"


SAID: list[tuple[str, dict[str, Any], str]] = [
    ("client", {}, "0.9.6"),
    ("client", {"contract_version": "0.7.2"}, "0.7.2"),
    ("client", {"contract_version": "0.5"}, "0.5.2"),
    ("client", {"client_info": {"name": "meerkat-sdk", "version": "0.8.1"}}, "0.8.1"),
    ("client", {"client_info": {"name": "@rkat/sdk", "version": "0.4.13"}}, "0.4.13"),
    ("client", {"client_info": {"name": "mine", "version": "3.1", "contract_version": "0.6"}}, "0.6.34"),
    ("client", {"client_info": {"name": "mine", "version": "3.1"}}, "0.9.6"),
    ("0.8", {}, "0.8.52"),
    ("0.8", {"contract_version": "0.8.3"}, "0.8.3"),
    ("0.4.1", {"client_info": {"name": "mine", "version": "3.1"}}, "0.4.1"),
]


@pytest.mark.parametrize(("option", "said", "spoken"), SAID)
async def test_the_version_is_the_clients_or_the_options(option: str, said: dict[str, Any], spoken: str) -> None:
    """A client that names its version gets that one; else it is the option's, and the newest without a value."""
    async with near(FakeService(), dialect=dialect_of(option)) as client:
        assert (await client.call("initialize", **said))["contract_version"] == spoken
        assert (await client.call("capabilities/get"))["contract_version"] == spoken


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("client", {"contract_version": "0.3"}, "$.contract_version"),
    ("client", {"client_info": {"name": "meerkat-sdk", "version": "1.0.0"}}, "$.client_info.version"),
    ("0.8", {"contract_version": "0.7.31"}, "$.contract_version"),
]


@pytest.mark.parametrize(("option", "said", "path"), REFUSED)
async def test_a_client_of_another_version_reads_why_it_is_refused(
    option: str, said: dict[str, Any], path: str
) -> None:
    """The answer to `initialize` is an error that names the field and the versions."""
    async with near(FakeService(), dialect=dialect_of(option)) as client:
        error = await client.error("initialize", **said)
        assert error["data"]["details"]["path"] == path
        assert "0." in error["message"]


INJECTED: list[tuple[dict[str, Any], str]] = [
    ({"text": "it rains"}, "it rains"),
    ({"content": {"type": "text", "text": "it rains"}}, "it rains"),
    ({"content": {"type": "blocks", "blocks": [{"type": "text", "text": "it"}, {"type": "text", "text": "!"}]}}, "it!"),
    ({"content": "it rains"}, "it rains"),
]


@pytest.mark.parametrize(("params", "text"), INJECTED)
async def test_context_is_injected_in_the_words_of_each_version(params: dict[str, Any], text: str) -> None:
    """Up to 0.6 the words are `text`, from 0.7 on they are in `content`."""
    service = FakeService()
    async with near(service, dialect=dialect_of("0.7")) as client:
        answer = await client.call("session/inject_context", session_id="s1", **params)
    assert answer == {"status": "staged"}
    async with near(FakeService(), dialect=dialect_of("0.8.11")) as newer:
        assert await newer.call("session/inject_context", session_id="s1", **params) == {"status": "applied"}
    assert service.calls[-1] == (
        "inject_context",
        {"session_id": "s1", "text": text, "source": None, "idempotency_key": None},
    )


BAD_CONTEXT: list[tuple[dict[str, Any], str]] = [
    ({}, "$.content"),
    ({"content": {"type": "json", "value": 1}}, "$.content[0]"),
    ({"content": 5}, "$.content"),
    ({"content": "a", "text": "b"}, "$.text"),
]


@pytest.mark.parametrize(("params", "path"), BAD_CONTEXT)
async def test_context_that_is_no_text_is_refused_by_name(params: dict[str, Any], path: str) -> None:
    """Only text can be injected."""
    async with near(FakeService(), dialect=dialect_of("0.9")) as client:
        error = await client.error("session/inject_context", session_id="s1", **params)
    assert error["data"]["details"]["path"] == path


async def test_missing_words_are_named_as_the_version_has_them() -> None:
    """Up to 0.6 it is `text` that is required, from 0.7 on `content`."""
    for version, path in (("0.6", "$.text"), ("0.7", "$.content")):
        async with near(FakeService(), dialect=dialect_of(version)) as client:
            error = await client.error("session/inject_context", session_id="s1")
        assert error["data"]["details"]["path"] == path


async def test_a_missing_session_is_told_in_their_words() -> None:
    """Meerkat's own tests look for these words, in every method."""
    async with near(FakeService(), dialect=dialect_of("0.9")) as client:
        error = await client.error("session/read", session_id="nobody")
    assert (error["message"], error["data"]["code"]) == ("Session not found: nobody", "SESSION_NOT_FOUND")


async def test_a_client_can_do_without_the_events_of_its_turn() -> None:
    """With `session_events: false` only the streams that it has opened tell of the turn."""
    service = FakeService()
    async with near(service, dialect=dialect_of("0.9")) as client:
        made = await client.call("session/create", prompt="x", session_events=False)
        assert not [each for each in client.seen if "method" in each]
        session_id = made["session_id"]
        await client.call("turn/start", session_id=session_id, prompt="a", session_events=False)
        assert not [each for each in client.seen if "method" in each]
        await client.call("turn/start", session_id=session_id, prompt="b", session_events=True)
        assert {each["method"] for each in client.seen if "method" in each} == {"session/event"}
        await client.call("session/stream_open", session_id=session_id)
        before = len(client.seen)
        await client.call("turn/start", session_id=session_id, prompt="c", session_events=False)
        await service.archive(session_id)
        while client.seen[-1].get("method") != "session/stream_end":
            await client.next()
        told = {each["method"] for each in client.seen[before:] if "method" in each}
        assert told == {"session/stream_event", "session/stream_end"}


def test_no_version_is_our_own_protocol() -> None:
    """Nothing is translated unless asked for."""
    assert isinstance(dialect_of(None), Native)


def test_what_is_created_in_our_words() -> None:
    """Options of the same meaning are passed on; instructions join the system prompt."""
    asked = codec.from_data(
        CreateParams,
        {
            "prompt": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "system_prompt": "be brief",
            "additional_instructions": ["and kind"],
            "budget_limits": {"max_tokens": 5, "max_duration": {"secs": 1, "nanos": 500_000_000}, "max_tool_calls": 2},
            "labels": {"a": "b"},
            "enable_builtins": False,
            "skill_refs": [],
        },
    )
    made = asked.request()
    assert (made.prompt, made.system_prompt, made.labels) == ("ab", "be brief\n\nand kind", {"a": "b"})
    assert made.budget is not None
    assert (made.budget.max_tokens, made.budget.max_seconds, made.budget.max_tool_calls) == (5, 1.5, 2)
    deferred = codec.from_data(CreateParams, {"prompt": "x", "initial_turn": "deferred"})
    assert deferred.request().prompt is None


def test_kinds_of_tools_are_switched_by_its_names() -> None:
    """Options for builtins and the shell are the session's switches; missing ones are left to the runtime."""
    made = codec.from_data(CreateParams, {"prompt": "x", "enable_shell": True, "enable_builtins": False}).request()
    assert made.overrides == Switches(shell="enable", builtins="disable")
    silent = codec.from_data(CreateParams, {"prompt": "x", "enable_shell": None, "keep_alive": True}).request()
    assert (silent.overrides, silent.peer) == (None, None)


BAD: list[tuple[type[CreateParams | StartParams], dict[str, Any], str]] = [
    (CreateParams, {"prompt": 5}, "$.prompt"),
    (CreateParams, {"prompt": [{"type": "text"}]}, "$.prompt[0].text"),
    (CreateParams, {"prompt": ["x"]}, "$.prompt[0]"),
    (CreateParams, {"prompt": "x", "enable_mob": True}, "$.enable_mob"),
    (CreateParams, {"prompt": "x", "enable_shell": "yes"}, "$.enable_shell"),
    (CreateParams, {"prompt": "x", "comms_name": "ann", "keep_alive": True}, "$.comms_name"),
    (CreateParams, {"prompt": "x", "shell_env": {"A": "b"}}, "$.shell_env"),
    (CreateParams, {"prompt": "x", "initial_turn": "later"}, "$.initial_turn"),
    (CreateParams, {"prompt": "x", "budget_limits": {"max_duration": "1s"}}, "$.budget_limits.max_duration"),
    (CreateParams, {"prompt": "x", "budget_limits": {"max_duration": 0}}, "$.budget_limits.max_duration"),
    (CreateParams, {"prompt": "x", "budget_limits": {"max_duration": 10**400}}, "$.budget_limits.max_duration"),
    (CreateParams, {"prompt": "x", "budget_limits": {"max_tokens": 0}}, "$.budget_limits.max_tokens"),
    (CreateParams, {"prompt": "x", "new_option": 1}, "$.new_option"),
    (StartParams, {"session_id": "s1", "prompt": "x", "system_prompt": "y"}, "$.system_prompt"),
]


@pytest.mark.parametrize(("cls", "params", "path"), BAD)
def test_what_cannot_be_done_is_refused_by_name(
    cls: type[CreateParams | StartParams], params: dict[str, Any], path: str
) -> None:
    """Nothing that changes what a turn does is passed over in silence."""
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(cls, params).request()
    assert caught.value.path == path


def test_transcripts_are_in_blocks() -> None:
    """Every kind of message and block has its place, with the time it was added."""
    blocks = (
        ReasoningBlock("hm"),
        TextBlock("hi"),
        ToolUseBlock("c", "t", {"a": 1}),
        UnknownBlock("new", {"x": 1}),
    )
    messages: list[Message] = [
        SystemMessage("be"),
        AssistantMessage(blocks, "tool_use"),
        ToolResultsMessage((ToolResult("c", "out", is_error=True),)),
    ]
    entries = tuple(HistoryEntry(index, NOW, message) for index, message in enumerate(messages))
    shown = history_result(HistoryPage("s1", entries, 0, 4), 3)
    assert shown.has_more
    assert {entry["created_at"] for entry in shown.messages} == {NOW.isoformat()}
    assert [entry["role"] for entry in shown.messages] == ["system", "block_assistant", "tool_results"]
    assert shown.messages[1]["blocks"] == [
        {"block_type": "reasoning", "data": {"text": "hm"}},
        {"block_type": "text", "data": {"text": "hi"}},
        {"block_type": "tool_use", "data": {"id": "c", "name": "t", "args": {"a": 1}}},
        {"block_type": "new", "data": {"x": 1}},
    ]
    assert shown.messages[2]["results"] == [{"tool_use_id": "c", "content": "out", "is_error": True}]


CATALOGS: list[tuple[Settings, dict[str, str], list[tuple[str, str]]]] = [
    (Settings(), {}, [("echo", "echo")]),
    (Settings("claude-opus-5"), {}, [("anthropic", "claude-opus-5"), ("echo", "echo")]),
    (
        Settings("gpt-5"),
        {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"},
        [("openai", "gpt-5"), ("echo", "echo"), ("anthropic", ANTHROPIC.default_model)],
    ),
    (Settings(), {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, [("openai", "default"), ("echo", "echo")]),
    (Settings("llama"), {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, [("openai", "llama"), ("echo", "echo")]),
    (Settings("scripted:a.json"), {}, [("scripted", "scripted:a.json"), ("echo", "echo")]),
    (Settings("mine:fast"), {}, [("mine", "mine:fast"), ("echo", "echo")]),
    (Settings("fast", "mine"), {}, [("mine", "fast"), ("echo", "echo")]),
]


@pytest.mark.parametrize(("settings", "environ", "expected"), CATALOGS)
def test_the_catalog_has_what_can_be_called(
    settings: Settings, environ: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    """The runtime's own model is first, then the first choice of every provider with a key; each names its window."""
    found = providers(settings, environ)
    assert [(each.provider, each.default_model_id) for each in found] == expected
    for each in found:
        (model,) = each.models
        assert (model.id, model.context_window) == (each.default_model_id, window_of(model.id))


async def test_nothing_to_interrupt_is_no_error_there() -> None:
    """If our protocol has an error, Meerkat's clients expect none."""
    async with near(FakeService(), dialect=dialect_of("0.6")) as client:
        assert await client.call("turn/interrupt", session_id="s1") == {"session_id": "s1", "interrupted": False}
    async with near(FakeService()) as client:
        assert (await client.error("turn/interrupt", session_id="s1"))["data"]["code"] == "SESSION_NOT_RUNNING"


async def test_the_last_of_two_streams_ends_the_subscription() -> None:
    """Streams of one session share a subscription; events are told once a stream, and no more after its end."""
    service = FakeService()
    async with near(service, dialect=dialect_of("0.6")) as client:
        session_id = (await client.call("session/create", prompt="x", initial_turn="deferred"))["session_id"]
        first, second = [await client.call("session/stream_open", session_id=session_id) for _ in range(2)]
        assert first["stream_id"] != second["stream_id"]
        await client.call("turn/start", session_id=session_id, prompt="a")
        told = [
            message["params"]["stream_id"] for message in client.seen if "stream_event" in message.get("method", "")
        ]
        assert sorted(told) == sorted([first["stream_id"], second["stream_id"]] * 3)
        assert (await client.call("session/stream_close", stream_id=first["stream_id"]))["already_closed"] is False
        assert service.readers(session_id)
        await client.call("session/stream_close", stream_id=second["stream_id"])
        assert (await client.call("session/stream_close", stream_id=first["stream_id"]))["already_closed"] is True
        assert not service.readers(session_id)


async def test_the_streams_of_a_session_are_bounded() -> None:
    """Every event is sent once for each of them, so a client cannot multiply events without an end."""
    async with near(FakeService(), dialect=dialect_of("0.6")) as client:
        opened = [await client.call("session/stream_open", session_id="s1") for _ in range(MAX_STREAMS)]
        error = await client.error("session/stream_open", session_id="s1")
        assert error["data"]["code"] == "CAPACITY_EXCEEDED"
        assert error["data"]["details"]["cause"] == "max_subscriptions"
        await client.call("session/stream_close", stream_id=opened[0]["stream_id"])
        assert (await client.call("session/stream_open", session_id="s1"))["opened"] is True


async def test_streams_end_with_their_session() -> None:
    """Each is told of, behind the last event and whoever has ended the session, and cannot be closed once more."""
    service = FakeService()
    async with near(service, dialect=dialect_of("0.6")) as client:
        opened = [await client.call("session/stream_open", session_id="s1") for _ in range(2)]
        service.sessions["s1"].publish(delta(1).event)
        await service.archive("s1")
        while len(ends := [each["params"] for each in client.seen if each.get("method") == "session/stream_end"]) < 2:
            await client.next()
        assert ends == [{"stream_id": each["stream_id"], "session_id": "s1"} for each in opened]
        methods = [each["method"] for each in client.seen if "method" in each]
        assert methods[-4:] == ["session/stream_event"] * 2 + ["session/stream_end"] * 2
        closed = await client.call("session/stream_close", stream_id=opened[0]["stream_id"])
        assert closed["already_closed"] is True


def test_an_event_that_json_cannot_hold_is_told_of_as_missing() -> None:
    """A tool's result of half a character does not end the connection."""
    odd = ToolExecutionCompleted("c", "t", "\ud800", is_error=False, duration_ms=3)
    for frame in (frame_of(envelope(9, odd)), *Meerkat((0, 6, 0)).frames(envelope(9, odd))):
        event = codec.parse(frame)["params"]["event"]
        assert (event["type"], event["dropped"], event["resume_after"]) == ("stream_truncated", 1, 8)
