"""Google's protocol: requests written, answers read; the shapes are those of Google's documentation."""

from typing import Any

import httpx
import pytest

from tests.transport.providers.calls import GEMINI, KEY, WEATHER, answered, over, request, streamed
from tests.transport.providers.dialects import body, told
from warren.base.errors import InvalidParamsError, ProviderError
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
from warren.conversation.options import ModelOptions
from warren.conversation.usage import Usage
from warren.models.model import ReasoningPiece, TextPiece
from warren.transport.providers import open_providers
from warren.transport.providers.gemini import GeminiContext
from warren.transport.providers.kept import Maker

OLD, PRO = "gemini-2.5-flash", "gemini-2.5-pro"
USAGE = {
    "promptTokenCount": 9,
    "cachedContentTokenCount": 4,
    "candidatesTokenCount": 3,
    "thoughtsTokenCount": 2,
    "totalTokenCount": 14,
}
SIGNED = Maker("gemini", "gemini", GEMINI).keep({"thoughtSignature": "sig=="})
CALL = {"name": "weather", "args": {"city": "Rome"}, "id": "c1"}


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: object) -> dict[str, Any]:
    """Return a chunk of an answer."""
    ended = {"finishReason": finish} if finish else {}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0} | ended | more]}


def last(*parts: dict[str, Any], finish: str = "STOP", **more: object) -> dict[str, Any]:
    """Return the last chunk of an answer, with its tokens."""
    return chunk(*parts, finish=finish, **more) | {"usageMetadata": USAGE}


async def sent(model: str, *messages: Message | str, **options: object) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    bodies: list[dict[str, Any]] = []

    def server(asked: httpx.Request) -> httpx.Response:
        base = "https://generativelanguage.googleapis.com/v1beta"
        assert str(asked.url) == f"{base}/models/{model}:streamGenerateContent?alt=sse"
        assert asked.headers["x-goog-api-key"] == KEY
        bodies.append(codec.parse(asked.content))
        return httpx.Response(200, json=last())

    await over(server, request(model, *messages, **options))
    return bodies[0]


async def test_request() -> None:
    """Tools, the system message and options have the protocol's names; the model is in the address."""
    assert await sent(GEMINI) == {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
    messages = SystemMessage("be brief"), SystemMessage(" "), UserMessage("hi")
    assert await sent(GEMINI, *messages, tools=(WEATHER,), max_tokens=9, temperature=0.5, top_p=0.25) == {
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "weather",
                        "description": WEATHER.description,
                        "parametersJsonSchema": WEATHER.input_schema,
                    }
                ]
            }
        ],
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "generationConfig": {"maxOutputTokens": 9, "temperature": 0.5, "topP": 0.25},
    }
    assert "systemInstruction" in await sent(GEMINI, *messages)


