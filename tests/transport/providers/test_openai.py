"""The chat completions protocol: requests written, answers read."""

from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import (
    GPT,
    KEY,
    SSE,
    WEATHER,
    answered,
    environ,
    in_parts,
    over,
    request,
    servers,
    streamed,
)
from tests.transport.providers.dialects import DONE, call, delta, told, used
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
from warren.models.model import Emitted, ReasoningPiece, TextPiece
from warren.transport.providers import open_providers, wire
from warren.transport.providers.kept import Maker
from warren.transport.providers.openai import ChatContext


async def sent(model: str = GPT, *messages: Message | str, base_url: str = "", **options: object) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    bodies: list[dict[str, Any]] = []

    def server(asked: httpx.Request) -> httpx.Response:
        bodies.append(codec.parse(asked.content))
        return httpx.Response(200, json={"choices": [{}]})

    await over(server, request(model, *messages, **options), settings={"OPENAI_BASE_URL": base_url})
    return bodies[0]


async def test_request() -> None:
    """A request goes to the official address with the key, streams and asks for the token counts."""

    def server(asked: httpx.Request) -> httpx.Response:
        assert str(asked.url) == "https://api.openai.com/v1/chat/completions"
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert codec.parse(asked.content) == {
            "model": GPT,
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return httpx.Response(200, json={"choices": [{}]})

    await over(server, request(GPT))


async def test_no_key_for_a_server_of_ones_own() -> None:
    """A server at another address is called without a key where none is set."""

    def server(asked: httpx.Request) -> httpx.Response:
        assert str(asked.url) == "http://127.0.0.1:9/v1/chat/completions"
        assert "authorization" not in asked.headers
        return httpx.Response(200, json={"choices": [{}]})

    await over(server, request("llama"), settings={"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1/"})


async def test_options() -> None:
    """Tools, the cap and the temperature are sent in the protocol's form."""
    body = await sent(GPT, tools=(WEATHER,), max_tokens=9, temperature=0.5, top_p=0.25)
    function = {"name": "weather", "description": WEATHER.description, "parameters": WEATHER.input_schema}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert (body["max_completion_tokens"], body["temperature"], body["top_p"]) == (9, 0.5, 0.25)


@pytest.mark.parametrize(
    ("model", "base_url", "field"),
    [
        ("gpt-4o", "", "max_completion_tokens"),
        ("llama", "http://127.0.0.1:9", "max_tokens"),
        ("o3", "http://127.0.0.1:9", "max_completion_tokens"),
        ("gpt-5-mini", "http://127.0.0.1:9", "max_completion_tokens"),
    ],
)
async def test_name_of_the_cap(model: str, base_url: str, field: str) -> None:
    """The cap has the name that the server knows."""
    body = await sent(model, base_url=base_url, max_tokens=9)
    assert {name: value for name, value in body.items() if name.startswith("max")} == {field: 9}


@pytest.mark.parametrize(
    ("model", "base_url", "off"),
    [("gpt-5.6", "", True), ("gpt-6", "", True), ("gpt-5-mini", "", False), ("gpt-5.6", "http://127.0.0.1:9", False)],
)
async def test_tools_without_reasoning(model: str, base_url: str, off: bool) -> None:  # noqa: FBT001 - a column
    """Newer models of the vendor take tools here only with reasoning off; nobody else is asked to."""
    assert ("reasoning_effort" in await sent(model, base_url=base_url, tools=(WEATHER,))) is off
    assert "reasoning_effort" not in await sent(model, base_url=base_url)


OWN = Maker("chat", "chat", GPT).keep({"field": "reasoning_content"})
CALL = ToolUseBlock("c1", "weather", {"city": "Rome"})
WIRE_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
ODD_ID = wire.call_id("c.1")
CONTINUE = {"role": "user", "content": "Continue."}

TRANSCRIPTS: dict[str, tuple[list[Message], list[dict[str, Any]]]] = {
    "plain": (
        [SystemMessage("be brief"), UserMessage("hi")],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
    ),
    "users in a row": ([UserMessage("a"), UserMessage("b")], [{"role": "user", "content": "a\n\nb"}]),
    "call and result": (
        [UserMessage("a"), AssistantMessage((TextBlock("see"), CALL)), ToolResultsMessage((ToolResult("c1", "sun"),))],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "see", "tool_calls": [WIRE_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        ],
    ),
    "failed results say so once": (
        [
            AssistantMessage((CALL,)),
            ToolResultsMessage(
                (ToolResult("c1", "no city", is_error=True), ToolResult("c2", "Error: no", is_error=True))
            ),
        ],
        [
            {"role": "assistant", "content": None, "tool_calls": [WIRE_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "Error: no city"},
            {"role": "tool", "tool_call_id": "c2", "content": "Error: no"},
        ],
    ),
    "malformed arguments stay valid JSON": (
        [AssistantMessage((ToolUseBlock("c.1", "a b", {}, '{"x'),)), ToolResultsMessage((ToolResult("c.1", "bad"),))],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": ODD_ID,
                        "type": "function",
                        "function": {"name": "a_b_c8687a08", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": ODD_ID, "content": "bad"},
        ],
    ),
    "reasoning and unknown blocks are left out": (
        [
            UserMessage("a"),
            AssistantMessage(
                (ReasoningBlock("hm", {"x": 1}), TextBlock("b"), UnknownBlock("video", {}), TextBlock("c"))
            ),
            UserMessage("d"),
        ],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "bc"},
            {"role": "user", "content": "d"},
        ],
    ),
    "an answer without blocks is left out": (
        [UserMessage("a"), AssistantMessage(()), AssistantMessage((ReasoningBlock("hm"),)), UserMessage("b")],
        [{"role": "user", "content": "a\n\nb"}],
    ),
    "interrupted answer at the end": (
        [UserMessage("a"), AssistantMessage((TextBlock("half"),), "cancelled")],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "half"}, CONTINUE],
    ),
    "nothing but a system message": (
        [SystemMessage("be brief"), SystemMessage("")],
        [{"role": "system", "content": "be brief"}, CONTINUE],
    ),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str) -> None:
    """Every transcript that we can hold becomes one that the protocol takes."""
    messages, expected = TRANSCRIPTS[name]
    assert told(ChatContext("chat", GPT), messages) == expected


