"""Reasoning: how much of it each provider is asked for, and what of it goes back to whom."""

from functools import partial
from typing import Any

import httpx
import pytest

from tests.support.runtime import Recorder
from tests.transport.providers.calls import GPT, environ, over, request
from tests.transport.providers.dialects import whole
from warren.base.errors import InvalidParamsError
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, ReasoningBlock, TextBlock, UserMessage
from warren.conversation.options import EFFORTS, ModelOptions
from warren.conversation.transcript import Transcript
from warren.settings.config import Config
from warren.transport.embed import open_supervisor
from warren.transport.providers import open_providers
from warren.transport.providers.anthropic import MessagesContext
from warren.transport.providers.encoder import Encoder
from warren.transport.providers.kept import Maker
from warren.transport.providers.pace import RequestPace

OLD, ADAPTIVE, ALWAYS = "claude-sonnet-4-5-20250929", "claude-sonnet-5", "claude-opus-5-5"
SHOWN = {"type": "adaptive", "display": "summarized"}
DROPPED = SHOWN | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}}, "required": ["name"]}


async def sent(model: str, **options: object) -> dict[str, Any]:
    """Return the body of the request that a call sends."""
    return codec.parse((await requested(model, **options)).content)  # type: ignore[no-any-return]


async def requested(model: str, **options: object) -> httpx.Request:
    """Return the request that a call sends."""
    got: list[httpx.Request] = []

    def server(asked: httpx.Request) -> httpx.Response:
        got.append(asked)
        return httpx.Response(200, json={"choices": [{}], "content": []})

    await over(server, request(model, **options))
    return got[0]


