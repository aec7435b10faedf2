"""The events of both protocols, as short as a test wants to write them."""

from collections.abc import Iterable
from typing import Any

from warren.conversation import codec
from warren.conversation.messages import Message
from warren.transport.providers.encoded import Encoded, Part

DONE = "[DONE]"


def delta(content: object = None, finish: str | None = None, **more: object) -> dict[str, Any]:
    """Return a chat chunk."""
    said = {"content": content} if content is not None else {}
    return {"choices": [{"index": 0, "delta": said | more, "finish_reason": finish}]}


def call(index: object = 0, arguments: object = "", **more: object) -> dict[str, Any]:
    """Return a chat chunk with a fragment of a tool call; `id` and `name` are optional, as in the protocol."""
    name = {"name": more["name"]} if "name" in more else {}
    place = {} if index is None else {"index": index}
    own = {"id": more["id"]} if "id" in more else {}
    return delta(tool_calls=[place | own | {"function": name | {"arguments": arguments}}])


def used(sent: int, said: int, **more: object) -> dict[str, Any]:
    """Return the usage-only chunk that ends a chat stream."""
    return {"choices": [], "usage": {"prompt_tokens": sent, "completion_tokens": said} | more}


def start(**usage: int) -> dict[str, Any]:
    """Return the event that begins a message."""
    return {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": usage}}


def opened(index: int, kind: str, **more: object) -> dict[str, Any]:
    """Return the event that begins a content block."""
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind} | more}


def more(index: int, **parts: str) -> dict[str, Any]:
    """Return the event with the next part of a content block: `text`, `thinking`, `signature`, `partial_json`."""
    kinds = {"partial_json": "input_json_delta"}
    ((name, _),) = parts.items()
    return {"type": "content_block_delta", "index": index, "delta": {"type": kinds.get(name, f"{name}_delta")} | parts}


def stopped(reason: str | None = "end_turn", **usage: int) -> dict[str, Any]:
    """Return the event with the stop reason."""
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


STOP = {"type": "message_stop"}
PING = {"type": "ping"}


def told(context: Encoded, messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the messages of a request as a server reads them, when these are added to an empty context."""
    read: list[dict[str, Any]] = body(context, messages)[context.MEMBER]
    return read


def body(context: Encoded, messages: Iterable[Message]) -> dict[str, Any]:
    """Return the body of a request as a server reads it, when these messages are added to an empty context."""
    for message in messages:
        context.add(message)
    read: dict[str, Any] = codec.parse(whole(context.between({"model": "m"}, {})))
    return read


def whole(parts: Iterable[Part]) -> bytes:
    """Return the bytes of a body; a file has its name in place of its bytes."""
    return b"".join(part if isinstance(part, bytes) else f"<{part.name}>".encode() for part in parts)
