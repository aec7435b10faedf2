"""Warren: a runtime for many LLM conversations at once that must not lose one.

Begin with `open_supervisor`, which opens a `warren.service.SessionService`. Errors are in `warren.errors`, messages in
`warren.messages`, events in `warren.events`.

The domain does no I/O and imports none of the packages `mailbox`, `storage`, `actors` and `transport`.
"""

from typing import TYPE_CHECKING

from warren.budget import Budget
from warren.config import Config, Intensity, Limits, PostgresConfig, RetryPolicy, StoreConfig
from warren.errors import ErrorCode, WarrenError
from warren.events import Envelope, Event
from warren.messages import Message
from warren.model import ModelReply, ModelRequest, Provider
from warren.service import RuntimeService, SessionService
from warren.tools import Tool, ToolSpec, tool
from warren.usage import Usage
from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

if TYPE_CHECKING:
    from warren.transport.embed import open_supervisor

__all__ = [
    "Budget",
    "Config",
    "Envelope",
    "ErrorCode",
    "Event",
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
    "ToolSpec",
    "TurnResult",
    "Usage",
    "WarrenError",
    "open_supervisor",
    "tool",
]


def __getattr__(name: str) -> object:
    # The runtime is imported on first use, so that code that needs only Warren's types loads neither trio nor SQLite.
    if name == "open_supervisor":
        from warren.transport.embed import open_supervisor  # noqa: PLC0415 - see above

        return open_supervisor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
