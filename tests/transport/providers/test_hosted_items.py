"""What the tools of providers yield, of every kind: it goes back in the form of requests, to a strict server."""

import json
from collections.abc import Mapping
from typing import Any, Final

import httpx
import pytest

from tests.transport.providers.calls import CLAUDE, GEMINI, RESPONSES, WEATHER, answered, request, streamed
from tests.transport.providers.dialects import STOP, body, more, opened, start, stopped
from tests.transport.providers.targets import provider
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    HostedToolBlock,
    Message,
    TextBlock,
    ToolUseBlock,
    UserMessage,
)
from warren.settings.config import ModelServer
from warren.transport.providers import open_providers

ITEMS: Final[Mapping[str, tuple[str, str]]] = {
    "additional_tools": ("role tools type", "id"),
    "apply_patch_call": ("call_id operation status type", "caller id"),
    "apply_patch_call_output": ("call_id status type", "caller id output"),
    "code_interpreter_call": ("code container_id id outputs status type", ""),
    "compaction": ("encrypted_content type", "id"),
    "computer_call": ("call_id id pending_safety_checks status type", "action actions"),
    "computer_call_output": ("call_id output type", "acknowledged_safety_checks id status"),
    "custom_tool_call": ("call_id input name type", "async caller id namespace"),
    "custom_tool_call_output": ("call_id output type", "caller id"),
    "file_search_call": ("id queries status type", "results"),
    "image_generation_call": ("id result status type", ""),
    "local_shell_call": ("action call_id id status type", ""),
    "local_shell_call_output": ("id output type", "status"),
    "mcp_approval_request": ("arguments id name server_label type", ""),
    "mcp_approval_response": ("approval_request_id approve type", "id reason"),
    "mcp_call": ("arguments id name server_label type", "approval_request_id error output status"),
    "mcp_list_tools": ("id server_label tools type", "error"),
    "program": ("call_id code fingerprint id type", ""),
    "program_output": ("call_id id result status type", ""),
    "shell_call": ("action call_id type", "caller environment id status"),
    "shell_call_output": ("call_id output type", "caller id max_output_length status"),
    "tool_search_call": ("arguments type", "call_id execution id status"),
    "tool_search_output": ("tools type", "call_id execution id status"),
    "web_search_call": ("action id status type", ""),
}
"""The members that items of requests need, and those that they may have: by openai-python 3.57.0, November 2026.

Servers refuse more members of pictures than these types do."""
WAITING: Final = {
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "shell_call": "shell_call_output",
}
"""Items that a server wants an answer to."""
ANSWERS: Final = {"created_by": "someone", "action": "generate", "size": "1024x1024", "output_format": "png"}
"""Members that items of answers may have."""


def made(kind: str, **more: object) -> dict[str, Any]:
    """Return an item as a server sends it, with members that requests may not have."""
    needed, allowed = (names.split() for names in ITEMS[kind])
    own = {name: f"{kind}.{name}" for name in (*needed, *allowed)} | {"type": kind}
    extra = ANSWERS | {"result": None} if kind == "image_generation_call" else {"created_by": "someone"}
    return own | extra | ({"status": "completed"} if kind == "custom_tool_call_output" else {}) | more


def check(items: list[dict[str, Any]]) -> None:
    """Refuse what the vendor's server refuses."""
    outputs = {(item["type"], item.get("call_id", item.get("approval_request_id", item.get("id")))) for item in items}
    for item in items:
        if item["type"] in ("message", "function_call", "function_call_output", "reasoning"):
            continue
        needed, allowed = (set(names.split()) for names in ITEMS[item["type"]])
        assert needed <= item.keys(), f"{item['type']} has to have {needed - item.keys()}"
        assert item.keys() <= needed | allowed, f"unknown parameter: {item.keys() - needed - allowed}"
        if (output := WAITING.get(item["type"])) is not None:
            named = item["id"] if item["type"] == "mcp_approval_request" else item["call_id"]
            assert (output, named) in outputs, f"no output for {item['type']}"


def back(model: str, *messages: Message) -> list[dict[str, Any]]:
    """Return messages as the server of a model gets them."""
    target = provider(model)
    context = target.dialect.context(target.endpoint, model)
    read: list[dict[str, Any]] = body(context, messages)[context.MEMBER]
    return read


