"""The gateway: on one port, JSON-RPC over WebSocket at `/ws`, one message a frame, and REST everywhere else."""

import contextlib
import logging
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio
from starlette.types import ASGIApp

from warren.service import SessionService
from warren.transport.gateway.connection import Connection
from warren.transport.http.auth import read_token
from warren.transport.http.config import GatewayConfig
from warren.transport.http.ending import Ending
from warren.transport.http.handshake import PATH, Gate, Head, HeadReader, RefusedError, plain_request, switch
from warren.transport.http.wire import Wire
from warren.transport.mcp.late import LateMcp
from warren.transport.rest.answers import RETRY
from warren.transport.rest.app import rest_app
from warren.transport.rest.server import Address, HttpServer, socket_folder
from warren.transport.rpc.methods import Host

__all__ = ["GatewayConfig", "read_token", "serve_gateway"]

MCP_PATH: Final = "/mcp"
RECEIVE_BYTES: Final = 64 * 1024
FAREWELLS: Final = 100
"""Clients that have left, or were refused, and may still read why; in a flood of them the others have to do without."""

logger: Final = logging.getLogger(__name__)


async def serve_gateway(
    service: SessionService,
    config: GatewayConfig,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve sessions over WebSocket and HTTP until cancelled; `task_status` gets the port once clients can connect.

    Cancelling it closes every WebSocket with code 1001, ends every stream of events and answers every request that
    waits, within twice `close_timeout` seconds. Turns that clients started go on: they are the service's.

    Raises InvalidParamsError, before anything is bound, for an address that others reach without a token; OSError
    where the address cannot be bound.
    """
    config.check_exposure()
    with socket_folder() as folder:
        listeners = await _listen(config)
        try:
            await _serve(service, config, listeners, folder, task_status)
        finally:
            for listener in listeners:
                listener.socket.close()


async def _serve(
    service: SessionService,
    config: GatewayConfig,
    listeners: list[trio.SocketListener],
    folder: Path,
    task_status: trio.TaskStatus[int],
) -> None:
    host, ending = Host(service, config.public()), Ending()
    async with trio.open_nursery() as nursery:
        mounts: dict[str, ASGIApp] = {}
        if find_spec("mcp") is not None:  # it has an extra of its own
            mounts[MCP_PATH] = mcp = LateMcp()
            bounds = {"max_body": config.max_message_bytes, "max_calls": config.max_in_flight}
            nursery.start_soon(partial(mcp.hold, service, ending, **bounds))
        http = HttpServer(rest_app(host, config, ending, mounts), config, ending, folder)
        gateway = _Gateway(host, config, ending, http)
        try:
            connections = await nursery.start(gateway.hold_connections)
            task_status.started(listeners[0].socket.getsockname()[1])
            await trio.serve_listeners(gateway.serve, listeners, handler_nursery=connections)
        finally:
            gateway.shut_down()


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

    def __init__(self, host: Host, config: GatewayConfig, ending: Ending, http: HttpServer) -> None:
        self._config = config
        self._host = host
        self._gate = Gate(config.token, config.origins, config.host)
        self._connected = 0
        self._leaving = 0
        self._knocking: dict[trio.CancelScope, None] = {}
        self._connections: trio.Nursery | None = None
        self._ending = ending
        self._http = http

    async def hold_connections(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep a nursery whose connections are closed in good order rather than cancelled in mid-frame."""
        async with trio.open_nursery() as connections:
            task_status.started(connections)
            await trio.lowlevel.checkpoint_if_cancelled()  # a start that was cut short has nothing to hold
            connections.cancel_scope.shield = True
            self._connections = connections
            await self._ending.wait()

    def shut_down(self) -> None:
        """End every connection, within a bound; also where the start was cut short."""
        if self._connections is not None:
            self._connections.cancel_scope.deadline = trio.current_time() + 2 * self._config.close_timeout
        self._ending.begin()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one TCP connection; whatever goes wrong with it stays with it."""
        wire = Wire(stream, self._config.stall_timeout)
        self._connected += 1
        try:
            try:
                await self._guard(wire, stream)
            finally:
                self._connected -= 1
            await self._part(wire)
        finally:
            wire.close()

    async def _part(self, wire: Wire) -> None:
        """Let a client read what was said last, unless very many have to."""
        if self._leaving < FAREWELLS:
            self._leaving += 1
            try:
                await wire.linger()
            finally:
                self._leaving -= 1

    async def _guard(self, wire: Wire, stream: trio.SocketStream) -> None:
        try:
            await self._serve(wire, _peer(stream))
        except Exception as exc:
            logger.log(logging.DEBUG if _is_clients(exc) else logging.ERROR, "a connection failed", exc_info=exc)

    async def _serve(self, wire: Wire, peer: Address) -> None:
        try:
            head = await self._open(wire)
            if head is not None and head.path == PATH:
                await self._upgrade(wire, head, self._gate.check(head))
            elif head is not None:
                await self._http.serve(wire, peer, plain_request(head))
        except RefusedError as exc:
            await wire.send_all(exc.answer())

    async def _open(self, wire: Wire) -> Head | None:
        """Return the head of the first request, None where none comes. Raises RefusedError."""
        if self._connected > self._config.max_connections and not self._make_room():
            raise RefusedError(503, "too many connections", RETRY)
        reader = HeadReader()
        scope = trio.move_on_after(self._config.handshake_timeout)
        self._knocking[scope] = None
        try:
            with self._ending.ends(scope), scope:
                while data := await wire.receive_some(RECEIVE_BYTES):
                    if (head := reader.feed(data)) is not None:
                        return head
        finally:
            self._knocking.pop(scope, None)
        return None

    def _make_room(self) -> bool:
        """Drop who has taken longest to say what it wants; return whether there was somebody.

        Clients that say it at once come in, however many others only hold the door.
        """
        for scope in self._knocking:
            scope.cancel()
            del self._knocking[scope]
            return True
        return False

    async def _upgrade(self, wire: Wire, head: Head, subprotocol: str | None) -> None:
        wire.unread(head.rest)
        await wire.send_all(switch(head, subprotocol))
        connection = Connection(wire, self._host, self._config)
        with self._ending.ends(connection.serving):
            await connection.run()


def _peer(stream: trio.SocketStream) -> Address:
    """Return a client's address; None for one that has gone already."""
    with contextlib.suppress(OSError):
        host, port, *_ = stream.socket.getpeername()
        return host, port
    return None


def _is_clients(exc: Exception) -> bool:
    """Return whether an error says no more than that the client is gone or does not keep to the protocol."""
    if isinstance(exc, ExceptionGroup):
        return all(_is_clients(inner) for inner in exc.exceptions)
    return isinstance(exc, trio.BrokenResourceError | trio.ClosedResourceError)
