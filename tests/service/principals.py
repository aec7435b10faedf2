"""Calls of every method of the service by principals of other tenants, for the tests of runtimes and of nodes."""

import inspect
from typing import Any, Final

import trio

from tests.parity.arguments import OPENED, needed
from warren.base.errors import WarrenError
from warren.base.principals import READ, WRITE, Principal, Scope
from warren.calls.facade import RuntimeService, SessionService, call_of

BELOW: Final = ("perform", "stream")
"""What the methods are made of."""
METHODS: Final = sorted(name for name in vars(SessionService) if not name.startswith("_") and name not in BELOW)
OF_RUNTIMES: Final = sorted(name for name in vars(RuntimeService) if not name.startswith("_"))
NO_SESSION: Final = (
    *(
        "agent",
        "agents",
        "approvals",
        "audit",
        "capabilities",
        "change_schedule",
        "change_trigger",
        "change_webhook",
        "check_store",
        "complete_tool",
        "create_schedule",
        "create_session",
        "create_trigger",
        "create_webhook",
        "delete_schedule",
        "delete_trigger",
        "delete_webhook",
        "deliveries",
        "drain_node",
        "list",
        "nodes",
        "resend",
        "schedules",
        "search_memory",
        "stream_session",
        "tenants",
        "triggers",
        "usage",
        "webhooks",
        "watch",
    ),
)
"""Methods that name no session that has to be there."""
OF_SESSIONS: Final = [name for name in METHODS if name not in NO_SESSION]
SCOPE_OF: Final[dict[str, Scope | None]] = {
    **{name: cls.facts.scope for name, method in vars(SessionService).items() if (cls := call_of(method)) is not None},
    "subscribe": READ,
    "watch": READ,
    "stream_session": WRITE,
    "stream_turn": WRITE,
    "capabilities": None,
}
"""The scope of each method."""
SCOPED: Final = [name for name in METHODS if SCOPE_OF[name] is not None]
ACME: Final = Principal("acme", "ann")


async def called(service: RuntimeService, method: str, session_id: str) -> WarrenError | None:
    """Call a method about a session; return its error."""
    try:
        found: Any = getattr(service, method)(**needed(method, session_id))
        if inspect.isawaitable(found):
            with trio.move_on_after(5):
                await found
        elif method in OPENED:
            with trio.move_on_after(5):
                async with found:
                    pass
    except WarrenError as exc:
        return exc
    return None


def fields(error: WarrenError | None, session_id: str) -> object:
    """Return all that an error shows, with a name in place of the id that was asked for."""
    assert error is not None
    shown = repr((type(error), error.body(), error.cause, error.session_id, error.__cause__, error.__context__))
    return shown.replace(session_id, "<id>")
