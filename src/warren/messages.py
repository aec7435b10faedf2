"""The transcript's vocabulary: what a conversation is made of, independent of any provider."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "content_filter", "cancelled"]


@attrs.frozen
class TextBlock:
    """Text that the model said."""

    text: str
    metadata: Mapping[str, Any] | None = None


@attrs.frozen
class ReasoningBlock:
    """What the model thought.

    Attributes:
        text: readable reasoning, empty where the provider hides it.
        metadata: opaque provider data (signatures, encrypted reasoning), sent back verbatim.
    """

    text: str
    metadata: Mapping[str, Any] | None = None


@attrs.frozen
class ToolUseBlock:
    """A tool call that the model asked for.

    Attributes:
        id: the call's id, unique within the transcript; its result carries it too.
        name: the tool's name.
        args: the arguments; empty where the model sent none or what it sent was not a JSON object.
        invalid_args: what the model sent instead of a JSON object, verbatim.
        metadata: opaque provider data, sent back verbatim.
    """

    id: str
    name: str
    args: Mapping[str, Any] = attrs.field(factory=dict)
    invalid_args: str | None = None
    metadata: Mapping[str, Any] | None = None


@attrs.frozen
class UnknownBlock:
    """A block of a newer version: kept as it is, skipped when the history is sent to a model."""

    type: str
    data: Mapping[str, Any]


Block = TextBlock | ReasoningBlock | ToolUseBlock | UnknownBlock


@attrs.frozen
class ToolResult:
    """What came of one tool call; every call in a transcript has exactly one."""

    tool_use_id: str
    content: str
    is_error: bool = False


@attrs.frozen
class SystemMessage:
    """Instructions of the program that hosts the session."""

    content: str


@attrs.frozen
class UserMessage:
    """What the user said; it opens an exchange."""

    content: str


@attrs.frozen
class ContextMessage:
    """What the host or another session has put in between: read by the model like a user's words, and none of them.

    It opens no exchange, and the memory does not keep it.

    Attributes:
        content: the text.
        source: who says it; None is the host.
    """

    content: str
    source: str | None = None


@attrs.frozen
class AssistantMessage:
    """One answer of the model: ordered blocks, and why it stopped."""

    blocks: tuple[Block, ...]
    stop_reason: StopReason = "end_turn"

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def tool_calls(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls, in the order the model made them."""
        return tuple(block for block in self.blocks if isinstance(block, ToolUseBlock))


def with_unique_calls(message: AssistantMessage) -> AssistantMessage:
    """Return the message with an id of its own for each tool call: a result could not be told from another's."""
    if not message.tool_calls:
        return message
    seen: set[str] = set()
    blocks = tuple(_unlike(block, seen) if isinstance(block, ToolUseBlock) else block for block in message.blocks)
    return message if blocks == message.blocks else attrs.evolve(message, blocks=blocks)


def _unlike(call: ToolUseBlock, seen: set[str]) -> ToolUseBlock:
    name, number = call.id, 1
    while name in seen or not name:
        number += 1
        name = f"{call.id or 'call'}-{number}"
    seen.add(name)
    return call if name == call.id else attrs.evolve(call, id=name)


@attrs.frozen
class ToolResultsMessage:
    """The results of all tool calls of the assistant message before it, in call order."""

    results: tuple[ToolResult, ...]


Message = SystemMessage | UserMessage | ContextMessage | AssistantMessage | ToolResultsMessage
