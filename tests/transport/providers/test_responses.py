"""OpenAI's responses protocol: requests written, answers read; the shapes are those of OpenAI's documentation."""

from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import KEY, RESPONSES, WEATHER, answered, in_parts, over, request, streamed
from tests.transport.providers.dialects import told
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    HostedToolBlock,
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
from warren.transport.providers import open_providers
from warren.transport.providers.kept import Maker
from warren.transport.providers.responses import ResponsesContext

USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 14,
}
CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'}


def added(index: int, kind: str, **more: object) -> dict[str, Any]:
    """Return the event that begins an item."""
    return {"type": "response.output_item.added", "output_index": index, "item": {"type": kind} | more}


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    """Return the event with a whole item."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def part(kind: str, index: int, delta: str, **more: object) -> dict[str, Any]:
    """Return the event with the next part of an item."""
    return {"type": f"response.{kind}.delta", "output_index": index, "item_id": "i", "delta": delta} | more


def ended(kind: str = "completed", **more: object) -> dict[str, Any]:
    """Return the last event."""
    return {"type": f"response.{kind}", "response": {"status": kind, "output": [], "usage": USAGE} | more}


def said(text: str, **more: object) -> dict[str, Any]:
    """Return a whole message."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content} | more


async def sent(model: str, *messages: Message | str, **options: object) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    bodies: list[dict[str, Any]] = []

    def server(asked: httpx.Request) -> httpx.Response:
        assert str(asked.url) == "https://api.openai.com/v1/responses"
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        bodies.append(codec.parse(asked.content))
        return httpx.Response(200, json={"output": []})

    await over(server, request(model, *messages, **options))
    return bodies[0]


async def test_request() -> None:
    """The server is to store nothing, and to send its reasoning encrypted; options have the protocol's names."""
    assert await sent(RESPONSES) == {
        "model": RESPONSES,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [{"type": "message", "role": "user", "content": "hello"}],
    }
    messages = SystemMessage("be brief"), SystemMessage(" "), UserMessage("hi")
    options: dict[str, Any] = {"max_tokens": 99, "temperature": 0.5, "top_p": 0.25, "effort": "xhigh"}
    body = await sent(RESPONSES, *messages, tools=(WEATHER,), session_id="s", **options)
    form = {"description": WEATHER.description, "parameters": WEATHER.input_schema, "strict": False}
    assert body["tools"] == [{"type": "function", "name": "weather"} | form]
    assert (body["instructions"], body["max_output_tokens"], body["reasoning"]) == ("be brief", 99, {"effort": "xhigh"})
    assert (body["temperature"], body["top_p"], body["prompt_cache_key"]) == (0.5, 0.25, "s")
    assert (await sent(RESPONSES, max_tokens=1))["max_output_tokens"] == 16


@pytest.mark.parametrize(
    ("model", "reasons"),
    [("gpt-5-mini", True), ("gpt-5.2", True), ("o3", True), ("gpt-4o", False), ("gpt-5-chat-latest", False)],
)
async def test_only_reasoning_is_asked_for_encrypted(model: str, *, reasons: bool) -> None:
    """Models that do not reason refuse to be asked for it."""

    def server(asked: httpx.Request) -> httpx.Response:
        assert ("include" in codec.parse(asked.content)) is reasons
        return httpx.Response(200, json={"output": []})

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers({"OPENAI_API_KEY": KEY}, client=client) as providers,
    ):
        await providers.resolve(model, None).provider.complete(request(model), lambda _: None)