async def test_text_stream() -> None:
    """Text arrives piece by piece; the usage-only last chunk is booked."""
    outcome = await streamed(
        request(GPT), delta("", role="assistant"), delta("Hel"), delta("lo"), delta(None, "stop"), used(9, 2), DONE
    )
    assert outcome.pieces == [TextPiece("Hel"), TextPiece("lo")]
    assert outcome.reply.message == AssistantMessage((TextBlock("Hello"),))
    assert outcome.reply.usage == Usage(9, 2)


async def test_cached_tokens() -> None:
    """Cached input is counted within the input, and apart."""
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    outcome = await streamed(request(GPT), delta("x", "stop"), {"choices": [], "usage": usage})
    assert outcome.reply.usage == Usage(9, 2, 0, 4)


@pytest.mark.parametrize(
    "usage", [[], [{"choices": [], "usage": None}], [{"choices": [], "usage": {"prompt_tokens": "x"}}]]
)
async def test_usage_absent(usage: list[object]) -> None:
    """Without token counts, or with nonsense for them, they are estimated and marked."""
    outcome = await streamed(request(GPT), delta("12345678", "stop"), *usage, DONE)
    assert outcome.reply.usage.estimated
    assert outcome.reply.usage.output_tokens == 2
    assert 20 < outcome.reply.usage.input_tokens < 60


async def test_running_usage() -> None:
    """A server that counts in every chunk is booked with its last count."""
    outcome = await streamed(
        request(GPT), delta("a") | used(9, 1) | delta("a"), delta("b", "stop") | {"usage": used(9, 2)["usage"]}
    )
    assert outcome.reply.usage == Usage(9, 2)


async def test_stream_without_done() -> None:
    """An answer without the last event is whole once the stop reason was seen."""
    outcome = await streamed(request(GPT), delta("hi", "stop"))
    assert outcome.reply.message.text == "hi"


async def test_stream_with_done_alone() -> None:
    """The last event without a stop reason is the end of a cut answer, unless the server never gives a reason."""
    ends = [[delta("hi"), DONE, delta("late")]] * 3 + [[delta("hi", "stop"), DONE]] + [[delta("hi"), DONE]]
    bodies = iter(ends)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=SSE, content=events(*next(bodies))))
    async with (
        httpx.AsyncClient(transport=transport) as client,
        open_providers(environ(), client=client, servers=servers()) as providers,
    ):
        provider = providers.resolve(GPT, "chat").provider
        for whole_ in (False, True, True, True, False):
            if whole_:
                reply = await provider.complete(request(GPT), lambda _: None)
                assert reply.message == AssistantMessage((TextBlock("hi"),))
                continue
            with pytest.raises(ProviderError) as caught:
                await provider.complete(request(GPT), lambda _: None)
            assert (caught.value.cause, caught.value.retryable) == ("stream_broken", True)


