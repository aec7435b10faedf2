"""Answers as data: how each provider is asked for them, and what comes back."""

from typing import Any

import httpx
import pytest
import trio

from tests.support.runtime import Recorder, open_runtime
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, serve, status
from tests.transport.providers.calls import CLAUDE, GPT, WEATHER, answered, environ, on_socket, over, request, streamed
from tests.transport.providers.dialects import DONE, STOP, delta, more, opened, start, stopped, used
from warren.conversation import codec
from warren.conversation.events import ExtractionCompleted, TextDelta
from warren.conversation.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
)
from warren.conversation.messages import UserMessage as User
from warren.conversation.usage import Usage
from warren.models.model import Emitted, ModelRequest
from warren.structured.output import correction
from warren.structured.output import request as question
from warren.transport.providers import ScriptedModel, ScriptedStep, open_providers

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LIST = {"type": "array"}
FORM = {"type": "json_schema", "json_schema": {"name": "structured_output", "schema": SCHEMA, "strict": False}}
CALL = ToolUseBlock("c1", "weather", {"city": "Rome"})
AFTER_TOOLS: tuple[Message, ...] = (
    User("hi"),
    AssistantMessage((CALL,), "tool_use"),
    ToolResultsMessage((ToolResult("c1", "sun"),)),
    AssistantMessage((TextBlock("Sunny, Ann."),)),
    question(SCHEMA),
)


async def sent(asked: ModelRequest) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    bodies: list[dict[str, Any]] = []

    def server(received: httpx.Request) -> httpx.Response:
        bodies.append(codec.parse(received.content))
        return httpx.Response(200, json={"choices": [{}], "content": []})

    await over(server, asked)
    return bodies[0]


async def test_the_chat_protocol_has_a_form_for_it() -> None:
    """The schema goes as the format of the response, not as a strict one; a request without one has no format."""
    assert (await sent(request(GPT, answer_schema=SCHEMA)))["response_format"] == FORM
    assert "response_format" not in await sent(request(GPT))


async def test_the_messages_protocol_has_a_tool_for_it() -> None:
    """The schema goes as the only tool, which the model has to call, also after tools of the conversation."""
    body = await sent(request(CLAUDE, *AFTER_TOOLS, answer_schema=SCHEMA))
    (offered,) = body["tools"]
    assert (offered["name"], offered["input_schema"]) == ("structured_output", SCHEMA)
    assert body["tool_choice"] == {"type": "tool", "name": "structured_output"}
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert "tool_choice" not in await sent(request(CLAUDE, tools=(WEATHER,)))


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_what_is_no_object_is_asked_for_in_words_alone(model: str) -> None:
    """The protocols force nothing but objects; the request itself asks for the rest."""
    body = await sent(request(model, question(LIST), answer_schema=LIST))
    assert not {"response_format", "tools", "tool_choice"} & body.keys()
    assert '{\\"type\\":\\"array\\"}' in codec.encode(body).decode()


@pytest.mark.parametrize(
    ("parts", "text"),
    [(('{"name"', ': "Ann"}'), '{"name":"Ann"}'), (('{"name": "A',), '{"name": "A'), ((), "{}")],
    ids=["whole", "cut", "nothing"],
)
async def test_the_forced_call_is_the_answer(parts: tuple[str, ...], text: str) -> None:
    """Its arguments are the text of the answer, also where they are no JSON; it calls no tool."""
    block = opened(0, "tool_use", id="toolu_0", name="structured_output", input={})
    pieces: list[Emitted] = []
    outcome = await streamed(
        request(CLAUDE, answer_schema=SCHEMA),
        start(input_tokens=9),
        block,
        *(more(0, partial_json=part) for part in parts),
        stopped("tool_use", output_tokens=3),
        STOP,
        pieces=pieces,
    )
    message = outcome.reply.message
    assert (message.text, message.tool_calls, message.stop_reason) == (text, (), "end_turn")
    assert (outcome.reply.usage, pieces) == (Usage(9, 3), [])


async def test_an_answer_that_was_not_streamed() -> None:
    """It is the same in one piece; a model that speaks besides is heard, one that was cut says so."""
    content = [
        {"type": "text", "text": "Here: "},
        {"type": "tool_use", "id": "t", "name": "structured_output", "input": {"name": "Ann"}},
    ]
    body = {"content": content, "stop_reason": "max_tokens", "usage": {"input_tokens": 1, "output_tokens": 1}}
    message = (await answered(request(CLAUDE, answer_schema=SCHEMA), body)).reply.message
    assert (message.text, message.stop_reason) == ('Here: {"name":"Ann"}', "max_tokens")


