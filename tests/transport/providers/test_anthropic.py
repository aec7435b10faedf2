"""The Anthropic messages protocol: requests written, answers read."""

from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import CLAUDE, KEY, WEATHER, answered, in_parts, over, request, streamed
from tests.transport.providers.dialects import PING, STOP, more, opened, start, stopped, told
from warren.base.errors import ProviderError
from warren.conversation import codec
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
from warren.conversation.usage import Usage
from warren.models.model import ReasoningPiece, TextPiece
from warren.transport.providers import wire
from warren.transport.providers.anthropic import MessagesContext

EMPTY = {"content": [], "stop_reason": "end_turn"}


async def sent(model: str, *messages: Message | str, **options: object) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    bodies: list[dict[str, Any]] = []

    def server(asked: httpx.Request) -> httpx.Response:
        bodies.append(codec.parse(asked.content))
        return httpx.Response(200, json=EMPTY)

    await over(server, request(model, *messages, **options))
    return bodies[0]


MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("", "https://api.anthropic.com/v1/messages"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/v1/messages"),
        ("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1/messages"),
    ],
)
async def test_request(base: str, url: str) -> None:
    """A request goes to the messages address with the key and the protocol's version, and streams."""

    def server(asked: httpx.Request) -> httpx.Response:
        assert str(asked.url) == url
        assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (KEY, "2023-06-01")
        assert codec.parse(asked.content) == {
            "model": CLAUDE,
            "messages": [{"role": "user", "content": [text("hello") | MARK]}],
            "max_tokens": 32_000,
            "stream": True,
        }
        return httpx.Response(200, json=EMPTY)

    await over(server, request(CLAUDE), settings={"ANTHROPIC_BASE_URL": base})


async def test_options() -> None:
    """The system message, tools, the cap and the temperature are sent in the protocol's form."""
    messages = SystemMessage("be brief"), SystemMessage(" "), UserMessage("hi")
    body = await sent(CLAUDE, *messages, tools=(WEATHER,), max_tokens=9, temperature=0.5, top_p=0.25)
    tool = {"name": "weather", "description": WEATHER.description, "input_schema": WEATHER.input_schema}
    assert body["tools"] == [tool | MARK]
    assert (body["system"], body["max_tokens"]) == ([text("be brief") | MARK], 9)
    assert (body["temperature"], body["top_p"]) == (0.5, 0.25)


async def test_cap_of_old_models() -> None:
    """Models that refuse the usual cap get theirs."""
    assert (await sent("claude-3-haiku-20240307"))["max_tokens"] == 4096
    assert (await sent("claude-of-my-own", max_output=5000))["max_tokens"] == 5000
    assert (await sent("claude-3-haiku-20240307", max_tokens=6000))["max_tokens"] == 6000


@pytest.mark.parametrize("end", [[], [{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}]])
async def test_counts_of_an_answer_that_breaks_off(end: list[Any]) -> None:
    """The counts that came with its beginning are in the error, so that they are charged; without them none are."""
    counted = start(input_tokens=40, cache_read_input_tokens=9, cache_creation_input_tokens=1, output_tokens=2)
    for first, usage in ((counted, Usage(50, 2, 1, 9)), (start(), None)):
        with pytest.raises(ProviderError) as caught:
            await streamed(request(CLAUDE), first, opened(0, "text", text=""), more(0, text="hal"), *end)
        assert caught.value.usage == usage


def text(words: str) -> dict[str, Any]:
    """Return a text block of the protocol."""
    return {"type": "text", "text": words}


def said(*content: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of the model in the protocol's form."""
    return {"role": "assistant", "content": list(content)}


def asked(*content: dict[str, Any]) -> dict[str, Any]:
    """Return what the user's side says in the protocol's form."""
    return {"role": "user", "content": list(content)}


CALL = ToolUseBlock("c1", "weather", {"city": "Rome"})
WIRE_CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}
ODD_ID = wire.call_id("f:0")
SIGNED = {"anthropic": {"type": "thinking", "signature": "sig=="}}
UNSIGNED = {"anthropic": {"type": "thinking", "signature": ""}}
HIDDEN = {"anthropic": {"type": "redacted_thinking", "data": "xyz"}}
WIRE_THINKING = {"type": "thinking", "signature": "sig==", "thinking": "hm"}

