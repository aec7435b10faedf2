"""The probes of an orchestrator: whether the event loop turns, and whether new work should be sent here.

They need no token and have no body. They read what the process knows already, so whoever polls them costs the store
nothing, and they are answered beside the limits on connections.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # `warren health` does without the extra of the gateway
    from starlette.types import ASGIApp, Receive, Scope, Send

LIVE: Final = "/livez"
READY: Final = "/readyz"
PATHS: Final = frozenset({LIVE, READY})
HEADERS: Final = [(b"content-length", b"0"), (b"cache-control", b"no-store"), (b"connection", b"close")]
ALLOW: Final = [*HEADERS, (b"allow", b"GET, HEAD")]


def probes(ready: Callable[[], bool]) -> "ASGIApp":
    """Return the application that answers at `PATHS`, and closes the connection after it.

    Args:
        ready: tells whether the process takes new work.
    """

    async def answer(scope: "Scope", _receive: "Receive", send: "Send") -> None:
        status, headers = 200, HEADERS
        if scope["method"] not in ("GET", "HEAD"):
            status, headers = 405, ALLOW
        elif scope["path"] == READY and not ready():
            status = 503
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body"})

    return answer