@pytest.mark.parametrize(("args", "reason"), [('{"city": "Ro', "max_tokens"), ('{"city": "Rome"}', "tool_use")])
async def test_a_stream_without_reasons_that_ends_within_a_call(args: str, reason: str) -> None:
    """A server that never gives reasons has cut a call whose arguments are not whole, so the call does not run."""
    body = events(call(0, args, id="1", name="weather"), DONE)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=SSE, content=body))
    async with (
        httpx.AsyncClient(transport=transport) as client,
        open_providers(environ(), client=client, servers=servers()) as providers,
    ):
        ask = providers.resolve(GPT, "chat").provider.complete
        with pytest.raises(ProviderError):
            await ask(request(GPT), lambda _: None)
        assert (await ask(request(GPT), lambda _: None)).message.stop_reason == reason


async def test_content_and_reasoning_in_one_chunk() -> None:
    """Reasoning and text of one chunk are two pieces; the reasoning becomes one block before the text."""
    outcome = await streamed(
        request(GPT),
        delta("", reasoning_content="hm"),
        delta("a", reasoning_content="m"),
        delta("b", reasoning="..."),
        delta(None, "stop"),
    )
    assert outcome.pieces == [
        ReasoningPiece("hm"),
        ReasoningPiece("m"),
        TextPiece("a"),
        ReasoningPiece("..."),
        TextPiece("b"),
    ]
    assert outcome.reply.message.blocks == (ReasoningBlock("hmm...", OWN), TextBlock("ab"))


async def test_pieces_that_arrive_together() -> None:
    """They are one piece of each kind, in their order, also if the answer breaks off behind them."""
    said = [delta("", reasoning_content="h"), delta("", reasoning_content="m"), delta("so "), delta("it"), delta(" is")]
    outcome = await in_parts(request(GPT), [events(*said), events(delta("!", "stop"), DONE)])
    assert outcome.pieces == [ReasoningPiece("hm"), TextPiece("so it is"), TextPiece("!")]
    assert outcome.reply.message.blocks == (ReasoningBlock("hm", OWN), TextBlock("so it is!"))
    pieces: list[Emitted] = []
    with pytest.raises(ProviderError):
        await in_parts(request(GPT), [events(*said, {"error": {"message": "no more"}})], pieces)
    assert pieces == [ReasoningPiece("hm"), TextPiece("so it is")]


async def test_tool_calls() -> None:
    """Fragments by index become calls, also with the name repeated, and the stop reason tells of them."""
    outcome = await streamed(
        request(GPT),
        delta("see"),
        call(0, "", id="c1", name="weather"),
        call(0, '{"city":', name="weather"),
        call(1, "", id="c2", name="now"),
        call(0, '"Rome"}', name="weather"),
        delta(None, "tool_calls"),
        DONE,
    )
    assert outcome.reply.message == AssistantMessage(
        (TextBlock("see"), CALL, ToolUseBlock("c2", "now", {})), "tool_use"
    )


@pytest.mark.parametrize(
    ("finish", "stop_reason"),
    [
        ("stop", "tool_use"),
        ("function_call", "tool_use"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("whatever", "tool_use"),
    ],
)
async def test_stop_reason_with_calls(finish: str, stop_reason: str) -> None:
    """A server that stops with `stop` although it calls tools is understood; an answer cut short stays one."""
    outcome = await streamed(request(GPT), call(0, "{}", id="c", name="f"), delta(None, finish))
    assert outcome.reply.message.stop_reason == stop_reason


async def test_malformed_arguments() -> None:
    """Arguments that are not a JSON object are kept verbatim beside empty ones."""
    outcome = await streamed(request(GPT), call(0, '{"city": Rome}', id="c", name="weather"), delta(None, "tool_calls"))
    assert outcome.reply.message.tool_calls == (ToolUseBlock("c", "weather", {}, '{"city": Rome}'),)


async def test_call_id_of_an_earlier_answer() -> None:
    """A server that numbers its calls from 0 in every answer does not make two calls with one id."""
    before: list[Message] = [
        UserMessage("a"),
        AssistantMessage((CALL,)),
        ToolResultsMessage((ToolResult("c1", "sun"),)),
    ]
    asked = request(GPT, *before)
    calls = call(0, "{}", id="c1", name="weather"), call(1, "{}", name="weather")
    outcome = await streamed(asked, *calls, delta(None, "tool_calls"), DONE)
    first, second = outcome.reply.message.tool_calls
    assert len({"c1", "", first.id, second.id}) == 4


async def test_empty_answer() -> None:
    """An answer without anything in it is returned as it is."""
    outcome = await streamed(request(GPT), delta("", "stop"), DONE)
    assert outcome.pieces == []
    assert outcome.reply.message == AssistantMessage(())


async def test_refusal() -> None:
    """A model's refusal is its text."""
    outcome = await streamed(request(GPT), delta(None, refusal="I will not."), delta(None, "stop"))
    assert outcome.text == outcome.reply.message.text == "I will not."


async def test_lone_surrogate() -> None:
    """A lone surrogate, in the text or in arguments, does not come through."""
    raw = r'{"choices": [{"delta": {"content": "a\ud83d"}, "finish_reason": "stop"}]}'
    outcome = await streamed(request(GPT), raw)
    assert outcome.text == outcome.reply.message.text == "a\ufffd"


async def test_other_choices_and_odd_chunks() -> None:
    """Other choices than the first, and members that are null or unknown, are passed over."""
    other = {"choices": [{"index": 1, "delta": {"content": "no"}}]}
    odd = {"choices": [{"delta": None, "finish_reason": None}]}, {"choices": None}, {"id": 1}, {"usage": 7}
    outcome = await streamed(request(GPT), other, *odd, "", delta([{"type": "text", "text": "yes"}], "stop"))
    assert outcome.text == outcome.reply.message.text == "yes"


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": "x"},
        {"choices": ["x"]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": 7}}]},
        {"choices": [{"delta": {"tool_calls": {}}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": "x", "arguments": 7}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": 7}]},
    ],
)
async def test_members_of_the_wrong_type(chunk: dict[str, Any]) -> None:
    """A chunk that does not have the protocol's form is no part of an answer."""
    for data in ((chunk, DONE), (delta("a", "stop"), chunk, DONE)):
        with pytest.raises(ProviderError) as caught:
            await streamed(request(GPT), *data)
        assert (caught.value.cause, caught.value.retryable) == ("bad_response", True)
    with pytest.raises(ProviderError, match="the server sent"):
        await answered(request(GPT), chunk | {"choices": chunk["choices"]})


