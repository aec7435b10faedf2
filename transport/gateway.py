"""The WebSocket gateway: JSON-RPC at `/ws`, one message a frame."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import trio
from trio_websocket import ConnectionClosed, wrap_server_stream
from wsproto.utilities import ProtocolError

from warren.service import SessionService
from warren.transport.auth import read_token
from warren.transport.connection import Connection
from warren.transport.gateway_config import GatewayConfig
from warren.transport.handshake import Gate, Head, HeadReader, RefusedError, plain_upgrade
from warren.transport.methods import Host
from warren.transport.wire import Wire

__all__ = ["GatewayConfig", "read_token", "serve_gateway"]

RECEIVE_BYTES: Final = 64 * 1024
MESSAGE_QUEUE: Final = 16
UNREAD: Final = 4
"""How many times the limit a message may have before it is not even read: a client deserves to be told why."""

logger: Final = logging.getLogger(__name__)


async def serve_gateway(
    service: SessionService,
    config: GatewayConfig,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve sessions over WebSocket until cancelled; `task_status` gets the port once clients can connect.

    Cancelling it closes every connection with code 1001, within twice `close_timeout` seconds. Turns that clients
    started go on: they are the service's.

    Raises InvalidParamsError, before anything is bound, for an address that others reach without a token; OSError
    where the address cannot be bound.
    """
    config.check_exposure()
    listeners = await _listen(config)
    gateway = _Gateway(service, config)
    try:
        async with trio.open_nursery() as nursery:
            connections = await nursery.start(gateway.hold_connections)
            task_status.started(listeners[0].socket.getsockname()[1])
            try:
                await trio.serve_listeners(gateway.serve, listeners, handler_nursery=connections)
            finally:
                gateway.shut_down(connections)
    finally:
        for listener in listeners:
            listener.socket.close()


async def _listen(config: GatewayConfig) -> list[trio.SocketListener]:
    """Bind. A name with several addresses gets one of them where the port is to be picked: each would get its own."""
    listeners = await trio.open_tcp_listeners(config.port, host=config.host)
    if config.port == 0:
        for listener in listeners[1:]:
            listener.socket.close()
        del listeners[1:]
    return listeners


class _Gateway:
    """Everything that the connections share."""

    def __init__(self, service: SessionService, config: GatewayConfig) -> None:
        self._config = config
        self._host = Host(service, config.public())
        self._gate = Gate(config.token, config.origins)
        self._connected = 0
        self._ending = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    async def hold_connections(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep a nursery whose connections are closed in good order rather than cancelled in mid-frame."""
        async with trio.open_nursery() as connections:
            connections.cancel_scope.shield = True
            task_status.started(connections)
            await self._ending.wait()

    def shut_down(self, connections: trio.Nursery) -> None:
        """End every connection, within a bound."""
        connections.cancel_scope.deadline = trio.current_time() + 2 * self._config.close_timeout
        self._ending.set()
        for scope in self._scopes:
            scope.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one TCP connection; whatever goes wrong with it stays with it."""
        wire = Wire(stream, self._config.stall_timeout)
        self._connected += 1
        try:
            await self._guard(wire)
            await wire.linger()
        finally:
            self._connected -= 1
            wire.close()

    async def _guard(self, wire: Wire) -> None:
        try:
            await self._serve(wire)
        except Exception as exc:
            logger.log(logging.DEBUG if _is_clients(exc) else logging.ERROR, "a connection failed", exc_info=exc)

    async def _serve(self, wire: Wire) -> None:
        try:
            if (head := await self._open(wire)) is not None:
                await self._upgrade(wire, head, self._gate.check(head))
        except RefusedError as exc:
            await wire.send_all(exc.answer())

    async def _open(self, wire: Wire) -> Head | None:
        """Return the request that opens a WebSocket, None where none comes. Raises RefusedError."""
        if self._connected > self._config.max_connections:
            raise RefusedError(503, "too many connections")
        reader = HeadReader()
        scope = trio.move_on_after(self._config.handshake_timeout)
        with self._ended_by_shutdown(scope), scope:
            while data := await wire.receive_some(RECEIVE_BYTES):
                if (head := reader.feed(data)) is not None:
                    return head
        return None

    async def _upgrade(self, wire: Wire, head: Head, subprotocol: str | None) -> None:
        wire.unread(plain_upgrade(head, subprotocol))
        async with trio.open_nursery() as io:
            request = await wrap_server_stream(
                io, wire, MESSAGE_QUEUE, UNREAD * self._config.max_message_bytes, receive_buffer_size=RECEIVE_BYTES
            )
            socket = await request.accept(subprotocol=subprotocol)
            connection = Connection(socket, wire, self._host, self._config)
            with self._ended_by_shutdown(connection.serving):
                await connection.run()
            io.cancel_scope.cancel()

    @contextlib.contextmanager
    def _ended_by_shutdown(self, scope: trio.CancelScope) -> Iterator[None]:
        """Have a scope cancelled when the gateway ends."""
        self._scopes.add(scope)
        if self._ending.is_set():
            scope.cancel()
        try:
            yield
        finally:
            self._scopes.discard(scope)


def _is_clients(exc: Exception) -> bool:
    """Return whether an error says no more than that the client is gone or does not keep to the protocol."""
    if isinstance(exc, ExceptionGroup):
        return all(_is_clients(inner) for inner in exc.exceptions)
    return isinstance(exc, ConnectionClosed | ProtocolError | trio.BrokenResourceError | trio.ClosedResourceError)
