"""The end of a client's side of a connection, as an application sees it (ASGI)."""

from typing import Any

import trio
from starlette.types import Receive


async def until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel a scope once the client has ended its side of the connection."""
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
    scope.cancel()
