"""A conversation with tools and reasoning that goes from one protocol to another: every request is one that is taken.

The checks are those of the protocols' documentation, and of the messages with which the vendors refuse requests.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from typing import Any, Final

import attrs
import pytest

from tests.transport.providers.byte_server import event
from tests.transport.providers.calls import (
    CLAUDE,
    GEMINI,
    GPT,
    RESPONSES,
    WEATHER,
    request,
)
from tests.transport.providers.dialects import STOP, call, delta, more, opened, start, stopped, whole
from tests.transport.providers.targets import BUDGETED, CHART, NOTE, PAPER, PHOTO, encoder, provider
from warren.conversation import codec
from warren.conversation.attachments import ANY_KIND
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.options import Effort
from warren.conversation.transcript import Transcript
from warren.models.model import ModelReply

ANSWER_OF_CLAUDE: Final = [
    start(input_tokens=9),
    opened(0, "thinking", thinking="", signature=""),
    more(0, thinking="hm"),
    more(0, signature="sig=="),
    opened(1, "text", text=""),
    more(1, text="see"),
    opened(2, "tool_use", id="toolu_1", name="weather", input={}),
    more(2, partial_json='{"city":"Rome"}'),
    opened(3, "redacted_thinking", data="xyz"),
    opened(4, "tool_use", id="toolu_2", name="weather", input={}),
    stopped("tool_use", output_tokens=3),
    STOP,
]
ODD_IDS: Final = ("weather:0", "c" * 60)
"""Ids that only the server takes that has made them."""
EVENTS: Final[Mapping[str, list[Any]]] = {
    CLAUDE: ANSWER_OF_CLAUDE,
    BUDGETED: ANSWER_OF_CLAUDE,
    GPT: [
        delta(reasoning_content="hm"),
        delta("see"),
        call(0, '{"city":"Rome"}', id=ODD_IDS[0], name="weather"),
        call(1, "{}", id=ODD_IDS[1], name="weather"),
        delta(None, "tool_calls"),
    ],
    RESPONSES: [
        {
            "type": "response.completed",
            "response": {
                "output": [
                    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
                    {"type": "message", "phase": "commentary", "content": [{"type": "output_text", "text": "see"}]},
                    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'},
                    {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gBBB"},
                    {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": "{}"},
                ]
            },
        }
    ],
    GEMINI: [
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"text": "hm", "thought": True},
                            {"text": "see"},
                            {
                                "functionCall": {"name": "weather", "args": {"city": "Rome"}},
                                "thoughtSignature": "sig==",
                            },
                            {"functionCall": {"name": "weather"}},
                        ]
                    },
                    "finishReason": "STOP",
                }
            ]
        }
    ],
}
MODELS: Final = tuple(EVENTS)
SHOWN: Final[dict[str, tuple[Any, ...]]] = {
    CLAUDE: (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "<photo.png>"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "<paper.pdf>"},
            "title": "paper.pdf",
        },
        {"type": "text", "text": "[text note.txt]\n<note.txt>"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "<chart.jpg>"}},
    ),
    GPT: (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,<photo.png>"}},
        {"type": "file", "file": {"filename": "paper.pdf", "file_data": "data:application/pdf;base64,<paper.pdf>"}},
        {"type": "text", "text": "[text note.txt]\n<note.txt>\n\nhi"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,<chart.jpg>"}},
    ),
    RESPONSES: (
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,<photo.png>"},
        {
            "type": "input_file",
            "filename": "paper.pdf",
            "file_data": "data:application/pdf;base64,<paper.pdf>",
        },
        {"type": "input_text", "text": "[text note.txt]\n<note.txt>\n\nhi"},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/jpeg;base64,<chart.jpg>"},
    ),
    GEMINI: (
        {"inlineData": {"mimeType": "image/png", "data": "<photo.png>"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "<paper.pdf>"}},
        {"text": "[text note.txt]\n<note.txt>"},
        {"inlineData": {"mimeType": "image/jpeg", "data": "<chart.jpg>"}},
    ),
}
"""How the files of the conversation are in a request of each protocol, the last one with the results of the tools."""
SHOWN[BUDGETED] = SHOWN[CLAUDE]


def answer(model: str, known: set[str]) -> ModelReply:
    """Return the answer of a model with reasoning and two calls."""
    asked, target = request(model), provider(model)
    read = target.dialect.answer(asked, target.endpoint, known)
    for each in EVENTS[model]:
        read.feed(event(each).removeprefix(b"data: ").strip())
    return read.reply(9)


async def sent(model: str, messages: list[Message], effort: Effort | None = None) -> dict[str, Any]:
    """Return the body of the request that a model gets."""
    target = provider(model)
    asked = request(model, *messages, tools=(WEATHER,), effort=effort)
    context = await encoder(target).encoded(messages, model, ANY_KIND)
    return codec.parse(whole(target.dialect.body(asked, target.endpoint, context)))  # type: ignore[no-any-return]


def conversation(models: tuple[str, ...]) -> list[Message]:
    """Return a conversation in which each answer is of the next model, and others say something among its tools."""
    messages: list[Message] = [SystemMessage("be brief"), UserMessage("hi", (PHOTO, PAPER, NOTE))]
    known: set[str] = set()
    for model in models:
        message = answer(model, known).message
        uses = message.tool_calls
        known.update(use.id for use in uses)
        results = (
            ToolResult(uses[0].id, "sun", attachments=(CHART,)),
            ToolResult(uses[1].id, "no city", is_error=True),
        )
        messages += [message, ToolResultsMessage(results), ContextMessage("news")]
    cut = AssistantMessage((TextBlock("half"),), "cancelled")
    return [*messages, cut, UserMessage("go on")]


CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")
NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")


def check_claude(body: dict[str, Any]) -> None:
    """Check the messages protocol: roles alternate, results follow their calls at once, reasoning is signed."""
    waiting: set[str] = set()
    if body.get("thinking", {}).get("type") == "enabled" and "tool_result" in str(body["messages"][-1]):
        # "Expected `thinking` or `redacted_thinking`, but found `tool_use`", says the vendor
        assert body["messages"][-2]["content"][0]["type"] in ("thinking", "redacted_thinking")
    assert body["messages"][0]["role"] == "user"
    assert all(one["role"] != other["role"] for one, other in pairwise(body["messages"]))
    for message in body["messages"]:
        blocks, role = message["content"], message["role"]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert len(results) == len(set(results))
        assert set(results) == (waiting if role == "user" else set())
        assert [block["type"] for block in blocks[: len(results)]] == ["tool_result"] * len(results)
        uses = [block for block in blocks if block["type"] == "tool_use"]
        waiting = {use["id"] for use in uses}
        assert len(waiting) == len(uses)
        for use in uses:
            assert CALL_ID.fullmatch(use["id"])
            assert NAME.fullmatch(use["name"])
            assert isinstance(use["input"], dict)
        for block in blocks:
            known = {"text", "tool_use", "thinking", "redacted_thinking"}
            asked = {"text", "tool_result", "image", "document"}
            assert block["type"] in (known if role == "assistant" else asked)
            assert block["type"] != "thinking" or (
                block["signature"] and block.keys() == {"type", "thinking", "signature"}
            )
            assert block["type"] != "text" or block["text"].strip()
    assert body["messages"][-1]["role"] == "user"


def check_chat(body: dict[str, Any]) -> None:
    """Check the chat completions protocol: each call has one result before anything else is said."""
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        calls = message.get("tool_calls", [])
        assert message["content"] or calls
        assert message.keys() <= {"role", "content", "tool_calls", "reasoning_content"}
        waiting = [each["id"] for each in calls]
        for each in calls:
            assert CALL_ID.fullmatch(each["id"]) or each["id"] in ODD_IDS
            assert NAME.fullmatch(each["function"]["name"])
            assert isinstance(codec.parse(each["function"]["arguments"]), dict)
    assert not waiting
    assert body["messages"][-1]["role"] in ("user", "tool")


def check_responses(body: dict[str, Any]) -> None:
    """Check the responses protocol: reasoning has the item that it led to, each call has one output."""
    items = body["input"]
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert len(calls) == len(set(calls))
    seen: set[str] = set()
    for item, following in pairwise([*items, {"type": "end"}]):
        match item["type"]:
            case "reasoning":
                assert item.keys() == {"type", "id", "summary", "encrypted_content"}
                assert following["type"] == "function_call" or following.get("role") == "assistant"
            case "function_call":
                assert item.keys() == {"type", "call_id", "name", "arguments"}
                assert CALL_ID.fullmatch(item["call_id"])
                assert isinstance(codec.parse(item["arguments"]), dict)
                seen.add(item["call_id"])
            case "function_call_output":
                seen.remove(item["call_id"])
                shown = item["output"] if isinstance(item["output"], list) else []
                assert {part["type"] for part in shown} <= {"input_image", "input_text"}
            case _:
                assert item["type"] == "message"
                assert item["content"]
                assert not seen
    assert not seen
    assert items[-1].get("role", items[-1]["type"]) in ("user", "function_call_output")


def check_gemini(body: dict[str, Any]) -> None:
    """Check Google's protocol: as many results as calls right behind them, and the first call is signed."""
    contents = body["contents"]
    assert contents[0]["role"] == "user"
    for content, following in pairwise([*contents, {"parts": []}]):
        calls = [part for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in following["parts"] if "functionResponse" in part]
        assert [part["functionCall"]["id"] for part in calls] == [result["id"] for result in results]
        assert [part["functionCall"]["name"] for part in calls] == [result["name"] for result in results]
        assert not calls or calls[0]["thoughtSignature"]
        assert not results or len(results) == len(following["parts"])
        for part in content["parts"]:
            assert len({"text", "functionCall", "functionResponse", "inlineData"} & part.keys()) == 1
            assert content["role"] == "model" or "thoughtSignature" not in part
    assert contents[-1]["role"] == "user"


