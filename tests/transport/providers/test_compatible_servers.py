"""Servers with a protocol that is nearly that of chat completions: what they send is read, what they want goes back."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, events, serve, status
from tests.transport.providers.calls import CLAUDE, GPT, WEATHER, environ, request, servers
from tests.transport.providers.dialects import DONE, STOP, delta, more, opened, start, stopped, told, used
from warren.base.errors import ProviderError
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.models.model import Emitted, ModelReply, Provider, ReasoningPiece, TextPiece
from warren.settings.config import ModelServer
from warren.transport.providers import open_providers
from warren.transport.providers.openai import EXTRA, ChatDialect
from warren.transport.providers.settings import OPENAI, ModelEndpoint

HELLO = events(delta("hel"), delta("lo"), delta(None, "stop"), used(9, 2), DONE)
WHOLE = codec.encode({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})
sizes = pytest.mark.parametrize("size", [1, 7, 100_000])


def response(body: bytes, kind: str | None = "text/event-stream", more: str = "") -> bytes:
    """Return a whole response with status 200."""
    named = f"content-type: {kind}\r\n" if kind is not None else ""
    return f"HTTP/1.1 200 OK\r\n{named}{more}content-length: {len(body)}\r\n\r\n".encode() + body


async def said(
    answer: bytes, size: int = 100_000, model: str = GPT, pieces: list[Emitted] | None = None, **settings: Any
) -> ModelReply:
    """Return what a model says whose server answers with these bytes, in parts of some size."""

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        for at in range(0, len(answer), size):
            await stream.send_all(answer[at : at + size])
            if size < len(answer):
                await trio.lowlevel.checkpoint()

    got = [] if pieces is None else pieces
    dialect = "openai-chat" if model == GPT else "anthropic"
    async with serve(handle) as url:
        server = ModelServer(name="srv", base_url=f"{url}/v1", dialect=dialect, **settings)  # type: ignore[arg-type]
        async with open_providers({}, servers=[server]) as providers:
            return await providers.resolve(model, "srv").provider.complete(request(model), got.append)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (None, 1),
        ("", 100_000),
        ("text/event-stream", 1),
        ("text/event-stream", 7),
        ("text/plain", 7),
        ("application/octet-stream", 100_000),
        ("application/json", 7),
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        HELLO,
        b"\xef\xbb\xbf" + HELLO,
        HELLO.replace(b"\n", b"\r\n"),
        HELLO.replace(b"\n", b"\r"),
        b"\n\n: PROCESSING\n\n" + HELLO,
        b"event: chunk\n" + HELLO.removesuffix(b"\n\n"),
        events(delta("hello", "stop")).removesuffix(b"\n\n"),
        WHOLE,
        b" \r\n" + WHOLE,
    ],
)
async def test_what_is_sent_is_known_by_its_first_bytes(body: bytes, kind: str | None, size: int) -> None:
    """A stream and plain JSON are read under any content type, however they are cut; the last event counts."""
    assert (await said(response(body, kind), size)).message == AssistantMessage((TextBlock("hello"),))


BUSY = {"message": "slow down, try again in 1.5s", "type": "rate_limit_error", "code": "rate_limit_exceeded"}


@sizes
@pytest.mark.parametrize(
    ("tail", "cause", "wait"),
    [
        (b"event: error\n" + event(BUSY), "rate_limited", 1.5),
        (b"event: error\n" + event({"error": BUSY}), "rate_limited", 1.5),
        (b"event: error\ndata: upstream gone\n\n", "server_error", None),
        (event({"error": BUSY}), "rate_limited", 1.5),
        (event({"error": "no more", "code": 503}), "overloaded", None),
        (event({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}), "bad_request", None),
        (event({"type": "error", "message": "no", "code": "503"}), "overloaded", None),
        (event({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}), "overloaded", None),
        (event({"message": "no", "code": 429, "retry_after": 3}), "rate_limited", 3.0),
        (event({"detail": "Too many requests"}), "rate_limited", None),
        (
            event({"choices": [{"error": {"code": 502, "message": "no"}, "delta": {}, "finish_reason": "error"}]}),
            "server_error",
            None,
        ),
        (b'{"error": {"code": 503, "message": "no", "status": "UNAVAILABLE"}}', "overloaded", None),
        (b'{\n  "error": {\n    "code": 429, "details": [{"retryDelay": "34s"}]\n  }\n}\n', "rate_limited", 34.0),
        (event({"choices": [], "base_resp": {"status_code": 1002, "status_msg": "RPM"}}), "rate_limited", None),
        (
            event(delta("h", "stop") | {"base_resp": {"status_code": 1027, "status_msg": "output sensitive"}}),
            "content_filter",
            None,
        ),
        (event({"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}), "server_error", None),
        (event({"base_resp": {"status_code": "1002", "status_msg": "RPM"}}), "rate_limited", None),
        (event({"base_resp": {"status_code": [1], "status_msg": "what"}}), "server_error", None),
        (b"data: [DONE]\n\n", "stream_broken", None),
        (b'data: {"choices":[{"delta":{"content":"', "stream_broken", None),
    ],
)
async def test_errors_in_a_stream(tail: bytes, cause: str, wait: float | None, size: int) -> None:
    """An error behind some text is one in each of its forms, with its cause and its wait."""
    for model, head in (
        (GPT, events(delta("hel"))),
        (CLAUDE, events(start(), opened(0, "text", text=""), more(0, text="hel"))),
    ):
        if model == CLAUDE and (b"choices" in tail or DONE.encode() in tail):
            continue
        with pytest.raises(ProviderError) as caught:
            await said(response(head + tail), size, model)
        assert (caught.value.cause, caught.value.retry_after) == (cause, wait)
        assert caught.value.retryable == (cause not in ("bad_request", "content_filter"))


@pytest.mark.parametrize(
    ("body", "kind", "cause", "word"),
    [
        (codec.encode({"error": BUSY}), "application/json", "rate_limited", "slow down"),
        (codec.encode([{"error": BUSY}]), "application/json", "rate_limited", "slow down"),
        (codec.encode({"error": BUSY}), "text/event-stream", "rate_limited", "slow down"),
        (codec.encode({"object": "error", "message": "no", "code": 400}), None, "bad_request", "no"),
        (codec.encode({"message": "no", "code": 503}), "application/json", "overloaded", "no"),
        (
            codec.encode({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
            "application/json",
            "quota",
            "insufficient balance",
        ),
        (b"upstream connect error", "text/plain", "bad_response", "upstream connect error"),
        (b"upstream connect error", "text/event-stream", "bad_response", "upstream connect error"),
        (b"Rate limit exceeded", None, "rate_limited", "Rate limit exceeded"),
        (b"<html><style>p {}</style><h1>Bad   Gateway</h1></html>", "text/html", "bad_response", "JSON: Bad Gateway"),
    ],
)
async def test_errors_in_place_of_an_answer(body: bytes, kind: str | None, cause: str, word: str) -> None:
    """An error under status 200 has its cause and its words, and the wait of the header if it names none."""
    with pytest.raises(ProviderError, match=word) as caught:
        await said(response(body, kind, "retry-after: 7\r\n"))
    wait = 1.5 if b"1.5" in body else 7.0
    assert (caught.value.cause, caught.value.retry_after) == (cause, wait)


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource", "abort"])
async def test_reasons_of_servers_that_broke_off(reason: str) -> None:
    """Such an answer is none, and is asked for again."""
    with pytest.raises(ProviderError, match=reason) as caught:
        await said(response(events(delta("hel"), delta("", reason), DONE)))
    assert (caught.value.cause, caught.value.retryable) == ("server_error", True)


FULL: dict[str, Any] = {"role": "assistant", "content": "hello", "reasoning_content": "hm"}
CALL: dict[str, Any] = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":"x"}'}}


@pytest.mark.parametrize("last", [{"message": FULL}, {"message": FULL, "delta": {}}])
async def test_a_whole_message_behind_its_stream_says_nothing_twice(last: dict[str, Any]) -> None:
    """MiniMax repeats the answer in its last chunk; an answer that came in one chunk alone is read from there."""
    end = {"choices": [{"finish_reason": "stop", **last}]}
    pieces: list[Emitted] = []
    reply = await said(response(events(delta(reasoning_content="hm"), delta("hel"), delta("lo"), end)), pieces=pieces)
    assert reply.message.text == "hello" == "".join(each.text for each in pieces if isinstance(each, TextPiece))
    assert [each.text for each in reply.message.blocks if isinstance(each, ReasoningBlock)] == ["hm"]
    assert (await said(response(events(end)))).message.text == "hello"
    calls = {"choices": [{"finish_reason": "tool_calls", "message": {"content": "", "tool_calls": [CALL]}}]}
    spelled = CALL | {"function": {"name": "weather", "arguments": '{"city": "x"}'}}
    nameless = {name: value for name, value in CALL.items() if name != "id"}
    others = [{"choices": [{"message": {"content": "", "tool_calls": [each]}}]} for each in (spelled, nameless)]
    for stream in (events(calls), *(events(delta(tool_calls=[CALL]), each) for each in (calls, *others))):
        (call_,) = (await said(response(stream + event(delta("", "tool_calls"))))).message.tool_calls
        assert (call_.id, call_.args) == ("c1", {"city": "x"})


async def test_a_whole_message_says_what_its_stream_has_not() -> None:
    """A text of which the stream has shown the reasoning alone is read from the whole message."""
    end = {"choices": [{"finish_reason": "stop", "message": FULL}]}
    thought, text = (await said(response(events(delta(reasoning_content="hm"), end)))).message.blocks
    assert (getattr(thought, "text", ""), getattr(text, "text", "")) == ("hm", "hello")


@pytest.mark.parametrize(
    "last",
    [
        delta("", "stop") | {"x_groq": {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}},
        {"choices": [{"delta": {"content": ""}, "finish_reason": "stop", "usage": used(9, 2)["usage"]}]},
    ],
)
async def test_counts_elsewhere(last: dict[str, Any]) -> None:
    """Counts of tokens are read where Groq and Moonshot have them."""
    usage = (await said(response(events(delta("hello"), last, DONE)))).usage
    assert (usage.input_tokens, usage.output_tokens, usage.estimated) == (9, 2, False)


async def read_as(dialect: Any, answer: bytes) -> AssistantMessage:
    """Return what a model says whose server has another protocol."""

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(answer)

    async with serve(handle) as url:
        server = ModelServer(name="srv", base_url=f"{url}/v1", dialect=dialect)
        async with open_providers({}, servers=[server]) as providers:
            return (await providers.resolve("m", "srv").provider.complete(request("m"), lambda _: None)).message


def item_event(kind: str, **item: object) -> dict[str, Any]:
    """Return an event of the responses protocol about an item, without its place."""
    return {"type": f"response.output_item.{kind}", "item": item}


NO_PLACES = (
    item_event("added", type="reasoning", id="r"),
    {"type": "response.reasoning_text.delta", "item_id": "r", "delta": "hm"},
    item_event("added", type="message", id="m"),
    {"type": "response.output_text.delta", "item_id": "m", "delta": "hel"},
    {"type": "response.output_text.delta", "delta": "lo"},
    item_event("added", type="function_call", id="f", call_id="c1", name="weather"),
    {"type": "response.function_call_arguments.delta", "item_id": "f", "delta": '{"city":"x"}'},
    item_event("done", type="function_call", id="f", call_id="c1", name="weather", arguments={"city": "x"}),
    {"type": "response.done", "response": {"status": "completed", "output": []}},
)


async def test_responses_of_other_servers() -> None:
    """Items without a place are told apart by their ids; texts and arguments are read in other forms, too."""
    reasoning, text, call_ = (await read_as("openai-responses", response(events(*NO_PLACES)))).blocks
    assert (getattr(reasoning, "text", ""), getattr(text, "text", "")) == ("hm", "hello")
    assert isinstance(call_, ToolUseBlock)
    assert (call_.args, call_.invalid_args) == ({"city": "x"}, None)
    whole = {"status": "completed", "output": [{"type": "message", "content": "hello"}]}
    assert (await read_as("openai-responses", response(codec.encode(whole)))).text == "hello"


@pytest.mark.parametrize("first", [{"id": "f1", "call_id": "c1"}, {"call_id": "c1"}, {}])
async def test_a_call_without_a_place_is_made_once(first: dict[str, Any]) -> None:
    """A server may tell the ids of an item at its end alone, or have another one in each event."""
    args = {"name": "weather", "arguments": '{"city":"x"}'}
    stream: list[dict[str, Any]] = [
        item_event("added", type="message", id="m1"),
        {"type": "response.output_text.delta", "item_id": "m2", "delta": "hello"},
        item_event("done", type="message", id="m3", content="hello"),
        item_event("added", type="function_call", name="weather", **first),
        {"type": "response.function_call_arguments.delta", "item_id": "f2", "delta": args["arguments"]},
        item_event("done", type="function_call", id="f3", call_id="c1", **args),
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    message = await read_as("openai-responses", response(events(*stream)))
    assert message.text == "hello"
    assert [(each.id, each.args) for each in message.tool_calls] == [("c1", {"city": "x"})]


async def test_a_list_in_place_of_a_stream_of_google() -> None:
    """A proxy that does not pass `alt=sse` on gets all chunks in one list."""
    chunks: list[Any] = [{"candidates": [{"content": {"parts": [{"text": each}]}}]} for each in ("hel", "lo")]
    chunks[1]["candidates"][0]["finishReason"] = "STOP"
    assert (await read_as("gemini", response(codec.encode(chunks), "application/json"))).text == "hello"


async def test_messages_of_other_servers() -> None:
    """The end of another protocol ends an answer, too, and arguments may be a text; none of them is left out."""
    asked = opened(0, "tool_use", id="t", name="weather", input='{"city":"x"}')
    (call_,) = (await read_as("anthropic", response(events(start(), asked, stopped("tool_use"), DONE)))).tool_calls
    assert (call_.args, call_.invalid_args) == ({"city": "x"}, None)


async def test_a_code_of_success_is_no_error() -> None:
    """Some servers say in each chunk, and beside their counts, that all is well."""
    fine = {"base_resp": {"status_code": 0, "status_msg": ""}, "code": 0, "message": "Success"}
    chunks = [delta("hel") | fine, delta("lo", "stop") | fine, used(9, 2) | fine, DONE]
    reply = await said(response(events(*chunks)))
    assert (reply.message.text, reply.usage.output_tokens) == ("hello", 2)


@sizes
@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nplan\n</think>\n\nHello", "plan", "Hello"),
        ("\n<think>a < b</think>Hello <think>x</think>", "a < b", "Hello <think>x</think>"),
        ("<thinking>plan</thinking>Hello", "plan", "Hello"),
        ("<think>\n\n</think>\n\nHello", "", "Hello"),
        ("<think>cut at the ca</thi", "cut at the ca</thi", ""),
        ("<thin", "", "<thin"),
        ("<b>bold</b>", "", "<b>bold</b>"),
        ("  Hello", "", "  Hello"),
        ("The tag <think>x</think> is text", "", "The tag <think>x</think> is text"),
        ("plan\n</think>\n\nHello", "plan", "Hello"),
        ("Put `</think>` there", "", "Put `</think>` there"),
    ],
)
async def test_reasoning_between_tags(text: str, reasoning: str, answer: str, size: int) -> None:
    """Tags at the head of a text hold reasoning, wherever it is cut; a switch of the provider leaves it as it is."""
    chunks = [delta(text[at : at + size]) for at in range(0, len(text), size)]
    pieces: list[Emitted] = []
    reply = await said(response(events(*chunks, delta(None, "stop"), DONE)), pieces=pieces)
    thoughts = "".join(block.text for block in reply.message.blocks if isinstance(block, ReasoningBlock))
    assert (thoughts, reply.message.text) == (reasoning, answer)
    if not text.startswith("plan"):  # the end of reasoning whose beginning is not marked comes too late for the pieces
        assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == answer
        assert "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece)) == reasoning
    plain = await said(response(events(*chunks, delta(None, "stop"), DONE)), think_tags=False)
    assert plain.message == AssistantMessage((TextBlock(text),))


ODD_IDS = ("call_1__thought__" + "CiQB+/=" * 400, "functions.weather:0", "a b", "é")


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("own", ODD_IDS)
async def test_the_maker_of_an_id_gets_it_back(dialect: Any, own: str) -> None:
    """An id may have a signature within it: call and result have it as it came; another model gets a plain one."""
    whole: dict[str, Any] = {
        "openai-chat": {
            "choices": [
                {
                    "message": {"tool_calls": [{"id": own, "function": {"name": "weather", "arguments": "{}"}}]},
                    "finish_reason": "tool_calls",
                }
            ]
        },
        "openai-responses": {
            "status": "completed",
            "output": [{"type": "function_call", "call_id": own, "name": "weather", "arguments": "{}"}],
        },
        "anthropic": {
            "content": [{"type": "tool_use", "id": own, "name": "weather", "input": {}}],
            "stop_reason": "tool_use",
        },
        "gemini": {
            "candidates": [
                {
                    "content": {"parts": [{"functionCall": {"id": own, "name": "weather", "args": {}}}]},
                    "finishReason": "STOP",
                }
            ]
        },
    }
    asked: list[Any] = []

    async def handle(sent: Request, stream: trio.SocketStream) -> None:
        asked.append(sent.body)
        await stream.send_all(status(200, whole[dialect]))

    async with serve(handle) as url:
        server = ModelServer(name="srv", base_url=f"{url}/v1", dialect=dialect)
        async with open_providers({}, servers=[server]) as providers:
            ask = providers.resolve("m", "srv").provider.complete
            message = (await ask(request("m", "hi", tools=(WEATHER,)), lambda _: None)).message
            kept = codec.decode_message(codec.encode(message))
            (call,) = message.tool_calls
            results = ToolResultsMessage((ToolResult(call.id, "sunny"),))
            for model in ("m", "another"):
                await ask(request(model, "hi", kept, results, tools=(WEATHER,)), lambda _: None)
    counts = [codec.encode(body).count(codec.encode(own)) for body in asked]
    assert counts == [0, 2, 0]


LOOK = {"id": "c1", "function": {"name": "weather", "arguments": "{}"}}
SIGNED = {"google": {"thought_signature": "S=="}}


def fragment(**own: object) -> dict[str, Any]:
    """Return a chunk with a part of OpenRouter's reasoning."""
    return delta(reasoning=own.get("text"), reasoning_details=[{"type": "reasoning.text", "index": 0, **own}])