TRANSCRIPTS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "users in a row": ([UserMessage("a"), UserMessage("b")], [asked(text("a"), text("b"))]),
    "results and the next prompt": (
        [
            UserMessage("a"),
            AssistantMessage((TextBlock("see"), CALL)),
            ToolResultsMessage((ToolResult("c1", "no city", is_error=True), ToolResult("c2", ""))),
            UserMessage("b"),
        ],
        [
            asked(text("a")),
            said(text("see"), WIRE_CALL),
            asked(
                {"type": "tool_result", "tool_use_id": "c1", "content": "no city", "is_error": True},
                {"type": "tool_result", "tool_use_id": "c2", "content": "(no output)"},
                text("b"),
            ),
        ],
    ),
    "ids and names of other providers": (
        [AssistantMessage((ToolUseBlock("f:0", "a b", {}, '{"x'),)), ToolResultsMessage((ToolResult("f:0", "bad"),))],
        [
            said(
                {"type": "tool_use", "id": ODD_ID, "name": "a_b_c8687a08", "input": {}},
            ),
            asked({"type": "tool_result", "tool_use_id": ODD_ID, "content": "bad"}),
        ],
    ),
    "reasoning is sent back verbatim": (
        [UserMessage("a"), AssistantMessage((ReasoningBlock("hm", SIGNED), ReasoningBlock("", HIDDEN), CALL))],
        [
            asked(text("a")),
            said(WIRE_THINKING, HIDDEN["anthropic"], WIRE_CALL),
            asked(text("Continue.")),
        ],
    ),
    "reasoning without its signature is left out": (
        [
            UserMessage("a"),
            AssistantMessage((ReasoningBlock("hm"), ReasoningBlock("hm", {"openai": {}}), TextBlock("b"))),
            AssistantMessage((ReasoningBlock("hm", UNSIGNED),)),
            UserMessage("c"),
        ],
        [asked(text("a")), said(text("b")), asked(text("c"))],
    ),
    "blank text and unknown blocks are left out": (
        [UserMessage(" "), AssistantMessage((TextBlock("\n"), UnknownBlock("video", {}))), UserMessage("a")],
        [asked(text("a"))],
    ),
    "an answer without blocks is left out": (
        [UserMessage("a"), AssistantMessage(()), UserMessage("b")],
        [asked(text("a"), text("b"))],
    ),
    "answers in a row": (
        [UserMessage("a"), AssistantMessage((TextBlock("b"),)), AssistantMessage((TextBlock("c"),)), UserMessage("d")],
        [asked(text("a")), said(text("b"), text("c")), asked(text("d"))],
    ),
    "interrupted answer at the end": (
        [UserMessage("a"), AssistantMessage((ReasoningBlock("h"), TextBlock("half ")), "cancelled")],
        [asked(text("a")), said(text("half ")), asked(text("Continue."))],
    ),
    "nothing to answer": ([SystemMessage("be brief"), UserMessage("")], [asked(text("Continue."))]),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str) -> None:
    """Every transcript that we can hold becomes one that the protocol takes."""
    messages, expected = TRANSCRIPTS[name]
    assert told(MessagesContext("anthropic", CLAUDE), messages) == expected


async def test_text_stream() -> None:
    """Text arrives piece by piece; the last token counts replace the first ones."""
    outcome = await streamed(
        request(CLAUDE),
        start(input_tokens=9, cache_creation_input_tokens=2, cache_read_input_tokens=3, output_tokens=1),
        PING,
        opened(0, "text", text=""),
        more(0, text="Hel"),
        more(0, text="lo"),
        {"type": "content_block_stop", "index": 0},
        {"type": "from_the_future"},
        stopped("end_turn", output_tokens=2),
        STOP,
    )
    assert outcome.pieces == [TextPiece("Hel"), TextPiece("lo")]
    assert outcome.reply.message == AssistantMessage((TextBlock("Hello"),))
    assert outcome.reply.usage == Usage(14, 2, 2, 3)


async def test_usage_without_a_count() -> None:
    """A count that is null takes nothing away from the one before it."""
    late = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": None}}
    outcome = await streamed(request(CLAUDE), start(input_tokens=9, output_tokens=2), late, STOP)
    assert outcome.reply.usage == Usage(9, 2)


