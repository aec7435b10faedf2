"""The messages of spans, in the form of OpenTelemetry's conventions for generative AI. No I/O."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from warren.conversation.attachments import Attachment
from warren.conversation.messages import (
    AssistantMessage,
    Block,
    ContextMessage,
    HostedToolBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)

LONGEST: Final = 64 * 1024
"""Characters of an attribute, or of one text in it: receivers refuse large requests whole."""
Part = Mapping[str, Any]


def said(message: Message) -> dict[str, Any] | None:
    """Return a message; None for one that has nothing to show."""
    match message:
        case UserMessage(content=content, attachments=files):
            return of("user", [text(content), *map(_file, files)])
        case ContextMessage(content=content):
            return of("user", [text(content)])
        case AssistantMessage(blocks=blocks):
            parts = [part for part in map(_part, blocks) if part is not None]
            return of("assistant", parts) if parts else None
        case ToolResultsMessage(results=results):
            return of("tool", list(map(_result, results)))
    return None


def of(role: str, parts: Sequence[Part]) -> dict[str, Any]:
    """Return a message of these parts."""
    return {"role": role, "parts": parts}


def text(content: str) -> Part:
    """Return a text as a part."""
    return {"type": "text", "content": content[:LONGEST]}


def call(number: str, name: str, args: Mapping[str, Any]) -> Part:
    """Return a tool call as a part; its arguments are cut to a text if they are too long."""
    arguments = json.dumps(dict(args), default=str)
    short = len(arguments) <= LONGEST
    return {
        "type": "tool_call",
        "id": number,
        "name": name,
        "arguments": json.loads(arguments) if short else arguments[:LONGEST],
    }


def response(number: str, result: str) -> Part:
    """Return the result of a tool as a part."""
    return {"type": "tool_call_response", "id": number, "response": result[:LONGEST]}


def encoded(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return messages as the JSON of an attribute: the newest ones, as many as it may have, one at least."""
    parts, size = list[str](), 0
    for message in reversed([*messages]):
        part = json.dumps(message)
        size += len(part)
        if parts and size > LONGEST:
            break
        parts.append(part)
    return f"[{', '.join(reversed(parts))}]"


def _part(block: Block) -> Part | None:
    match block:
        case TextBlock(text=content):
            return text(content)
        case ReasoningBlock(text=content) if content:
            return {"type": "reasoning", "content": content[:LONGEST]}
        case ToolUseBlock(id=number, name=name, args=args):
            return call(number, name, args)
        case HostedToolBlock(kind=kind):
            return {"type": kind}
    return None


def _result(result: ToolResult) -> Part:
    return response(result.tool_use_id, result.content)


def _file(file: Attachment) -> Part:
    own = {"type": "uri", "uri": file.url} if file.url is not None else {"type": "file", "file_id": file.sha256}
    return {**own, "modality": file.kind, "mime_type": file.media_type}