CHECKS: Final[Mapping[str, Callable[[dict[str, Any]], None]]] = {
    CLAUDE: check_claude,
    BUDGETED: check_claude,
    GPT: check_chat,
    RESPONSES: check_responses,
    GEMINI: check_gemini,
}
OWN: Final = {
    CLAUDE: (b"sig==", b"xyz"),
    BUDGETED: (b"sig==", b"xyz"),
    GPT: (b'"reasoning_content":"hm"',),
    RESPONSES: (b"gAAA", b"gBBB", b"commentary"),
    GEMINI: (b"sig==",),
}


@pytest.mark.parametrize("effort", [None, "high"])
@pytest.mark.parametrize(("before", "after"), list(product(MODELS, MODELS)))
async def test_every_pair(before: str, after: str, effort: Effort | None) -> None:
    """The request after a switch, and the one after the way back, are taken; each model gets only its own reasoning.

    So are those in the midst of tools, behind the newest results.
    """
    for models in ((before,), (before, after), (before, after, before)):
        messages = [codec.decode_message(codec.encode(each)) for each in conversation(models)]
        for model in (before, after):
            CHECKS[model](await sent(model, messages[:-3], effort))
            body = await sent(model, messages, effort)
            CHECKS[model](body)
            data = codec.encode(body)
            for shown in SHOWN[model]:
                assert codec.encode(shown) in data
            for own in {each for kept in OWN.values() for each in kept}:
                assert (own in data) is (model in models and own in OWN[model])