async def test_error_without_a_stream() -> None:
    """A plain JSON error under status 200 says what the server said."""
    with pytest.raises(ProviderError, match="broke off: later"):
        await answered(request(CLAUDE), {"type": "error", "error": {"type": "overloaded_error", "message": "later"}})


async def test_usage_absent() -> None:
    """Without token counts they are estimated and marked."""
    outcome = await streamed(request(CLAUDE), start(), opened(0, "text", text="12345678"), stopped(), STOP)
    assert outcome.reply.usage.estimated
    assert outcome.reply.usage.output_tokens == 2
    assert 20 < outcome.reply.usage.input_tokens < 60


async def test_tool_calls() -> None:
    """Calls come from their fragments, in order; empty arguments are none."""
    outcome = await streamed(
        request(CLAUDE),
        start(input_tokens=1),
        opened(0, "text", text=""),
        more(0, text="see"),
        opened(1, "tool_use", id="c1", name="weather", input={}),
        more(1, partial_json=""),
        more(1, partial_json='{"city":'),
        opened(2, "tool_use", id="c2", name="now", input={}),
        more(1, partial_json=' "Rome"}'),
        stopped("tool_use", output_tokens=5),
        STOP,
    )
    assert outcome.reply.message == AssistantMessage(
        (TextBlock("see"), CALL, ToolUseBlock("c2", "now", {})), "tool_use"
    )


async def test_input_given_at_once() -> None:
    """Arguments that come whole with the block's start, as some servers send them, are used."""
    outcome = await streamed(
        request(CLAUDE), start(), opened(0, "tool_use", id="c1", name="weather", input={"city": "Rome"}), STOP
    )
    assert outcome.reply.message.tool_calls == (CALL,)


async def test_malformed_arguments_and_ids() -> None:
    """Malformed arguments are kept verbatim beside empty ones; doubled ids are made unique."""
    outcome = await streamed(
        request(CLAUDE),
        start(),
        opened(0, "tool_use", id="c", name="f", input={}),
        more(0, partial_json='{"a": '),
        opened(1, "tool_use", id="c", name="f", input={}),
        opened(2, "tool_use", name="f", input={}),
        stopped("tool_use"),
    )
    calls = outcome.reply.message.tool_calls
    assert [(call.args, call.invalid_args) for call in calls] == [({}, '{"a": '), ({}, None), ({}, None)]
    assert len({call.id for call in calls}) == 3
    assert all(call.id for call in calls)


async def test_thinking_is_kept_verbatim() -> None:
    """Thinking is streamed, and goes back to the provider exactly as it came: signed, hidden or without text."""
    outcome = await streamed(
        request(CLAUDE),
        start(),
        opened(0, "thinking", thinking="", signature=""),
        more(0, thinking="h"),
        more(0, thinking="m"),
        more(0, signature="sig=="),
        opened(1, "redacted_thinking", data="xyz"),
        opened(2, "thinking", thinking="", signature=""),
        more(2, signature="blind"),
        opened(3, "text", text="so"),
        stopped(),
        STOP,
    )
    assert outcome.pieces == [ReasoningPiece("h"), ReasoningPiece("m"), TextPiece("so")]
    message = outcome.reply.message
    assert [block.text for block in message.blocks if isinstance(block, ReasoningBlock)] == ["hm", "", ""]
    stored = codec.decode_message(codec.encode(message))
    assert told(MessagesContext("anthropic", CLAUDE), [UserMessage("a"), stored, UserMessage("b")])[1] == said(
        WIRE_THINKING,
        HIDDEN["anthropic"],
        {"type": "thinking", "signature": "blind", "thinking": ""},
        text("so"),
    )


async def test_unknown_block() -> None:
    """A block of a kind that we do not know is kept."""
    outcome = await streamed(
        request(CLAUDE), start(), opened(0, "video", id="s", name="search"), more(0, text="x"), STOP
    )
    assert outcome.reply.message.blocks == (UnknownBlock("video", {"id": "s", "name": "search"}),)


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "content_filter"),
        ("pause_turn", "end_turn"),
    ],
)
async def test_stop_reasons(reason: str, stop_reason: str) -> None:
    """Every stop reason has one of ours."""
    outcome = await streamed(request(CLAUDE), start(), opened(0, "text", text="a"), stopped(reason), STOP)
    assert outcome.reply.message.stop_reason == stop_reason