async def test_an_end_without_an_answer() -> None:
    """The end of a stream, or plain JSON without choices, is no empty answer."""
    for answer in (streamed(request(GPT), DONE), answered(request(GPT), {"choices": []})):
        with pytest.raises(ProviderError, match="no answer") as caught:
            await answer
        assert (caught.value.cause, caught.value.retryable) == ("bad_response", True)


async def test_a_character_that_is_split_over_two_chunks() -> None:
    """Its halves become one character: in the text, the reasoning and the arguments of a call, and in every piece."""
    halves = r"\ud83d", r"\ude00"
    chunks = [
        f'{{"choices": [{{"delta": {{"content": "{half}", "reasoning": "{half}", "tool_calls": [{{"index": 0,'
        f' "id": "c", "function": {{"name": "{name}", "arguments": "{arguments}"}}}}]}}}}]}}'
        for half, name, arguments in zip(
            halves, ("say", ""), (r"{\"a\": \"" + halves[0], halves[1] + r"\"}"), strict=True
        )
    ]
    outcome = await streamed(request(GPT), *chunks, delta(None, "tool_calls"), DONE)
    assert outcome.reply.message.blocks == (
        ReasoningBlock("\U0001f600", Maker("chat", "chat", GPT).keep({"field": "reasoning"})),
        TextBlock("\U0001f600"),
        ToolUseBlock("c", "say", {"a": "\U0001f600"}),
    )
    assert outcome.pieces == [ReasoningPiece("\U0001f600"), TextPiece("\U0001f600")]


async def test_finish_reason_error() -> None:
    """A stream whose stop reason is an error has failed."""
    with pytest.raises(ProviderError) as caught:
        await streamed(request(GPT), delta("a"), delta(None, "error"))
    assert caught.value.retryable


async def test_plain_json() -> None:
    """A plain JSON answer, although a stream was asked for, is used: its text is one piece."""
    message = {
        "content": "see",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
            {"id": "c2", "function": {"name": "now", "arguments": {"zone": "UTC"}}},
        ],
    }
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}]} | {"usage": used(9, 2)["usage"]}
    outcome = await answered(request(GPT), body)
    assert outcome.pieces == [ReasoningPiece("hm"), TextPiece("see")]
    assert outcome.reply.message == AssistantMessage(
        (ReasoningBlock("hm", OWN), TextBlock("see"), CALL, ToolUseBlock("c2", "now", {"zone": "UTC"})), "tool_use"
    )
    assert outcome.reply.usage == Usage(9, 2)


STREAM = events(delta("grüße \N{GRINNING FACE}"), call(0, '{"a": "ü"}', id="c", name="f"), delta(None, "stop"), DONE)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
async def test_bytes_cut_anywhere(cuts: list[int]) -> None:
    """However the network cuts a stream, within an event, a line or a character, the answer is the same."""
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[left:right] for left, right in pairwise(edges) if left < right]
    outcome = await in_parts(request(GPT), parts)
    assert outcome.reply.message == AssistantMessage(
        (TextBlock("grüße \N{GRINNING FACE}"), ToolUseBlock("c", "f", {"a": "ü"})), "tool_use"
    )
