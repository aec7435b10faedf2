"""Addresses of gateways, and Unix sockets among them: `unix:PATH`. Plain values, no I/O."""

import os
from typing import Final

LOOPBACK: Final = "127.0.0.1"
WEBSOCKET_PATH: Final = "/ws"
UNIX: Final = "unix:"
LONGEST: Final = 100
"""Bytes of a path that every system takes for a Unix socket."""
OVER_UNIX: Final = f"ws://localhost{WEBSOCKET_PATH}"
"""The address of the WebSocket over a Unix socket: the path of the socket says whose it is."""


def path_in(address: str) -> str | None:
    """Return the path in an address; None if it is none of a Unix socket."""
    return address.removeprefix(UNIX) if address.startswith(UNIX) else None


def is_path(path: str) -> bool:
    """Return whether a Unix socket can have a path."""
    return 0 < len(os.fsencode(path)) <= LONGEST and "\0" not in path


def url_at(host: str, port: int) -> str:
    """Return the address of a gateway for clients."""
    if path_in(host) is not None:
        return host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