async def items_of(*items: dict[str, Any]) -> tuple[AssistantMessage, str]:
    """Return an answer with these items, as it is after a restart, and the text that was shown."""
    events = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(items)
    ]
    outcome = await streamed(request(RESPONSES), *events, {"type": "response.completed", "response": {"output": []}})
    message = codec.decode_message(codec.encode(outcome.reply.message))
    assert isinstance(message, AssistantMessage)
    assert outcome.text == message.text
    return message, outcome.text


@pytest.mark.parametrize("kind", ITEMS)
async def test_every_item_goes_back(kind: str) -> None:
    """An item of any kind goes back to its model in the form of a request; another model gets the text alone."""
    item = made(kind)
    message, text = await items_of(item, {"type": "message", "content": [{"type": "output_text", "text": "Done."}]})
    sent = back(RESPONSES, UserMessage("a"), message, UserMessage("b"))
    check(sent)
    (own,) = [each for each in sent if each["type"] == kind]
    assert own.items() <= item.items()
    others = back(CLAUDE, UserMessage("a"), message, UserMessage("b"))
    assert [block["type"] for block in others[1]["content"]] == ["text"] * len(others[1]["content"])
    assert text.startswith("Done.")


@pytest.mark.parametrize("kind", [kind for kind in WAITING if kind != "mcp_approval_request"])
async def test_an_output_of_the_server_is_enough(kind: str) -> None:
    """A call that the server itself has run is neither told nor answered."""
    named = "id" if kind == "local_shell_call" else "call_id"
    call, output = made(kind, call_id="c"), made(WAITING[kind], **{named: "c"})
    message, text = await items_of(call, output)
    sent = back(RESPONSES, UserMessage("a"), message, UserMessage("b"))
    check(sent)
    assert (text, [each["type"] for each in sent[1:3]], len(sent)) == ("", [kind, WAITING[kind]], 4)


async def test_a_search_of_another_server_is_run_by_it() -> None:
    """A search of xAI comes as a call that OpenAI leaves to the program: the answer goes on behind it."""
    call = made("custom_tool_call", name="x_keyword_search", call_id="xs_call_1")
    said = {"type": "message", "content": [{"type": "output_text", "text": "They dig."}]}
    for items, runs in (([call, said], True), ([said, call], False)):
        asked: list[dict[str, Any]] = []

        def answer(sent: httpx.Request) -> httpx.Response:
            asked.append(json.loads(sent.content))  # noqa: B023 - of this answer
            return httpx.Response(200, json={"output": items, "status": "completed"})  # noqa: B023

        server = ModelServer(name="xai", base_url="https://api.x.ai/v1", dialect="openai-responses", key_env="KEY")
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client,
            open_providers({"KEY": "k"}, client=client, servers=[server]) as providers,
        ):
            ask = providers.resolve("xai:grok-5", None).provider.complete
            message = (await ask(request("grok-5", "a"), lambda _: None)).message
            stored = codec.decode_message(codec.encode(message))
            await ask(request("grok-5", "a", stored, "b"), lambda _: None)
        assert ("was not run" in message.text) == (not runs)
        kinds = [item["type"] for item in asked[1]["input"]]
        assert ("custom_tool_call" in kinds, "custom_tool_call_output" in kinds) == (True, not runs)


async def test_an_approval_cannot_be_answered() -> None:
    """The user is told which server asked for which tool; the model, that nobody approved it."""
    message, text = await items_of(made("mcp_approval_request", server_label="deepwiki", name="ask"))
    assert "'deepwiki' asks to call 'ask'" in text
    assert "cannot be answered here" in text
    sent = back(RESPONSES, UserMessage("a"), message, UserMessage("b"))
    check(sent)
    assert sent[2]["approve"] is False


@pytest.mark.parametrize("name", ["item", "completed"])
async def test_items_of_tomorrow_go_back(name: str) -> None:
    """An item of a kind that nobody knows goes back verbatim, but for the name of its maker."""
    new = {"type": "dream_call", "id": "d", "depth": 3}
    whole = {"output": [new | {"created_by": "me"}]}
    events = [] if name == "completed" else [{"type": "response.output_item.added", "output_index": 0, "item": new}]
    outcome = await streamed(request(RESPONSES), *events, {"type": "response.completed", "response": whole})
    assert back(RESPONSES, UserMessage("a"), outcome.reply.message, UserMessage("b"))[1] == new


