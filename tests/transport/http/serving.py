"""An ASGI application on a port of its own, served by the gateway's HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from starlette.types import ASGIApp

from tests.transport.clients import HOST
from warren.transport.access.config import GatewayConfig
from warren.transport.access.head import Head
from warren.transport.access.refusals import RefusedError
from warren.transport.http.connection import HttpConnection
from warren.transport.http.http_server import HttpServer
from warren.transport.http.probes import probes
from warren.transport.http.shutdown import Shutdown
from warren.transport.http.wire import Wire


async def no_websocket(_connection: HttpConnection, _head: Head) -> None:
    """Refuse to open a WebSocket."""
    await trio.lowlevel.checkpoint()
    raise RefusedError(404, "no WebSocket here", field="$.path")


async def connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a TCP connection, the client's second."""
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    async with listener:
        client = await trio.open_tcp_stream(HOST, listener.socket.getsockname()[1])
        return await listener.accept(), client


async def pair(stall_timeout: float = 5.0) -> tuple[Wire, trio.SocketStream]:
    """Return a wire and the client at its other end."""
    ours, client = await connected()
    return Wire(ours, stall_timeout), client


@asynccontextmanager
async def served(app: ASGIApp, **settings: Any) -> AsyncIterator[int]:
    """Serve an application for a body; yields the port. At the end connections end in good order."""
    server = HttpServer(
        GatewayConfig(**{"close_timeout": 0.3, **settings}), Shutdown(), app, probes(lambda: True), no_websocket
    )
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(server.hold_connections)
        serve = partial(trio.serve_tcp, server.serve, 0, host=HOST, handler_nursery=connections)
        [listener] = await nursery.start(serve)
        try:
            yield listener.socket.getsockname()[1]
        finally:
            server.shut_down()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def served_app(app: ASGIApp, **settings: Any) -> AsyncIterator[trio.SocketStream]:
    """Serve an application for a body; yields a connection to it."""
    async with served(app, **settings) as port, await trio.open_tcp_stream(HOST, port) as stream:
        yield stream
