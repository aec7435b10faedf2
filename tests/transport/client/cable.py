"""A cable between a client and a gateway that can be cut."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from tests.transport.clients import HOST, gateway
from warren.calls.facade import RuntimeService
from warren.client import RemoteService, connect


@attrs.define(eq=False)
class Cable:
    """Carries bytes to a port.

    Attributes:
        target: the port of the gateway; it may change.
        tls: takes the TLS off that clients speak; None if they speak none.
        port: the port of this end.
        closed: whether new connections are refused.
        opened: connections so far.
        carried: bytes so far, both ways.
    """

    target: int
    port: int = 0
    tls: ssl.SSLContext | None = None
    closed: bool = False
    opened: int = 0
    carried: int = 0
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def url(self) -> str:
        """The address of this end."""
        return f"ws://{HOST}:{self.port}"

    @property
    def carrying(self) -> int:
        """The number of connections."""
        return len(self._scopes)

    def cut(self) -> None:
        """Cut all connections."""
        for scope in self._scopes:
            scope.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Carry one connection."""
        client: trio.abc.Stream = stream
        if self.tls is not None:
            client = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        async with client:
            if self.closed:
                return
            self.opened += 1
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    async with await trio.open_tcp_stream(HOST, self.target) as server, trio.open_nursery() as tasks:
                        tasks.start_soon(self._carry, client, server, scope)
                        tasks.start_soon(self._carry, server, client, scope)
                except OSError:
                    pass  # the gateway is away
                finally:
                    self._scopes.discard(scope)

    async def _carry(self, source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, scope: trio.CancelScope) -> None:
        try:
            async for piece in source:
                self.carried += len(piece)
                await sink.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def cable(target: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Cable]:
    """Lay a cable to a port; with `tls` clients reach it over TLS."""
    laid = Cable(target, tls=tls)
    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(trio.serve_tcp, laid.serve, 0)
        laid.port = listeners[0].socket.getsockname()[1]
        yield laid
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def linked(
    service: RuntimeService, *, patience: float = 10, **settings: Any
) -> AsyncIterator[tuple[RemoteService, Cable]]:
    """A client of a service, by way of a cable."""
    async with (
        gateway(service, **settings) as port,
        cable(port) as wire,
        connect(wire.url, patience=patience) as remote,
    ):
        yield remote, wire