async def test_an_answer_as_data() -> None:
    """The schema is that of the response."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    config = (await sent(GEMINI, answer_schema=schema))["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": schema}


@pytest.mark.parametrize(
    ("model", "options", "thinking"),
    [
        (GEMINI, {}, None),
        (GEMINI, {"effort": "minimal"}, {"thinkingLevel": "minimal", "includeThoughts": True}),
        (GEMINI, {"effort": "max"}, {"thinkingLevel": "high", "includeThoughts": True}),
        (OLD, {"effort": "none"}, {"thinkingBudget": 0}),
        (OLD, {"effort": "low"}, {"thinkingBudget": 2048, "includeThoughts": True}),
        (PRO, {"reasoning_tokens": 300}, {"thinkingBudget": 300, "includeThoughts": True}),
    ],
)
async def test_reasoning(model: str, options: dict[str, Any], thinking: dict[str, Any] | None) -> None:
    """New models are asked for a level, old ones for a budget."""
    assert (await sent(model, **options)).get("generationConfig", {}).get("thinkingConfig") == thinking


@pytest.mark.parametrize(
    ("model", "options", "path"),
    [
        (GEMINI, {"reasoning_tokens": 300}, "$.reasoning_tokens"),
        (GEMINI, {"effort": "none"}, "$.effort"),
        (PRO, {"effort": "none"}, "$.effort"),
    ],
)
async def test_refused_options(model: str, options: dict[str, Any], path: str) -> None:
    """Options that a model does not have are refused by their names."""
    async with open_providers({}) as providers:
        with pytest.raises(InvalidParamsError) as caught:
            providers.resolve(model, None).check(ModelOptions(**options))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"GOOGLE_API_KEY": "b"}, "b"),
        ({"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": "b"}, "a"),
        ({"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "b"}, "b"),
    ],
)
async def test_keys(variables: dict[str, str], key: str) -> None:
    """Either variable may have the key."""
    keys: list[str] = []

    def server(asked: httpx.Request) -> httpx.Response:
        keys.append(asked.headers["x-goog-api-key"])
        return httpx.Response(200, json=last())

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(variables, client=client) as providers,
    ):
        await providers.resolve(GEMINI, None).provider.complete(request(GEMINI), lambda _: None)
    assert keys == [key]


def test_transcript() -> None:
    """Results have the names of their calls, and signatures go back with their parts; calls of others are marked."""
    messages: list[Message] = [
        UserMessage("a"),
        AssistantMessage((ReasoningBlock("hm"), TextBlock("see"), ToolUseBlock("c1", "weather", {}, metadata=SIGNED))),
        ToolResultsMessage((ToolResult("c1", "sun"),)),
        UserMessage("b"),
        UserMessage("c"),
        AssistantMessage((ToolUseBlock("f:0", "a b"), ToolUseBlock("c3", "now"), UnknownBlock("video", {}))),
        ToolResultsMessage((ToolResult("f:0", "no", is_error=True), ToolResult("c3", "12"))),
        AssistantMessage((TextBlock("so", SIGNED), ReasoningBlock("", SIGNED))),
    ]
    read = told(GeminiContext("gemini", GEMINI), messages)
    odd = read[4]["parts"][0]["functionCall"]["id"]
    assert read == [
        {"role": "user", "parts": [{"text": "a"}]},
        {
            "role": "model",
            "parts": [
                {"text": "see"},
                {"functionCall": {"id": "c1", "name": "weather", "args": {}}, "thoughtSignature": "sig=="},
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": "c1", "name": "weather", "response": {"output": "sun"}}}],
        },
        {"role": "user", "parts": [{"text": "b"}, {"text": "c"}]},
        {
            "role": "model",
            "parts": [
                {
                    "functionCall": {"id": odd, "name": "a_b_c8687a08", "args": {}},
                    "thoughtSignature": "skip_thought_signature_validator",
                },
                {"functionCall": {"id": "c3", "name": "now", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": odd, "name": "a_b_c8687a08", "response": {"error": "no"}}},
                {"functionResponse": {"id": "c3", "name": "now", "response": {"output": "12"}}},
            ],
        },
        {
            "role": "model",
            "parts": [{"text": "so", "thoughtSignature": "sig=="}, {"text": "", "thoughtSignature": "sig=="}],
        },
        {"role": "user", "parts": [{"text": "Continue."}]},
    ]
    older = codec.encode(body(GeminiContext("gemini", OLD), messages))
    assert b"thoughtSignature" not in older


async def test_stream() -> None:
    """Thoughts, text, signatures and parallel calls come in their order; thoughts count as output."""
    outcome = await streamed(
        request(GEMINI),
        chunk({"text": "h", "thought": True}),
        chunk({"text": "m", "thought": True}),
        chunk({"text": "Se"}),
        chunk({"text": "e"}) | {"usageMetadata": {"promptTokenCount": 9}},
        chunk({"functionCall": CALL, "thoughtSignature": "sig=="}),
        chunk({"functionCall": {"name": "now"}}),
        last({"text": "", "thoughtSignature": "end=="}),
    )
    assert outcome.pieces == [ReasoningPiece("h"), ReasoningPiece("m"), TextPiece("Se"), TextPiece("e")]
    thought, text, first, second, end = outcome.reply.message.blocks
    assert (thought, text) == (ReasoningBlock("hm"), TextBlock("See"))
    assert first == ToolUseBlock("c1", "weather", {"city": "Rome"}, metadata=SIGNED)
    assert isinstance(second, ToolUseBlock)
    assert (second.name, second.args, second.metadata) == ("now", {}, None)
    assert second.id
    assert end == ReasoningBlock("", Maker("gemini", "gemini", GEMINI).keep({"thoughtSignature": "end=="}))
    assert (outcome.reply.message.stop_reason, outcome.reply.usage) == ("tool_use", Usage(9, 5, 0, 4))


async def test_a_signed_text() -> None:
    """A text has the signature of its last part, and the text behind it is another one."""
    blocks = (
        await streamed(
            request(GEMINI),
            chunk({"text": "a"}),
            chunk({"text": "b", "thoughtSignature": "sig=="}),
            last({"text": "c"}),
        )
    ).reply.message.blocks
    assert blocks == (TextBlock("ab", SIGNED), TextBlock("c"))


@pytest.mark.parametrize(
    ("finish", "stop_reason"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("IMAGE_RECITATION", "content_filter"),
        ("IMAGE_PROHIBITED_CONTENT", "content_filter"),
        ("SAFETY_OF_TOMORROW", "content_filter"),
    ],
)
async def test_stop_reasons(finish: str, stop_reason: str) -> None:
    """Every finish reason has one of ours, also in an answer without content."""
    assert (
        await streamed(request(GEMINI), last({"text": "a"}, finish=finish))
    ).reply.message.stop_reason == stop_reason
    empty = {"candidates": [{"finishReason": finish}]}
    assert (await answered(request(GEMINI), empty)).reply.message == AssistantMessage((), stop_reason)


@pytest.mark.parametrize("finish", ["FROM_THE_FUTURE", "NO_IMAGE", "IMAGE_OTHER", "FINISH_REASON_UNSPECIFIED"])
async def test_no_answer(finish: str) -> None:
    """An empty answer that ended for a reason of tomorrow, or for one that is a failure, is no answer."""
    with pytest.raises(ProviderError, match=finish) as caught:
        await streamed(request(GEMINI), last(finish=finish))
    assert (caught.value.cause, caught.value.retryable) == ("bad_response", True)
    if finish == "FROM_THE_FUTURE":
        said = (await streamed(request(GEMINI), last({"text": "a"}, finish=finish))).reply.message
        assert (said.text, said.stop_reason) == ("a", "end_turn")


async def test_a_blocked_prompt() -> None:
    """A prompt that the server refuses to pass on is an answer that was filtered."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}}
    assert (await streamed(request(GEMINI), blocked)).reply.message == AssistantMessage((), "content_filter")


