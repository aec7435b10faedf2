"""The connections of one port: reads the head of each first request, and gives the stream to WebSocket or to HTTP."""

import contextlib
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio
from starlette.types import ASGIApp

from warren.actors.io.streams import GONE
from warren.reports.audit import calling_from
from warren.transport.access.addresses import WEBSOCKET_PATH
from warren.transport.access.config import GatewayConfig
from warren.transport.access.front import UNIX_PEER, TrustedProxies
from warren.transport.access.head import Head
from warren.transport.access.refusals import RETRY, RefusedError
from warren.transport.http.connection import Address, Bodies, HttpConnection, oldest_of_crowd
from warren.transport.http.probes import PATHS
from warren.transport.http.shutdown import Shutdown
from warren.transport.http.wire import Wire

LINGERING: Final = 100
"""Refused or ended connections at once that stay open until the client has read the last answer."""
SPARE: Final = 16
"""Connections beyond the limit at once that have a moment to turn out to be a probe, which is answered even then."""
MOMENT: Final = 1.0
"""Seconds of that moment."""
UNREAD: Final = 1.0
"""Seconds for which a client may leave 64 KiB of its answers unread before it gives way to others."""

logger: Final = logging.getLogger(__name__)

Upgrade = Callable[[HttpConnection, Head], Awaitable[None]]
"""Serves a connection whose first request is for the WebSocket, to its end. Raises RefusedError before it begins."""


