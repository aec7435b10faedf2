"""Tools of programs, by the name that programs import them by."""

from warren.models.tools import (
    Tool,
    ToolArgumentsError,
    ToolCall,
    ToolError,
    ToolOutput,
    ToolSpec,
    current_call,
    tool,
)

__all__ = [
    "Tool",
    "ToolArgumentsError",
    "ToolCall",
    "ToolError",
    "ToolOutput",
    "ToolSpec",
    "current_call",
    "tool",
]