async def test_a_malformed_call() -> None:
    """A call that the server could not read is an error that may not come again."""
    broken = last(finish="MALFORMED_FUNCTION_CALL", finishMessage="Malformed function call: weather(")
    with pytest.raises(ProviderError, match=r"MALFORMED_FUNCTION_CALL: .*weather") as caught:
        await streamed(request(GEMINI), broken)
    assert caught.value.retryable


ERRORS: list[tuple[int, str, list[dict[str, Any]], str, str, float | None]] = [
    (429, "RESOURCE_EXHAUSTED", [{"@type": "RetryInfo", "retryDelay": "34s"}], "quota", "rate_limited", 34.0),
    (503, "UNAVAILABLE", [], "The model is overloaded.", "overloaded", None),
    (400, "INVALID_ARGUMENT", [{"reason": "API_KEY_INVALID"}], "API key not valid.", "unauthorized", None),
    (
        400,
        "INVALID_ARGUMENT",
        [],
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "context_length",
        None,
    ),
]


@pytest.mark.parametrize(("code", "status", "details", "message", "cause", "wait"), ERRORS)
async def test_errors(  # noqa: PLR0917 - a row of the table
    code: int, status: str, details: list[dict[str, Any]], message: str, cause: str, wait: float | None
) -> None:
    """An error has its cause, before and within an answer, and the wait that the server asks for."""
    error = {"error": {"code": code, "message": message, "status": status, "details": details}}
    with pytest.raises(ProviderError) as caught:
        await answered(request(GEMINI), error, code)
    assert (caught.value.cause, caught.value.retry_after) == (cause, wait)
    with pytest.raises(ProviderError) as caught:
        await streamed(request(GEMINI), chunk({"text": "half"}), error)
    assert (caught.value.cause, caught.value.retry_after) == (cause, wait)


async def test_a_stream_that_ends_half_way() -> None:
    """Text without a finish reason is no answer."""
    with pytest.raises(ProviderError, match="half way"):
        await streamed(request(GEMINI), chunk({"text": "half"}))
    with pytest.raises(ProviderError, match="no answer"):
        await answered(request(GEMINI), {"choices": []})