async def test_over_sockets() -> None:
    """Both protocols stream the answer over a connection."""
    got: list[Request] = []

    async def server(asked: Request, stream: trio.SocketStream) -> None:
        got.append(asked)
        await stream.send_all(HEAD)
        for item in _answer(asked, '{"name": "Ann"}'):
            await stream.send_all(chunk(event(item)))
        await stream.send_all(END)

    for model in (GPT, CLAUDE):
        outcome = await on_socket(server, request(model, question(SCHEMA), answer_schema=SCHEMA))
        assert codec.parse(outcome.reply.message.text) == {"name": "Ann"}
        assert outcome.reply.message.tool_calls == ()
    assert [asked.body.get("response_format") for asked in got] == [FORM, None]


def _answer(asked: Request, text: str) -> list[Any]:
    """Return the events of an answer in the protocol of the request: forced as it asks for."""
    if asked.path == "/v1/chat/completions":
        return [delta(text), delta("", "stop"), used(9, 3), DONE]
    forced = "tool_choice" in asked.body
    block = opened(0, "tool_use", id="t", name="structured_output", input={}) if forced else opened(0, "text", text="")
    part = more(0, partial_json=text) if forced else more(0, text=text)
    return [start(input_tokens=9), block, part, stopped("tool_use" if forced else "end_turn", output_tokens=3), STOP]


@pytest.mark.parametrize("knows", [True, False], ids=["knows the form", "refuses the form"])
@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_whole_turn(model: str, *, knows: bool) -> None:
    """The turn's own call has no form and streams; the question for data has it, or goes in words to who refuses it."""
    forms: list[bool] = []

    async def server(asked: Request, stream: trio.SocketStream) -> None:
        forms.append(bool({"response_format", "tool_choice"} & asked.body.keys()))
        if forms[-1] and not knows:
            await stream.send_all(status(400, {"error": {"message": "unknown field"}}))
            return
        await stream.send_all(HEAD)
        text = "It is Ann." if len(asked.body["messages"]) == 1 else '{"name": "Ann"}'
        for item in _answer(asked, text):
            await stream.send_all(chunk(event(item)))
        await stream.send_all(END)

    recorder = Recorder()
    async with (
        serve(server) as url,
        open_providers(environ(url)) as providers,
        open_runtime(providers.resolve(model, None).provider) as service,
    ):
        result = await service.create_session("Who?", output_schema=SCHEMA, on_event=recorder)
    assert (result.text, result.structured_output) == ("It is Ann.", {"name": "Ann"})
    assert "".join(event.delta for event in recorder.only(TextDelta)) == "It is Ann."
    assert recorder.only(ExtractionCompleted) == [ExtractionCompleted(1)]
    assert forms == ([False, True] if knows else [False, True, False])


async def test_the_echo_repeats_itself() -> None:
    """Asked for data it says its last answer once more, whatever was wrong with it."""
    context: list[Message] = [User("hi"), AssistantMessage((TextBlock('{"a": 1}'),)), question(SCHEMA)]
    async with open_providers({}) as providers:
        echo = providers.resolve("echo", None).provider
        for messages in (context, context[:1]):
            reply = await echo.complete(ModelRequest("echo", messages, answer_schema=SCHEMA), lambda _: None)
            assert reply.message.text == ('{"a": 1}' if messages is context else "")


async def test_a_script_has_answers_of_its_own() -> None:
    """They come one an attempt, then the step's text; the session's next step is not touched by them."""
    steps = (ScriptedStep(text="one", structured=("a", "b")), ScriptedStep(text="two"))
    script = ScriptedModel(steps)
    context: list[Message] = [User("hi"), AssistantMessage((TextBlock("one"),)), question(SCHEMA)]
    heard = []
    for _attempt in range(3):
        reply = await script.complete(ModelRequest("scripted", context, answer_schema=SCHEMA), lambda _: None)
        heard.append(reply.message.text)
        context += correction(reply.message, ["$: no"])
    assert heard == ["a", "b", "one"]
    reply = await script.complete(ModelRequest("scripted", [*context[:2], User("go on")]), lambda _: None)
    assert reply.message.text == "two"
