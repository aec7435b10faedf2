"""Warren: a runtime for many LLM conversations at once that must not lose one.

Begin with `open_supervisor`, which opens a `warren.service.SessionService`. Errors are in `warren.errors`, messages in
`warren.messages`, events in `warren.events`.

The domain does no I/O and imports none of the packages `mailbox`, `storage`, `actors` and `transport`. The names here
are loaded on first use: a program that needs a few types waits neither for the others nor for trio and SQLite.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren.attachments import File
    from warren.budget import Budget
    from warren.config import Config, Intensity, Limits, PostgresConfig, RetryPolicy, StoreConfig
    from warren.errors import ErrorCode, WarrenError
    from warren.events import Envelope, Event
    from warren.messages import Message
    from warren.model import ModelReply, ModelRequest, Provider
    from warren.service import RuntimeService, SessionService
    from warren.tools import Tool, ToolOutput, ToolSpec, tool
    from warren.transport.embed import open_supervisor
    from warren.usage import Usage
    from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

__all__ = [
    "Budget",
    "Config",
    "Envelope",
    "ErrorCode",
    "Event",
    "File",
    "HistoryPage",
    "Intensity",
    "Limits",
    "Message",
    "ModelReply",
    "ModelRequest",
    "PostgresConfig",
    "Provider",
    "RetryPolicy",
    "RuntimeService",
    "SessionPage",
    "SessionService",
    "SessionView",
    "StoreConfig",
    "Tool",
    "ToolOutput",
    "ToolSpec",
    "TurnResult",
    "Usage",
    "WarrenError",
    "open_supervisor",
    "tool",
]

_PLACES: Final = {
    "Budget": "budget",
    "Config": "config",
    "Envelope": "events",
    "ErrorCode": "errors",
    "Event": "events",
    "File": "attachments",
    "HistoryPage": "views",
    "Intensity": "config",
    "Limits": "config",
    "Message": "messages",
    "ModelReply": "model",
    "ModelRequest": "model",
    "PostgresConfig": "config",
    "Provider": "model",
    "RetryPolicy": "config",
    "RuntimeService": "service",
    "SessionPage": "views",
    "SessionService": "service",
    "SessionView": "views",
    "StoreConfig": "config",
    "Tool": "tools",
    "ToolOutput": "tools",
    "ToolSpec": "tools",
    "TurnResult": "views",
    "Usage": "usage",
    "WarrenError": "errors",
    "open_supervisor": "transport.embed",
    "tool": "tools",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
