"""Warren: a runtime for many LLM conversations at once that must not lose one.

Begin with `open_supervisor`, which opens a `SessionService`. Errors are in `warren.errors`, messages in
`warren.messages`, events in `warren.events`.

The domain does no I/O and imports none of the packages `mailbox`, `storage`, `actors` and `transport`. The names here
are loaded on first use: a program that needs a few types waits neither for the others nor for trio and SQLite.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren.agents.agent import Agent
    from warren.agents.hooks import Denied, Hooks
    from warren.base.errors import ErrorCode, WarrenError
    from warren.base.principals import Principal
    from warren.calls.facade import RuntimeService, SessionService
    from warren.calls.handle import Session
    from warren.calls.turn_stream import TurnStream
    from warren.compaction.policy import Compactor
    from warren.conversation.attachments import File
    from warren.conversation.budget import Budget
    from warren.conversation.categories import Gates, Switches
    from warren.conversation.events import Envelope, Event
    from warren.conversation.memory import MemoryConfig
    from warren.conversation.messages import Message
    from warren.conversation.options import CompactionConfig, ModelOptions, SessionOptions, SessionTemplate
    from warren.conversation.peers import Peer
    from warren.conversation.usage import Usage
    from warren.conversation.views import HistoryPage, SessionPage, SessionView, TurnResult
    from warren.models.model import ModelReply, ModelRequest, Provider, ReasoningPiece, TextPiece
    from warren.models.tools import Tool, ToolContext, ToolOutput, ToolSpec, tool
    from warren.settings.config import Config, Intensity, Limits, PostgresConfig, RetryPolicy, StoreConfig
    from warren.settings.tool_config import McpServer, ToolsConfig
    from warren.transport.embed import open_supervisor

__all__ = [
    "Agent",
    "Budget",
    "CompactionConfig",
    "Compactor",
    "Config",
    "Denied",
    "Envelope",
    "ErrorCode",
    "Event",
    "File",
    "Gates",
    "HistoryPage",
    "Hooks",
    "Intensity",
    "Limits",
    "McpServer",
    "MemoryConfig",
    "Message",
    "ModelOptions",
    "ModelReply",
    "ModelRequest",
    "Peer",
    "PostgresConfig",
    "Principal",
    "Provider",
    "ReasoningPiece",
    "RetryPolicy",
    "RuntimeService",
    "Session",
    "SessionOptions",
    "SessionPage",
    "SessionService",
    "SessionTemplate",
    "SessionView",
    "StoreConfig",
    "Switches",
    "TextPiece",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolSpec",
    "ToolsConfig",
    "TurnResult",
    "TurnStream",
    "Usage",
    "WarrenError",
    "open_supervisor",
    "tool",
]

_PLACES: Final = {
    "Agent": "agents.agent",
    "Budget": "conversation.budget",
    "CompactionConfig": "conversation.options",
    "Compactor": "compaction.policy",
    "Config": "settings.config",
    "Denied": "agents.hooks",
    "Envelope": "conversation.events",
    "ErrorCode": "base.errors",
    "Event": "conversation.events",
    "File": "conversation.attachments",
    "Gates": "conversation.categories",
    "HistoryPage": "conversation.views",
    "Hooks": "agents.hooks",
    "Intensity": "settings.config",
    "Limits": "settings.config",
    "McpServer": "settings.tool_config",
    "MemoryConfig": "conversation.memory",
    "Message": "conversation.messages",
    "ModelOptions": "conversation.options",
    "ModelReply": "models.model",
    "ModelRequest": "models.model",
    "Peer": "conversation.peers",
    "PostgresConfig": "settings.config",
    "Principal": "base.principals",
    "Provider": "models.model",
    "ReasoningPiece": "models.model",
    "RetryPolicy": "settings.config",
    "RuntimeService": "calls.facade",
    "Session": "calls.handle",
    "SessionOptions": "conversation.options",
    "SessionPage": "conversation.views",
    "SessionService": "calls.facade",
    "SessionTemplate": "conversation.options",
    "SessionView": "conversation.views",
    "StoreConfig": "settings.config",
    "Switches": "conversation.categories",
    "TextPiece": "models.model",
    "Tool": "models.tools",
    "ToolContext": "models.tools",
    "ToolOutput": "models.tools",
    "ToolSpec": "models.tools",
    "ToolsConfig": "settings.tool_config",
    "TurnResult": "conversation.views",
    "TurnStream": "calls.turn_stream",
    "Usage": "conversation.usage",
    "WarrenError": "base.errors",
    "open_supervisor": "transport.embed",
    "tool": "models.tools",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
