"""A model server for both protocols that refuses what the real ones refuse, echoes, and calls the first tool once."""

from typing import Any

import trio

from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, status
from tests.transport.providers.calls import KEY
from tests.transport.providers.dialects import DONE, STOP, call, delta, more, opened, start, stopped, used
from warren.conversation import codec
from warren.transport.providers.echo import words

ARGUMENTS = '{"city":"Rome"}'


async def answer(request: Request, stream: trio.SocketStream) -> None:
    """Answer a request of either protocol, or refuse it with status 400 and what is wrong with it."""
    try:
        data = _chat(request) if request.path == "/v1/chat/completions" else _messages(request)
    except AssertionError as exc:
        await stream.send_all(status(400, {"error": {"message": str(exc)}}))
        return
    await stream.send_all(HEAD)
    for item in data:
        await stream.send_all(chunk(event(item)))
        await trio.sleep(0.001)
    await stream.send_all(END)


def _chat(request: Request) -> list[Any]:
    messages = request.body["messages"]
    assert request.headers["authorization"] == f"Bearer {KEY}", "the key"
    assert request.body["stream_options"] == {"include_usage": True}, "usage is asked for"
    check_chat(messages)
    if "tools" in request.body and messages[-1]["role"] == "user":
        name = request.body["tools"][0]["function"]["name"]
        calls = [call(0, "", id="call_0", name=name), call(0, ARGUMENTS, name=name), delta(None, "tool_calls")]
        return [*calls, used(9, 3), DONE]
    return [*(delta(word) for word in words(messages[-1]["content"])), delta("", "stop"), used(9, 3), DONE]


def check_chat(messages: list[dict[str, Any]]) -> None:
    """Refuse what OpenAI's chat completions refuse. Raises AssertionError."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls, "a result follows its call"
            assert message["content"].strip(), "a result has a text"
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls, "every call has a result"
        calls = message.get("tool_calls", [])
        assert message["content"] or calls, "a message has content"
        assert all(isinstance(codec.parse(call["function"]["arguments"]), dict) for call in calls), "arguments"
        open_calls = [call["id"] for call in calls]
        assert len(set(open_calls)) == len(calls), "ids are unique"
    assert messages[-1]["role"] in ("user", "tool"), "the last message is not the model's"


def _messages(request: Request) -> list[Any]:
    messages = request.body["messages"]
    assert request.headers["x-api-key"] == KEY, "the key"
    assert request.body["max_tokens"] > 0, "the cap is required"
    _check_messages(messages)
    last = messages[-1]["content"][-1]
    if "tools" in request.body and last["type"] == "text":
        block = opened(0, "tool_use", id="toolu_0", name=request.body["tools"][0]["name"], input={})
        return [
            start(input_tokens=9),
            block,
            more(0, partial_json=ARGUMENTS),
            stopped("tool_use", output_tokens=3),
            STOP,
        ]
    heard = last["text"] if last["type"] == "text" else last["content"]
    parts = [more(0, text=word) for word in words(heard)]
    return [start(input_tokens=9), opened(0, "text", text=""), *parts, stopped("end_turn", output_tokens=3), STOP]


def _check_messages(messages: list[dict[str, Any]]) -> None:
    open_calls: set[str] = set()
    for position, message in enumerate(messages):
        assert message["role"] == ("assistant" if position % 2 else "user"), "the roles alternate"
        blocks = message["content"]
        assert all(block["text"].strip() for block in blocks if block["type"] == "text"), "text is not blank"
        assert {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"} == open_calls, "results"
        assert all(block["content"].strip() for block in blocks if block["type"] == "tool_result"), "results have texts"
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        open_calls = set(calls)
        assert len(open_calls) == len(calls), "ids are unique"
    assert messages[-1]["role"] == "user", "the last message is the user's"