GO_BACK: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "DeepSeek": ([delta(reasoning_content="I "), delta(reasoning_content="look.")], {"reasoning_content": "I look."}),
    "DeepSeek without a thought": ([delta("", reasoning_content="")], {"reasoning_content": ""}),
    "vLLM and Groq": ([delta(reasoning="I look.")], {"reasoning": "I look."}),
    "OpenRouter": (
        [
            fragment(text="I ", format="f", id=None),
            fragment(text="look."),
            fragment(signature="S=="),
            delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "A", "index": 1, "id": "r1"}]),
            delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "B", "index": 1, "id": "r2"}]),
        ],
        {
            "reasoning": "I look.",
            "reasoning_details": [
                {
                    "type": "reasoning.text",
                    "index": 0,
                    "text": "I look.",
                    "format": "f",
                    "id": None,
                    "signature": "S==",
                },
                {"type": "reasoning.encrypted", "data": "A", "index": 1, "id": "r1"},
                {"type": "reasoning.encrypted", "data": "B", "index": 1, "id": "r2"},
            ],
        },
    ),
    "LiteLLM": (
        [
            delta(thinking_blocks=[{"type": "thinking", "thinking": "I "}]),
            delta(thinking_blocks=[{"type": "thinking", "thinking": "look."}]),
            delta(thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "S=="}]),
        ],
        {"thinking_blocks": [{"type": "thinking", "thinking": "I look.", "signature": "S=="}]},
    ),
    "tags": ([delta("<think>I look.</th"), delta("ink>see")], {"content": "<think>\nI look.\n</think>\n\nsee"}),
    "Gemini's text": ([delta("see", extra_content=SIGNED)], {"content": "see", "extra_content": SIGNED}),
}


