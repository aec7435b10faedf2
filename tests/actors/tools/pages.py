"""Pages of a web server, and the sockets that are open."""

import socket
from collections.abc import Awaitable, Callable

import trio

from tests.transport.providers.server import Request

Handler = Callable[[Request, trio.SocketStream], Awaitable[None]]


def page(body: bytes, kind: str = "text/plain", status: str = "200 OK", **headers: str) -> Handler:
    """Return a handler that answers with a page."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{named}\r\n"

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(head.encode() + body)

    return handle


def open_sockets() -> int:
    """Count the stream sockets of this process to an IP address, by asking the kernel."""
    return sum(is_connected(fd) for fd in range(256))


def is_connected(fd: int) -> bool:
    """Return whether a descriptor is a connected socket of IP."""
    try:
        with socket.socket(fileno=fd) as found:
            try:
                return found.family in (socket.AF_INET, socket.AF_INET6) and bool(found.getpeername())
            finally:
                found.detach()
    except OSError:
        return False