BLOCKS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "container_upload", "file_id": "file_1"},
    {"type": "compaction", "content": "so far", "encrypted_content": "e"},
    {"type": "mcp_tool_listing", "mcp_server_name": "wiki", "tools": []},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {"type": "refusal"}},
)
RESULTS: Final = ("web_fetch", "code_execution", "bash_code_execution", "tool_search", "advisor", "dream")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
async def test_every_block_goes_back(block: dict[str, Any]) -> None:
    """A block of Anthropic's that is no text goes back as it came, streamed and whole."""
    kind = {"kind": block["type"], **{name: value for name, value in block.items() if name != "type"}}
    streaming = await streamed(request(CLAUDE), start(), opened(0, **kind), stopped(), STOP)
    whole = await answered(request(CLAUDE), {"type": "message", "content": [block], "stop_reason": "end_turn"})
    for outcome in (streaming, whole):
        sent = back(CLAUDE, UserMessage("a"), outcome.reply.message, UserMessage("b"))
        assert sent[1] == {"role": "assistant", "content": [block]}


@pytest.mark.parametrize("name", RESULTS)
async def test_results_of_every_server_tool_go_back(name: str) -> None:
    """A call of a server's tool of any name, with the result of any kind."""
    call: dict[str, Any] = {"type": "server_tool_use", "id": "s1", "name": name, "input": {"a": 1}}
    result: dict[str, Any] = {
        "type": f"{name}_tool_result",
        "tool_use_id": "s1",
        "content": {"type": "any", "data": "x"},
    }
    events = [opened(0, call["type"], id="s1", name=name, input={}), more(0, partial_json='{"a": 1}')]
    events.append(opened(1, result["type"], tool_use_id="s1", content=result["content"]))
    outcome = await streamed(request(CLAUDE), start(), *events, stopped(), STOP)
    sent = back(CLAUDE, UserMessage("a"), outcome.reply.message, UserMessage("b"))
    assert sent[1]["content"] == [call, result]


async def test_a_summary_of_the_server_arrives_in_pieces() -> None:
    """Its pieces are joined: the server takes it back whole."""
    parts = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": text}}
        for text in ("so ", "far")
    ]
    parts.append(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "encrypted_content": "e"}}
    )
    outcome = await streamed(request(CLAUDE), start(), opened(0, "compaction", content=None), *parts, stopped(), STOP)
    sent = back(CLAUDE, UserMessage("a"), outcome.reply.message, UserMessage("b"))
    assert sent[1]["content"] == [{"type": "compaction", "content": "so far", "encrypted_content": "e"}]


async def test_parts_of_tomorrow_go_back() -> None:
    """A part of Gemini's of a kind that nobody knows goes back verbatim."""
    new = {"dreamCall": {"depth": 3}, "thoughtSignature": "s"}
    chunk = {"candidates": [{"content": {"parts": [new, {"text": "Done."}]}, "finishReason": "STOP"}]}
    outcome = await streamed(request(GEMINI), chunk)
    assert back(GEMINI, UserMessage("a"), outcome.reply.message, UserMessage("b"))[1]["parts"][0] == new


# -- what was lost


async def test_sources_before_an_empty_part_are_kept() -> None:
    """Sources belong to the text, also if the last part is empty and signed, or if they come before the text."""
    sources = {"webSearchQueries": ["rabbits"]}
    signed = {"candidates": [{"content": {"parts": [{"text": "", "thoughtSignature": "s"}]}, "finishReason": "STOP"}]}
    said = {"candidates": [{"content": {"parts": [{"text": "They dig."}]}}]}
    with_sources = signed["candidates"][0] | {"groundingMetadata": sources}
    early = {"candidates": [{"content": {"parts": []}, "groundingMetadata": sources}]}
    for events in ([said, {"candidates": [with_sources]}], [early, said, signed]):
        text = (await streamed(request(GEMINI), *events)).reply.message.blocks[0]
        assert isinstance(text, TextBlock)
        assert text.metadata is not None
        assert text.metadata["citations"] == [sources]


def begun(*content: dict[str, Any]) -> dict[str, Any]:
    """Return the event that begins a message of Anthropic's with content."""
    return {"type": "message_start", "message": {"role": "assistant", "content": list(content), "usage": {}}}