@pytest.mark.parametrize("name", GO_BACK)
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_goes_back(name: str, streamed: bool) -> None:  # noqa: FBT001 - a column
    """A strict server gets back what it sent with its calls, and another model gets none of it."""
    chunks, wanted = GO_BACK[name]
    if not streamed and len(chunks) > 1:
        return
    asks: list[list[dict[str, Any]]] = []

    async def handle(asked: Request, stream: trio.SocketStream) -> None:
        asks.append(asked.body["messages"])
        answers = [each for each in asked.body["messages"] if each["role"] == "assistant"]
        if asked.body["model"] == GPT and any(each.items() < wanted.items() for each in answers):
            await stream.send_all(status(400, {"error": {"message": "it must be passed back"}}))
            return
        calls = delta(tool_calls=[{"index": 0, **LOOK, "extra_content": SIGNED}])
        if not streamed:
            message = chunks[0]["choices"][0]["delta"] | calls["choices"][0]["delta"]
            body = codec.encode({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
            await stream.send_all(response(body, "application/json"))
            return
        await stream.send_all(response(events(*chunks, calls, delta(None, "tool_calls"), DONE)))

    async with serve(handle) as url, open_providers(environ(url), servers=servers(f"{url}/v1")) as providers:
        provider = providers.resolve(GPT, "chat").provider
        context: list[Message] = [UserMessage("hi")]
        for _ in range(2):
            reply = await provider.complete(request(GPT, *context, tools=(WEATHER,)), lambda _: None)
            message = codec.decode_message(codec.encode(reply.message))  # as a store has it
            assert isinstance(message, AssistantMessage)
            results = [ToolResult(each.id, "sun") for each in message.tool_calls]
            context += [message, ToolResultsMessage(tuple(results))]
        await provider.complete(request(GPT, *context), lambda _: None)
        for sent in (each for each in asks[-1] if each["role"] == "assistant"):
            assert {key: sent[key] for key in sent if key in wanted} == wanted
            assert [each["extra_content"] for each in sent["tool_calls"]] == [SIGNED]
        await provider.complete(request("another", *context), lambda _: None)
        for sent in (each for each in asks[-1] if each["role"] == "assistant"):
            assert sent.keys() == {"role", "content", "tool_calls"}
            assert all(each.keys() == {"id", "type", "function"} for each in sent["tool_calls"])


async def test_calls_of_others_beside_reasoning_that_goes_back() -> None:
    """A model that wants its reasoning back with calls gets an empty one with those that another model made."""
    asks: list[list[dict[str, Any]]] = []

    async def handle(asked: Request, stream: trio.SocketStream) -> None:
        asks.append(asked.body["messages"])
        await stream.send_all(response(events(delta("a", reasoning_content="hm"), delta(None, "stop"), DONE)))

    async with serve(handle) as url, open_providers(environ(url), servers=servers(f"{url}/v1")) as providers:
        provider = providers.resolve(GPT, "chat").provider
        own = (await provider.complete(request(GPT), lambda _: None)).message
        other = AssistantMessage((ReasoningBlock("x"), ToolUseBlock("c1", "weather")))
        results = ToolResultsMessage((ToolResult("c1", "sun"),))
        await provider.complete(request(GPT, UserMessage("hi"), own, UserMessage("go"), other, results), lambda _: None)
    assert [each.get("reasoning_content") for each in asks[-1]] == [None, "hm", None, "", None]


@pytest.mark.parametrize(
    ("url", "model", "signed"),
    [
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-3-pro", True),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-pro", False),
        ("https://router.test/v1", "gemini-3-pro", False),
    ],
)
def test_calls_of_others_at_google(url: str, model: str, signed: bool) -> None:  # noqa: FBT001 - a column
    """Google's server wants the first call of an answer signed also over chat completions; others are sent nothing."""
    context = ChatDialect().context(ModelEndpoint(OPENAI, url), model)
    calls = ToolUseBlock("c1", "weather"), ToolUseBlock("c2", "weather")
    results = ToolResultsMessage((ToolResult("c1", "sun"), ToolResult("c2", "rain")))
    sent = told(context, [UserMessage("hi"), AssistantMessage(calls), results])[1]["tool_calls"]
    assert [EXTRA in each for each in sent] == [signed, False]


async def test_reasoning_that_its_server_does_not_sign() -> None:
    """Over Anthropic's protocol it goes back to the model that made it, and to no other."""
    asks: list[list[dict[str, Any]]] = []

    async def handle(asked: Request, stream: trio.SocketStream) -> None:
        asks.append(asked.body["messages"])
        thought = [opened(0, "thinking", thinking="", signature=""), more(0, thinking="hm")]
        body = events(start(input_tokens=3), *thought, opened(1, "text", text=""), more(1, text="a"), stopped(), STOP)
        await stream.send_all(response(body))

    async with serve(handle) as url, open_providers(environ(url)) as providers:
        provider = providers.resolve(CLAUDE, None).provider
        message = (await provider.complete(request(CLAUDE), lambda _: None)).message
        context = UserMessage("hi"), codec.decode_message(codec.encode(message)), UserMessage("go")
        for model in (CLAUDE, "claude-another"):
            await provider.complete(request(model, *context), lambda _: None)
    text = {"type": "text", "text": "a"}
    assert asks[1][1]["content"] == [{"type": "thinking", "thinking": "hm", "signature": ""}, text]
    assert asks[2][1]["content"] == [text]


async def paced(provider: Provider, model: str, pieces: list[Emitted]) -> tuple[str, float]:
    """Return what a provider says, or the cause of its failure, and the seconds that it took."""
    began = trio.current_time()
    try:
        reply = await provider.complete(request(model), pieces.append)
    except ProviderError as exc:
        return f"{exc.cause}", trio.current_time() - began
    return reply.message.text, trio.current_time() - began


LATE: dict[str, tuple[Sequence[object], Sequence[object], Sequence[object]]] = {
    GPT: ([delta("a", "stop")], [delta("b")], [DONE]),
    CLAUDE: ([start(), opened(0, "text", text=""), more(0, text="a"), stopped()], [more(0, text="b")], [STOP]),
    "gemini-3-test": (
        [{"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}],
        [{"candidates": [{"content": {"parts": [{"text": "b"}]}}]}],
        [],
    ),
}


@pytest.mark.parametrize("model", LATE)
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.virtual_time
async def test_text_behind_the_stop_reason(model: str, breaks: bool) -> None:  # noqa: FBT001 - a column
    """It is waited for as long as any text, and a break behind it is one; nothing is cut in silence."""
    first, late, last = LATE[model]

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(HEAD + b"".join(chunk(event(each)) for each in first))
        for _time in range(5):
            await trio.sleep(4)
            await stream.send_all(b"".join(chunk(event(each)) for each in late))
        await trio.sleep(4)
        if breaks:
            await stream.aclose()
        else:
            await stream.send_all(b"".join(chunk(event(each)) for each in last) + END)

    async with serve(handle) as url, open_providers(environ(url)) as providers:
        pieces: list[Emitted] = []
        found, seconds = await paced(providers.resolve(model, None).provider, model, pieces)
    assert found == ("stream_broken" if breaks else "abbbbb")
    assert 24 <= seconds < 25


@pytest.mark.parametrize(
    ("last", "settings", "whole"),
    [
        ([used(9, 2), DONE], {}, True),
        ([DONE], {"without": ("finish_reason",)}, True),
        ([DONE], {}, False),
        ([used(9, 2)], {}, False),
        ([delta("") | {"usage": used(9, 2)["usage"]}, DONE], {}, False),
        ([], {"without": ("finish_reason",)}, False),
    ],
)
async def test_a_server_without_stop_reasons(last: list[Any], settings: Any, *, whole: bool) -> None:
    """Its first answer is whole if it has counted the tokens behind it, or if the settings say so, and it ends."""
    body = response(events(delta("hel"), delta("lo"), *last))
    if whole:
        assert (await said(body, **settings)).message.text == "hello"
        return
    with pytest.raises(ProviderError) as caught:
        await said(body, **settings)
    assert caught.value.cause == "stream_broken"


async def test_the_way_in_which_streams_end_is_known_by_models() -> None:
    """A model that gives no reasons is known by its second stream, whatever others do, and it does in one piece."""
    in_one_piece = codec.encode({"choices": [{"message": {"content": "hello"}}]})
    bodies = {"full": HELLO, "bare": events(delta("hello"), DONE), "whole": in_one_piece}
    served: list[str] = []

    async def handle(asked: Request, stream: trio.SocketStream) -> None:
        served.append(asked.body["model"])
        await stream.send_all(response(bodies["whole" if served == ["bare"] else served[-1]]))

    async with serve(handle) as url:
        server = ModelServer(name="srv", base_url=f"{url}/v1", dialect="openai-chat")
        async with open_providers({}, servers=[server]) as providers:
            ask = providers.resolve("bare", "srv").provider.complete
            for model in ("bare", "full", "bare", "bare"):
                if served == ["bare", "full"]:  # the first stream of the model may have been cut
                    with pytest.raises(ProviderError, match="half way"):
                        await ask(request(model), lambda _: None)
                else:
                    assert (await ask(request(model), lambda _: None)).message.text == "hello"
