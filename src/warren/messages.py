"""The messages of a conversation, by the name that programs import them by."""

from warren.conversation.messages import (
    AssistantMessage,
    Block,
    ContextMessage,
    FileBlock,
    HostedToolBlock,
    Message,
    ReasoningBlock,
    StopReason,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UnknownBlock,
    UserMessage,
)

__all__ = [
    "AssistantMessage",
    "Block",
    "ContextMessage",
    "FileBlock",
    "HostedToolBlock",
    "Message",
    "ReasoningBlock",
    "StopReason",
    "SystemMessage",
    "TextBlock",
    "ToolResult",
    "ToolResultsMessage",
    "ToolUseBlock",
    "UnknownBlock",
    "UserMessage",
]