@pytest.mark.parametrize("model", MODELS)
async def test_another_model_of_the_same_protocol(model: str) -> None:
    """It gets none of the reasoning, and its request is taken."""
    target = provider(model)
    messages, other = conversation((model,)), f"{model}-2"
    context = await encoder(target).encoded(messages, other)
    asked = request(other, tools=(WEATHER,))
    body = codec.parse(whole(target.dialect.body(asked, target.endpoint, context)))
    CHECKS[model](body)
    assert not any(own in codec.encode(body) for own in OWN[model])


@pytest.mark.parametrize("model", MODELS)
async def test_another_server_of_the_same_protocol(model: str) -> None:
    """It gets none of the reasoning of a model with the same name, and the first server gets it back."""
    first = provider(model)
    vendor = attrs.evolve(first.endpoint.vendor, name="proxy")
    proxy = attrs.evolve(first, endpoint=attrs.evolve(first.endpoint, vendor=vendor))
    talk = Transcript([codec.encode(each) for each in conversation((model,))])
    for target, gets in ((first, True), (proxy, False), (first, True)):
        context = await encoder(target).encoded(talk, model)
        body = codec.parse(whole(target.dialect.body(request(model), target.endpoint, context)))
        CHECKS[model](body)
        assert all((own in codec.encode(body)) is gets for own in OWN[model])


@pytest.mark.parametrize("model", MODELS)
async def test_reasoning_alone(model: str) -> None:
    """An answer of reasoning alone, as a cap leaves one, does no harm to what follows."""
    reasoning = tuple(block for block in answer(model, set()).message.blocks if isinstance(block, ReasoningBlock))
    use = ToolUseBlock("a b", "no tool!", {}, "{")
    messages: list[Message] = [
        UserMessage("hi"),
        AssistantMessage(reasoning, "max_tokens"),
        UserMessage("go on"),
        AssistantMessage((use,), "max_tokens"),
        ToolResultsMessage((ToolResult("a b", "", is_error=True),)),
        UserMessage("go on"),
    ]
    for to in MODELS:
        CHECKS[to](await sent(to, messages))


@pytest.mark.parametrize("to", MODELS)
async def test_results_without_a_text(to: str) -> None:
    """Every protocol has a sentence in place of nothing: some servers refuse it, and a model cannot read it."""
    uses = [ToolUseBlock(name, "f") for name in ("quiet", "blank", "failed", "drawn")]
    results = (
        ToolResult("quiet", ""),
        ToolResult("blank", " \n"),
        ToolResult("failed", "", is_error=True),
        ToolResult("drawn", "", attachments=(CHART,)),
    )
    body = await sent(to, [UserMessage("hi"), AssistantMessage(tuple(uses), "tool_use"), ToolResultsMessage(results)])
    CHECKS[to](body)
    data = codec.encode(body)
    texts = (b"(no output)", b"the tool failed, and does not say why", b"(files without a text)")
    assert [data.count(text) for text in texts] == [2, 1, 1]