async def test_an_answer_as_data() -> None:
    """The schema is the format of the text."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "name": "structured_output", "schema": schema, "strict": False}
    assert (await sent(RESPONSES, answer_schema=schema))["text"] == {"format": form}


OWN = Maker("openai", "responses", RESPONSES).keep({"id": "rs_1", "encrypted_content": "gAAA"})
SAID = TextBlock("See", Maker("openai", "responses", RESPONSES).keep({"phase": "commentary"}))
USE = ToolUseBlock("call_1", "weather", {"city": "Rome"})
SENT_CALL = {key: value for key, value in CALL.items() if key != "id"}


def test_reasoning_goes_back_before_the_item_that_came_with_it() -> None:
    """Reasoning of this model goes back in its place; of others, or with nothing behind it, it is left out."""
    messages: list[Message] = [
        UserMessage("a"),
        AssistantMessage((ReasoningBlock("hm", OWN), SAID, USE)),
        ToolResultsMessage((ToolResult("call_1", "no", is_error=True),)),
        AssistantMessage((ReasoningBlock("", OWN), UnknownBlock("web_search_call", {}))),
        AssistantMessage(
            (
                ReasoningBlock("", Maker("openai", "responses", "o8").keep({"id": "rs"})),
                ReasoningBlock("x"),
                TextBlock("b"),
            )
        ),
    ]
    assert told(ResponsesContext("responses", RESPONSES), messages) == [
        {"type": "message", "role": "user", "content": "a"},
        THOUGHT | {"summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": "See", "phase": "commentary"},
        SENT_CALL,
        {"type": "function_call_output", "call_id": "call_1", "output": "Error: no"},
        {"type": "message", "role": "assistant", "content": "b"},
        {"type": "message", "role": "user", "content": "Continue."},
    ]


STREAM: list[object] = [
    CREATED,
    added(0, "reasoning", id="rs_1", summary=[]),
    {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 0},
    part("reasoning_summary_text", 0, "h"),
    part("reasoning_summary_text", 0, "m"),
    {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 1},
    part("reasoning_summary_text", 0, "so"),
    done(0, THOUGHT),
    added(1, "message", role="assistant", content=[]),
    part("output_text", 1, "Se"),
    part("output_text", 1, "e"),
    done(1, said("See", phase="commentary")),
    added(2, "function_call", call_id="call_1", name="weather", arguments=""),
    added(3, "function_call", call_id="call_2", name="now", arguments=""),
    part("function_call_arguments", 2, '{"city":'),
    part("function_call_arguments", 3, "{}"),
    part("function_call_arguments", 2, '"Rome"}'),
    done(2, CALL),
    done(3, CALL | {"call_id": "call_2", "name": "now", "arguments": "{}"}),
    {"type": "response.from_the_future"},
    ended(),
]
MESSAGE = AssistantMessage(
    (
        ReasoningBlock("hm\n\nso", OWN),
        SAID,
        USE,
        ToolUseBlock("call_2", "now", {}),
    ),
    "tool_use",
)


async def test_stream() -> None:
    """Reasoning, text and parallel calls come in their order, with the tokens that the cache gave and took."""
    outcome = await streamed(request(RESPONSES), *STREAM)
    assert "".join(piece.text for piece in outcome.pieces if isinstance(piece, ReasoningPiece)) == "hm\n\nso"
    assert outcome.text == "See"
    assert (outcome.reply.message, outcome.reply.usage) == (MESSAGE, Usage(9, 5, 2, 4))
    assert codec.decode_message(codec.encode(outcome.reply.message)) == MESSAGE


async def test_bytes_cut_anywhere() -> None:
    """The answer does not depend on the parts in which its bytes arrive."""
    data = events(*STREAM)
    for size in (1, 7, 100):
        parts = [data[at:until] for at, until in pairwise([*range(0, len(data), size), len(data)])]
        assert (await in_parts(request(RESPONSES), parts)).reply.message == MESSAGE


async def test_what_did_not_come_before_is_in_the_end() -> None:
    """Items that a server sends whole, or with the last event alone, are read and said."""
    item = THOUGHT | {"summary": [{"type": "summary_text", "text": "hm"}]}
    for stream in ([done(0, item), done(1, said("See")), ended()], [ended(output=[item, said("See")])]):
        outcome = await streamed(request(RESPONSES), *stream)
        assert outcome.pieces == [ReasoningPiece("hm"), TextPiece("See")]
        assert outcome.reply.message == AssistantMessage((ReasoningBlock("hm", OWN), TextBlock("See")))
    plain = await answered(request(RESPONSES), {"status": "completed", "output": [said("See"), CALL], "usage": USAGE})
    assert plain.reply.message == AssistantMessage((TextBlock("See"), USE), "tool_use")


async def test_a_cap_within_a_call() -> None:
    """A call that is cut has its arguments as they came, and the answer says why."""
    cut = added(0, "function_call", call_id="call_1", name="weather"), part("function_call_arguments", 0, '{"city":"R')
    last = ended("incomplete", incomplete_details={"reason": "max_output_tokens"})
    message = (await streamed(request(RESPONSES), *cut, last)).reply.message
    assert message == AssistantMessage((ToolUseBlock("call_1", "weather", {}, '{"city":"R'),), "max_tokens")


async def test_stopped_answers() -> None:
    """A content filter stops the answer; a refusal is its text; nothing is nothing."""
    filtered = ended("incomplete", incomplete_details={"reason": "content_filter"})
    assert (await streamed(request(RESPONSES), filtered)).reply.message.stop_reason == "content_filter"
    refused = await streamed(request(RESPONSES), added(0, "message"), part("refusal", 0, "I cannot."), ended())
    assert (refused.text, refused.reply.message.stop_reason) == ("I cannot.", "end_turn")
    assert (await streamed(request(RESPONSES), CREATED, ended())).reply.message == AssistantMessage(())
    new = {"type": "video_call", "id": "ws_1", "status": "completed"}
    blocks = (await streamed(request(RESPONSES), done(0, new), ended())).reply.message.blocks
    assert blocks == (HostedToolBlock("video_call", {"openai": new, "provider": "responses", "model": "o9-test"}),)


@pytest.mark.parametrize(
    ("event", "cause", "retryable"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None}, "rate_limited", True),
        ({"type": "error", "error": {"type": "server_error", "message": "slow down"}}, "server_error", True),
        (ended("failed", error={"code": "server_error", "message": "slow down"}), "server_error", True),
        (ended("failed", error={"code": "invalid_prompt", "message": "slow down"}), "content_filter", False),
        (ended("failed", error={"code": "invalid_base64_image", "message": "slow down"}), "bad_request", False),
        (ended("failed", error={"code": "image_parse_error", "message": "slow down"}), "bad_request", False),
        (ended("failed", error={"code": "empty_image_file", "message": "slow down"}), "bad_request", False),
        (ended("failed", error={"code": "failed_to_download_image", "message": "slow down"}), "bad_request", False),
        (ended("failed", error={"code": "unsupported_image_media_type", "message": "slow down"}), "bad_request", False),
        (ended("failed", error={"code": "vector_store_timeout", "message": "slow down"}), "timeout", True),
        ({"message": "slow down", "code": 429}, "rate_limited", True),
        (ended("failed", error={"code": "insufficient_quota", "message": "slow down"}), "quota", False),
    ],
)
async def test_errors_within_a_stream(event: dict[str, Any], cause: str, *, retryable: bool) -> None:
    """An error ends the call, with what the server says of it."""
    with pytest.raises(ProviderError, match="slow down") as caught:
        await streamed(request(RESPONSES), CREATED, added(0, "message"), part("output_text", 0, "half"), event)
    assert (caught.value.cause, caught.value.retryable) == (cause, retryable)


async def test_an_empty_answer_for_a_reason_of_tomorrow() -> None:
    """It is an error that names the reason, or a refusal; with a text it is an answer."""
    for reason, stopped in (("too_new", "end_turn"), ("safety_of_tomorrow", "content_filter")):
        end = ended("incomplete", incomplete_details={"reason": reason})
        text = [added(0, "message"), part("output_text", 0, "half")]
        assert (await streamed(request(RESPONSES), *text, end)).reply.message.stop_reason == stopped
        if stopped == "content_filter":
            assert (await streamed(request(RESPONSES), end)).reply.message == AssistantMessage((), stopped)
            continue
        with pytest.raises(ProviderError, match=reason) as caught:
            await streamed(request(RESPONSES), end)
        assert (caught.value.cause, caught.value.retryable) == ("bad_response", True)


async def test_a_stream_that_ends_half_way() -> None:
    """Text without an end is no answer."""
    with pytest.raises(ProviderError, match="half way"):
        await streamed(request(RESPONSES), CREATED, added(0, "message"), part("output_text", 0, "half"))
    with pytest.raises(ProviderError, match="no response"):
        await answered(request(RESPONSES), {"choices": []})


@pytest.mark.parametrize(
    ("deltas", "whole", "text"),
    [
        (["Lin", " 6.1"], "Linux runsc 6.1", "Linux runsc 6.1"),
        (["Linux"], "Linux 6.1", "Linux 6.1"),
        (["Linux 6.1"], "Linux", "Linux 6.1"),
        (["Linux 6.1"], "", "Linux 6.1"),
    ],
)
@pytest.mark.parametrize("end", ["text", "item", "completed"])
async def test_a_whole_text_wins_over_deltas_with_gaps(deltas: list[str], whole: str, text: str, end: str) -> None:
    """The longer text is the answer, wherever the server tells it."""
    ends: dict[str, list[Any]] = {
        "text": [{"type": "response.output_text.done", "output_index": 0, "text": whole}, ended()],
        "item": [done(0, said(whole)), ended()],
        "completed": [ended(output=[said(whole)])],
    }
    parts = [part("output_text", 0, each) for each in deltas]
    outcome = await streamed(request(RESPONSES), added(0, "message", id="msg_1"), *parts, *ends[end])
    assert outcome.reply.message.text == text