@pytest.mark.parametrize(
    ("model", "options", "members"),
    [
        (OLD, {}, {}),
        (OLD, {"effort": "none"}, {}),
        (OLD, {"effort": "low"}, {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        (OLD, {"effort": "max"}, {"thinking": {"type": "enabled", "budget_tokens": 30976}}),
        (OLD, {"effort": "high", "max_tokens": 4096}, {"thinking": {"type": "enabled", "budget_tokens": 3072}}),
        (OLD, {"effort": "high", "max_tokens": 2000}, {}),
        (OLD, {"reasoning_tokens": 2000}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ("kimi-k3", {"effort": "minimal"}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (ADAPTIVE, {}, {}),
        (ADAPTIVE, {"effort": "none"}, {"thinking": {"type": "disabled"}}),
        (ADAPTIVE, {"effort": "minimal"}, {"thinking": SHOWN, "output_config": {"effort": "low"}}),
        (ADAPTIVE, {"effort": "xhigh"}, {"thinking": SHOWN, "output_config": {"effort": "xhigh"}}),
        ("claude-opus-4-6", {"reasoning_tokens": 2000}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        (ALWAYS, {}, {"thinking": DROPPED}),
        ("claude-fable-5", {"effort": "low"}, {"thinking": SHOWN, "output_config": {"effort": "low"}}),
        ("claude-fable-5-2", {"effort": "max"}, {"thinking": DROPPED, "output_config": {"effort": "max"}}),
    ],
)
async def test_claude(model: str, options: dict[str, Any], members: dict[str, Any]) -> None:
    """Each generation of the models is asked in its own words, and nothing is sent that it refuses."""
    body = await sent(model, **options)
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == members


async def test_a_changed_context_is_no_error() -> None:
    """Models that check the context of their reasoning are told to drop it if that has changed."""
    beta = "thinking-binding-controls-2026-08-01"
    assert (await requested(ALWAYS)).headers["anthropic-beta"] == beta
    assert "anthropic-beta" not in (await requested(ADAPTIVE)).headers


async def test_data_from_claude() -> None:
    """The schema is the format of the answer from 4.5 on, beside reasoning; else the answer is forced into a tool."""
    body = await sent(ALWAYS, answer_schema=SCHEMA, effort="low")
    closed = SCHEMA | {"properties": {"name": {"type": "string"}}, "additionalProperties": False}
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": closed}}
    assert (body["tool_choice"], body["thinking"]) == ({"type": "none"}, DROPPED)
    free = {"type": "object", "properties": {"any": {"type": "object"}}}
    assert "output_config" not in await sent(ALWAYS, answer_schema=free)
    for model in (OLD, ADAPTIVE, "claude-haiku-4-5"):
        body = await sent(model, answer_schema=SCHEMA)
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": closed}}
        assert body["tool_choice"] == {"type": "none"}
    body = await sent(ADAPTIVE, answer_schema=free, effort="max")
    assert (body["tool_choice"]["type"], body["thinking"]) == ("tool", {"type": "disabled"})
    for model in ("claude-opus-4-1", "claude-sonnet-4-0", "claude-3-5-haiku-latest"):
        assert (await sent(model, answer_schema=SCHEMA))["tool_choice"]["type"] == "tool"


async def test_chat() -> None:
    """The effort goes as it is."""
    for effort in EFFORTS:
        assert (await sent(GPT, effort=effort))["reasoning_effort"] == effort
    assert "reasoning_effort" not in await sent(GPT)


@pytest.mark.parametrize(
    ("model", "options", "path"),
    [
        (GPT, {"reasoning_tokens": 2000}, "$.reasoning_tokens"),
        (OLD, {"reasoning_tokens": 1000}, "$.reasoning_tokens"),
        (OLD, {"reasoning_tokens": 5000, "max_tokens": 5000}, "$.reasoning_tokens"),
        (OLD, {"reasoning_tokens": 5000, "effort": "low"}, "$.reasoning_tokens"),
        (OLD, {"effort": "low", "temperature": 0.5}, "$.temperature"),
        ("claude-opus-4-7", {"reasoning_tokens": 5000}, "$.reasoning_tokens"),
        (ALWAYS, {"reasoning_tokens": 5000}, "$.reasoning_tokens"),
        (ALWAYS, {"effort": "none"}, "$.effort"),
        (ALWAYS, {"temperature": 0.5}, "$.temperature"),
        ("gemini-2.5-pro", {"reasoning_tokens": 127}, "$.reasoning_tokens"),
        ("gemini-2.5-pro", {"reasoning_tokens": 32_769}, "$.reasoning_tokens"),
        ("gemini-2.5-flash", {"reasoning_tokens": 24_577}, "$.reasoning_tokens"),
        ("gemini-2.5-flash-lite", {"reasoning_tokens": 511}, "$.reasoning_tokens"),
        ("gemini-2.0-flash", {"effort": "low"}, "$.effort"),
        ("gemini-2.0-flash", {"reasoning_tokens": 2000}, "$.reasoning_tokens"),
    ],
)
async def test_refused_before_the_turn(model: str, options: dict[str, Any], path: str) -> None:
    """An option that a model does not have is refused by its name, when a session or a turn asks for it."""
    async with open_providers(environ()) as providers:
        with pytest.raises(InvalidParamsError) as caught:
            providers.resolve(model, None).check(ModelOptions(**options))
        assert caught.value.path == path
    async with open_supervisor(Config(), environ=environ()) as service:
        with pytest.raises(InvalidParamsError) as caught:
            await service.create_session("hi", model=model, **options)
        assert caught.value.path == path
        created, recorder = await service.create_session("hi"), Recorder()
        with pytest.raises(InvalidParamsError) as caught:
            await service.start_turn(created.session_id, "ho", model=model, on_event=recorder, **options)
        assert (caught.value.path, recorder.events) == (path, [])


SIGNED = {"type": "thinking", "signature": "sig=="}
ANSWER: tuple[Message, ...] = (
    UserMessage("a"),
    AssistantMessage((ReasoningBlock("hm", Maker("anthropic", "anthropic", ADAPTIVE).keep(SIGNED)), TextBlock("b"))),
    UserMessage("c"),
)


async def test_another_model_gets_no_reasoning() -> None:
    """Only the model that reasoned gets it back, also if the models take turns within one session."""
    transcript = Transcript(map(codec.encode, ANSWER))
    encoder = Encoder(partial(MessagesContext, "anthropic"), RequestPace())
    for model, kept in ((ADAPTIVE, True), (ALWAYS, False), (ADAPTIVE, True)):
        body = whole((await encoder.encoded(transcript, model)).between({}, {}))
        assert (b"sig==" in body) is kept


def test_stored_reasoning_of_older_versions() -> None:
    """It has no model, and goes back to any model of its provider."""
    stored = (
        b'{"role":"assistant","blocks":[{"type":"reasoning","text":"hm",'
        b'"metadata":{"anthropic":{"type":"thinking","signature":"sig=="}}}]}'
    )
    message = codec.decode_message(stored)
    assert message == AssistantMessage((ReasoningBlock("hm", {"anthropic": SIGNED}),))
    assert codec.encode(message) == stored
    for model in (OLD, ALWAYS):
        context = MessagesContext("anthropic", model)
        context.add(message)
        assert b"sig==" in whole(context.between({}, {}))