class HttpServer:
    """Serves accepted connections; whatever goes wrong with one of them stays with it."""

    def __init__(
        self, config: GatewayConfig, shutdown: Shutdown, app: ASGIApp, probe: ASGIApp, upgrade: Upgrade
    ) -> None:
        """Serve with these parts.

        Args:
            config: the bounds.
            shutdown: its begin closes all connections in good order.
            app: answers HTTP requests. It gets no lifespan events.
            probe: answers the probes, and closes their connections.
            upgrade: serves WebSockets.
        """
        self._config = config
        self._prefix = config.prefix.encode()
        self._proxies = TrustedProxies.of(config.trusted_proxies)
        self._shutdown = shutdown
        self._app = app
        self._probe = probe
        self._upgrade = upgrade
        self._connected = 0
        self._http: dict[HttpConnection, None] = {}
        """The connections that carry requests, the oldest first."""
        self._upgraded = 0
        self._lingering = 0
        self._without_head: dict[trio.CancelScope, None] = {}
        """The connections that have not sent a head yet, the oldest first."""
        self._spare: dict[trio.CancelScope, None] = {}
        """The connections beyond the limit, likewise."""
        self._idle: dict[Wire, float] = {}
        """The time at which each connection that waits for its next request is closed, the earliest first."""
        self._bodies = Bodies()
        self._connections: trio.Nursery | None = None

    @property
    def connections(self) -> Mapping[str, int]:
        """The connections of clients at this moment, by surface."""
        return {"http": self._connected - self._upgraded, "websocket": self._upgraded}

    async def hold_connections(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep a nursery whose connections are closed in good order rather than cancelled in mid-frame."""
        async with trio.open_nursery() as connections:
            task_status.started(connections)
            await trio.lowlevel.checkpoint_if_cancelled()  # a start that was cut short has nothing to hold
            # Cancelling the server ends connections through `shut_down`, which sets a deadline for them.
            connections.cancel_scope.shield = True
            self._connections = connections
            scope = trio.CancelScope()
            with self._shutdown.cancels(scope), scope:
                await self._end_idle()
            for wire in self._idle:
                wire.interrupt()

    def shut_down(self, latest: float = math.inf) -> None:
        """End every connection within twice `close_timeout` seconds, even if the start was cut short.

        No connection outlives the time `latest`.
        """
        if self._connections is not None:
            usual = trio.current_time() + 2 * self._config.close_timeout
            self._connections.cancel_scope.deadline = min(usual, latest)
        self._shutdown.begin()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one TCP connection to its end."""
        wire = Wire(stream, self._config.stall_timeout)
        self._connected += 1
        address = _address(stream)
        peer = None if address is None else address[0]
        calling_from.set(peer)
        connection = HttpConnection(wire, self._config, self._shutdown, address, self._bodies, prefix=self._prefix)
        connection.peer = UNIX_PEER if stream.socket.family == socket.AF_UNIX else peer
        connection.proxies = self._proxies if self._proxies.has(connection.peer) else None
        try:
            try:
                await self._guard(connection)
            finally:
                connection.place.leave()
                self._connected -= 1
            await self._linger(wire)
        finally:
            wire.close()

    async def _linger(self, wire: Wire) -> None:
        """Let the client read the last answer, unless very many connections do so already."""
        if self._lingering < LINGERING:
            self._lingering += 1
            try:
                await wire.linger()
            finally:
                self._lingering -= 1

    async def _guard(self, connection: HttpConnection) -> None:
        try:
            await self._serve(connection)
        except RefusedError as exc:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await connection.wire.send_all(exc.answer(head_only=connection.head_only))
        except Exception as exc:
            logger.log(logging.DEBUG if _is_clients(exc) else logging.ERROR, "a connection failed", exc_info=exc)

    async def _serve(self, connection: HttpConnection) -> None:
        full = self._connected > self._config.max_connections and not _drop_oldest(self._without_head)
        head = await (self._head_of_probe(connection) if full else self._first_head(connection))
        if head is None:
            return
        if head.path in PATHS:
            await connection.answer(head, self._probe)
            return
        if full:
            raise RefusedError(503, "too many connections", RETRY)
        upgrade = head if head.path == WEBSOCKET_PATH else await self._answer_requests(connection, head)
        if upgrade is not None:
            self._upgraded += 1
            try:
                await self._upgrade(connection, upgrade)
            finally:
                self._upgraded -= 1

    async def _answer_requests(self, connection: HttpConnection, head: Head | None) -> Head | None:
        """Answer one request after another; return the head of one for a WebSocket: a proxy may send it at any time."""
        if len(self._http) >= self._config.max_http and not self._make_room():
            raise RefusedError(503, "too many HTTP connections", RETRY)
        self._http[connection] = None
        try:
            while head is not None and head.path != WEBSOCKET_PATH:
                goes_on = await connection.answer(head, self._app_at(head.path))
                head = await self._later_head(connection) if goes_on else None
        finally:
            self._http.pop(connection, None)
            connection.place.leave()  # a WebSocket takes another one
        return head

    def _make_room(self) -> bool:
        """End the request of a client that is slow, or a connection that has none; return whether there was one."""
        return self._bodies.drop_slow() or self._drop_idle() or self._drop_unread()

    def _drop_unread(self) -> bool:
        """Close the oldest connection that is read slowly, of the address that has most of them."""
        unread = [each for each in self._http if each.wire.unread_for > UNREAD]
        oldest = oldest_of_crowd(unread, lambda each: each.host)
        if oldest is None:
            return False
        del self._http[oldest]
        oldest.wire.abort()
        return True

    def _app_at(self, path: str) -> ASGIApp:
        return self._probe if path in PATHS else self._app

    async def _first_head(self, connection: HttpConnection) -> Head | None:
        """Return the head of the first request, None if none comes in time. Raises RefusedError."""
        return await self._head_within(self._config.handshake_timeout, connection, self._without_head)

    async def _head_of_probe(self, connection: HttpConnection) -> Head | None:
        """Return the head of a request beyond the limit, None if none comes at once. Raises RefusedError."""
        if len(self._spare) >= SPARE:
            _drop_oldest(self._spare)
        head = await self._head_within(MOMENT, connection, self._spare)
        if head is None:
            raise RefusedError(503, "too many connections", RETRY)
        return head

    async def _head_within(
        self, seconds: float, connection: HttpConnection, among: dict[trio.CancelScope, None]
    ) -> Head | None:
        scope = trio.move_on_after(seconds)
        among[scope] = None
        try:
            with self._shutdown.cancels(scope), scope:
                return await connection.next_head()
        finally:
            among.pop(scope, None)
        return None

    async def _later_head(self, connection: HttpConnection) -> Head | None:
        """Return the head of the next request, None if none comes in time. Raises RefusedError."""
        # A cancel scope with a deadline for each request would take a tenth of the time of `GET /health`.
        self._idle[connection.wire] = trio.current_time() + self._config.keep_alive_timeout
        try:
            head = await connection.next_head()
        except trio.ClosedResourceError:
            return None
        finally:
            self._idle.pop(connection.wire, None)
            connection.wire.interrupted = False  # a request that came at the last moment is read whole
        return head

    def _drop_idle(self) -> bool:
        """Close the connection that has waited longest for its next request; return whether there was one."""
        for wire in self._idle:
            del self._idle[wire]
            wire.interrupt()
            return True
        return False

    async def _end_idle(self) -> None:
        """Close the connections whose next request does not come in time, until cancelled."""
        while True:
            due = trio.current_time() + self._config.keep_alive_timeout
            for wire, end in tuple(self._idle.items()):
                if end > trio.current_time():
                    due = end
                    break
                del self._idle[wire]
                wire.interrupt()
            await trio.sleep_until(due)


def _drop_oldest(waiting: dict[trio.CancelScope, None]) -> bool:
    """Drop the connection that has waited longest for its first head; return whether there was one.

    Clients that send their request at once are served, however many others only hold connections open.
    """
    for scope in waiting:
        scope.cancel()
        del waiting[scope]
        return True
    return False


def _address(stream: trio.SocketStream) -> Address:
    """Return a client's address; None if the client has gone already, or has none, as on a Unix socket."""
    with contextlib.suppress(OSError):
        match stream.socket.getpeername():
            case (str(host), int(port), *_):
                return host, port
    return None


def _is_clients(exc: Exception) -> bool:
    """Return whether an error says no more than that the client is gone."""
    if isinstance(exc, ExceptionGroup):
        return all(_is_clients(inner) for inner in exc.exceptions)
    return isinstance(exc, GONE)
