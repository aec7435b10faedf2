"""The output of ACP: updates of a conversation, and the events that they stand for. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.parity.outcome import joined
from tests.parity.surfaces.wire import Message
from warren.conversation.events import Event, ReasoningDelta, TextDelta

SHOWN: Final = frozenset(
    {"text_delta", "reasoning_delta", "files_complete", "tool_call_requested", "tool_execution_started"}
)
ENDED: Final = ("tool_execution_completed", "tool_result_received")
FIELDS: Final[Mapping[str, set[str]]] = {
    "text_delta": {"type", "delta"},
    "reasoning_delta": {"type", "delta"},
    "files_complete": {"type"},
    "tool_call_requested": {"type", "id", "name", "args"},
    "tool_execution_started": {"type", "id"},
    "tool_execution_completed": {"type", "id", "result", "is_error"},
    "tool_result_received": {"type", "id", "is_error", "result"},
}
"""The part of an event that an update has."""


def data_of(operation: str, result: Mapping[str, Any], updates: Sequence[Message]) -> dict[str, Any]:
    """Return the fields of a result, as far as an answer and the updates before it show them."""
    chunks = [update["content"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]
    text = "".join(chunk.get("text", "") for chunk in chunks)
    match operation:
        case "session/new" | "session/create" | "session/fork":
            return {"session_id": result["sessionId"]}
        case "turn/start":
            usage = result["usage"]
            tokens = {"input_tokens": usage["inputTokens"], "output_tokens": usage["outputTokens"]}
            return {"text": text, "stop_reason": result["stopReason"], **tokens}
        case "session/list":
            return {"ids": [row["sessionId"] for row in result["sessions"]]}
        case "session/history":
            return {"said": _said(updates)}
    return {"words": text}


def _said(updates: Sequence[Message]) -> list[tuple[str, str]]:
    """Return who said what."""
    roles = {"user_message_chunk": "user", "agent_message_chunk": "assistant"}
    told = [update for update in updates if update["sessionUpdate"] in roles]
    return [(roles[update["sessionUpdate"]], update["content"]["text"]) for update in told]


def events_of(updates: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return the events that updates stand for, as far as they show them."""
    found: list[Mapping[str, Any]] = []
    chunks: list[Event] = []
    began: set[str] = set()
    for update in updates:
        if (chunk := _chunk(update)) is not None:
            chunks.append(chunk)
        elif (event := _picture(update) or _tool(update, began)) is not None:
            found += [*joined(chunks), event]
            chunks.clear()
    return [*found, *joined(chunks)]


def _picture(update: Message) -> Mapping[str, Any] | None:
    shown = update["sessionUpdate"] == "agent_message_chunk" and update["content"]["type"] == "image"
    return {"type": "files_complete"} if shown else None


def _chunk(update: Message) -> Event | None:
    match update:
        case {"sessionUpdate": "agent_message_chunk", "content": {"text": text}}:
            return TextDelta(text)
        case {"sessionUpdate": "agent_thought_chunk", "content": {"text": text}}:
            return ReasoningDelta(text)
    return None


def _tool(update: Message, began: set[str]) -> Mapping[str, Any] | None:
    """Return the event of a tool call; a call that ends without having begun was refused."""
    match update:
        case {"sessionUpdate": "tool_call", "toolCallId": call, "title": name, "rawInput": args, "status": "pending"}:
            return {"type": "tool_call_requested", "id": call, "name": name, "args": args}
        case {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "in_progress"}:
            began.add(call)
            return {"type": "tool_execution_started", "id": call}
        case {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status, "content": [content]}:
            result = content["content"]["text"]
            return {"type": ENDED[call not in began], "id": call, "result": result, "is_error": status == "failed"}
    return None