async def test_a_message_may_begin_with_its_content() -> None:
    """Blocks in `message_start` are taken once, whether the later events have them too or not."""
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Rome"}}
    said = {"type": "text", "text": "Look: "}
    outcome = await streamed(request(CLAUDE), begun(said, call), stopped("tool_use"), STOP)
    assert outcome.reply.message == AssistantMessage(
        (TextBlock("Look: "), ToolUseBlock("t", "weather", {"city": "Rome"})), "tool_use"
    )
    assert outcome.text == "Look: "
    again = [opened(0, "text", text=""), more(0, text="Look: "), opened(1, **{"kind": "tool_use"} | _named(call))]
    assert (
        await streamed(request(CLAUDE), begun(said, call), *again, stopped("tool_use"), STOP)
    ).reply.message == outcome.reply.message


def _named(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "type"}


async def test_a_second_message_is_shown_and_stored_alike() -> None:
    """A proxy that begins anew does not take away what has been shown: both are the answer."""
    first = [start(), opened(0, "text", text=""), more(0, text="One. ")]
    second = [start(), opened(0, "text", text=""), more(0, text="Two."), stopped(), STOP]
    outcome = await streamed(request(CLAUDE), *first, *second)
    assert outcome.text == outcome.reply.message.text == "One. Two."


ARGUMENTS: Final = '{"city":"Rome"}'
CALL: Final = {"type": "function_call", "id": "fc", "call_id": "c", "name": "weather", "arguments": ""}
ADDED: Final = {"type": "response.output_item.added", "output_index": 0, "item": CALL}
ENDINGS: Final[Mapping[str, list[Any]]] = {
    "in the whole answer": [{"type": "response.completed", "response": {"output": [CALL | {"arguments": ARGUMENTS}]}}],
    "by their own event": [
        {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": ARGUMENTS},
        {"type": "response.completed", "response": {"output": []}},
    ],
    "after a gap": [
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"ci'},
        {"type": "response.output_item.done", "output_index": 0, "item": CALL | {"arguments": ARGUMENTS}},
        {"type": "response.completed", "response": {"output": []}},
    ],
    "under another id": [
        {
            "type": "response.completed",
            "response": {"output": [CALL | {"id": "other", "arguments": ARGUMENTS}]},
        }
    ],
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_call_gets_its_arguments(ending: str) -> None:
    """Wherever the whole arguments are, the tool is called with them."""
    (call,) = (await streamed(request(RESPONSES, tools=(WEATHER,)), ADDED, *ENDINGS[ending])).reply.message.tool_calls
    assert (call.id, call.name, call.args, call.invalid_args) == ("c", "weather", {"city": "Rome"}, None)


async def test_a_call_without_an_end_has_no_arguments() -> None:
    """It is not run as a call without arguments; one that has ended without any is."""
    end = {"type": "response.completed", "response": {"output": []}}
    (call,) = (await streamed(request(RESPONSES), ADDED, end)).reply.message.tool_calls
    assert call.invalid_args is not None
    done = {"type": "response.output_item.done", "output_index": 0, "item": CALL}
    (call,) = (await streamed(request(RESPONSES), ADDED, done, end)).reply.message.tool_calls
    assert (call.args, call.invalid_args) == ({}, None)


@pytest.mark.parametrize("whole", ["text", "refusal"])
async def test_a_text_without_deltas_is_said(whole: str) -> None:
    """The end of a text in `done` is shown once, and so are the parts that no delta had."""
    kind = {"text": "response.output_text.done", "refusal": "response.refusal.done"}[whole]
    added = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m"}}
    said = {"type": "response.output_text.delta", "output_index": 0, "delta": "They "}
    done = {"type": kind, "output_index": 0, "content_index": 0, whole: "They dig."}
    content = [{"type": "output_text", "text": "They dig."}]
    item = {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message", "content": content}}
    end = {"type": "response.completed", "response": {"output": []}}
    for events in ([added, done], [added, said, done], [added, said, done, item], [added, said, item]):
        outcome = await streamed(request(RESPONSES), *events, end)
        assert outcome.text == outcome.reply.message.text == "They dig."


async def test_old_rows_are_read() -> None:
    """A block that an older version kept as unknown is read, and left out as before."""
    old = b'{"role":"assistant","blocks":[{"type":"shell_call","id":"s"},{"type":"text","text":"a"}]}'
    message = codec.decode_message(old)
    assert isinstance(message, AssistantMessage)
    assert not any(isinstance(block, HostedToolBlock) for block in message.blocks)
    assert len(back(RESPONSES, UserMessage("a"), message, UserMessage("b"))) == 3