async def test_empty_answer() -> None:
    """An answer without anything in it is returned as it is."""
    outcome = await streamed(request(CLAUDE), start(), opened(0, "text", text=""), stopped(), STOP)
    assert outcome.reply.message == AssistantMessage(())


async def test_odd_events() -> None:
    """Parts of an unexpected kind, and parts of blocks that never began, are passed over."""
    odd: list[object] = [
        {"type": "message_start"},
        {"type": "content_block_start", "index": 0, "content_block": None},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "lost"}},
        {"type": "content_block_delta", "index": 1, "delta": None},
        {"type": "message_delta", "usage": {"output_tokens": None}},
        {"type": 7},
        "",
    ]
    outcome = await streamed(request(CLAUDE), *odd, opened(1, "text", text="yes"), *odd[:1], stopped(), STOP)
    assert outcome.text == outcome.reply.message.text == "yes"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message_start", "message": "x"},
        {"type": "content_block_start", "index": 0, "content_block": "x"},
        {"type": "content_block_delta", "index": 0, "delta": "x"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 7}},
        {"type": "message_delta", "delta": "x"},
        {"type": "message_stop"},
    ],
)
async def test_members_of_the_wrong_type(event: dict[str, Any]) -> None:
    """An event that does not have the protocol's form, or an end without a beginning, is no part of an answer."""
    before = () if event["type"] in ("message_start", "message_stop") else (start(), opened(0, "text"))
    with pytest.raises(ProviderError) as caught:
        await streamed(request(CLAUDE), *before, event, STOP)
    assert (caught.value.cause, caught.value.retryable) == ("bad_response", True)


async def test_a_character_that_is_split_over_two_events() -> None:
    """Its halves become one character, in the answer and in its pieces."""
    halves = [
        f'{{"type": "content_block_delta", "index": 0, "delta": {{"type": "text_delta", "text": "{half}"}}}}'
        for half in (r"\ud83d", r"\ude00")
    ]
    outcome = await streamed(request(CLAUDE), start(), opened(0, "text"), *halves, STOP)
    assert outcome.text == outcome.reply.message.text == "\U0001f600"
    assert len(outcome.pieces) == 1


async def test_lone_surrogate() -> None:
    """A lone surrogate does not come through."""
    raw = r'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a\ud83d"}}'
    outcome = await streamed(request(CLAUDE), start(), opened(0, "text"), raw, STOP)
    assert outcome.text == outcome.reply.message.text == "a\ufffd"


async def test_plain_json() -> None:
    """A plain JSON answer, although a stream was asked for, is used."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
    body = {
        "content": [thinking, text("see"), WIRE_CALL],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    outcome = await answered(request(CLAUDE), body)
    assert outcome.pieces == [ReasoningPiece("hm"), TextPiece("see")]
    assert outcome.reply.message == AssistantMessage(
        (ReasoningBlock("hm", SIGNED | {"provider": "anthropic", "model": CLAUDE}), TextBlock("see"), CALL), "tool_use"
    )
    assert outcome.reply.usage == Usage(9, 2)


STREAM = events(start(), opened(0, "text"), more(0, text="grüße \N{GRINNING FACE}"), stopped(), STOP)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
async def test_bytes_cut_anywhere(cuts: list[int]) -> None:
    """However the network cuts a stream, within an event, a line or a character, the answer is the same."""
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[left:right] for left, right in pairwise(edges) if left < right]
    outcome = await in_parts(request(CLAUDE), parts)
    assert outcome.reply.message == AssistantMessage((TextBlock("grüße \N{GRINNING FACE}"),))


@pytest.mark.parametrize("arguments", ["", '{"city":"x"}', '{"ci'])
async def test_an_answer_that_begins_again_makes_its_calls_once(arguments: str) -> None:
    """The calls of the second answer take the place of the first one's, which may be whole, blank or broken."""
    first = (start(), opened(0, "tool_use", id="toolu_1", name="weather"), more(0, partial_json=arguments))
    again = (start(), opened(0, "tool_use", id="toolu_1", name="weather"), more(0, partial_json='{"city":"x"}'))
    outcome = await streamed(request(CLAUDE), *first, *again, stopped("tool_use"), STOP)
    assert outcome.reply.message.tool_calls == (ToolUseBlock("toolu_1", "weather", {"city": "x"}),)
