"""The connections of a client: idle ones are taken newest first, and close by themselves when nobody takes them."""

from collections import OrderedDict, defaultdict
from typing import Final, Self

import attrs
import httpx
import trio

from warren.base.values import define
from warren.transport.providers.http.connecting import Connector, Origin
from warren.transport.providers.http.connection import NEVER, ClientConnection, Patience
from warren.transport.providers.http.reader import ResponseReader

LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=1_000, keepalive_expiry=30.0)
"""The limits of the providers: the runtime bounds its calls, and a thousand sessions keep their connections."""


@define(eq=False)
class HttpPool(httpx.AsyncBaseTransport):
    """A transport of httpx that keeps connections. No request looks at a connection that it does not use.

    A request goes out once: nothing is sent again by itself, for a server may have acted on what it did not answer. A
    kept connection whose server has hung up meanwhile is not used. A connection goes back only if the whole answer has
    arrived; it is closed if a call is cancelled, fails, or leaves its answer before.

    Attributes:
        connector: makes the connections.
        limits: the most connections, idle ones, and the seconds for which one may be idle.
    """

    connector: Connector = attrs.field(factory=Connector)
    limits: httpx.Limits = LIMITS
    _idle: OrderedDict[ClientConnection, Origin] = attrs.field(factory=OrderedDict, init=False, repr=False)
    """All that are idle, the longest idle first."""
    _stacks: defaultdict[Origin, dict[ClientConnection, None]] = attrs.field(init=False, repr=False)
    """The idle connections of each server, the newest last."""
    _room: trio.Semaphore | None = attrs.field(init=False, repr=False)
    _sweeper: trio.CancelScope | None = attrs.field(default=None, init=False, repr=False)
    _closed: bool = attrs.field(default=False, init=False, repr=False)

    @_stacks.default
    def _no_stacks(self) -> defaultdict[Origin, dict[ClientConnection, None]]:
        return defaultdict(dict)

    @_room.default
    def _new_room(self) -> trio.Semaphore | None:
        most = self.limits.max_connections
        return None if most is None else trio.Semaphore(most)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the answer, whose body is still to be read; see httpx.

        Raises:
            httpx.TransportError: as httpx's own transport does.
        """
        if self._closed:
            raise RuntimeError("the client is closed")
        origin, patience = Origin.of(request.url), Patience.of(request)
        if self._room is not None:
            await self._enter(self._room, patience.pool)
        connection = self._taken(origin)
        try:
            if connection is None:
                self._make_room()
                connection = await self.connector.connect(origin, patience.connect)
            answer = await connection.ask(request, patience)
        except BaseException:
            self.end(connection)
            raise
        body = ResponseBody(self, connection, origin, patience.read)
        extensions = {"http_version": b"HTTP/" + answer.version, "reason_phrase": answer.reason}
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=extensions)

    async def aclose(self) -> None:
        """Close the idle connections, at once also if cancelled. Those in use close with their answers."""
        self._closed = True
        for connection in [*self._idle]:
            self._drop(connection)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _enter(self, room: trio.Semaphore, seconds: float) -> None:
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            await room.acquire()
        if scope.cancelled_caught:
            raise httpx.PoolTimeout(f"all connections were in use for {seconds:g} s")

    def _leave(self) -> None:
        if self._room is not None:
            self._room.release()

    def _taken(self, origin: Origin) -> ClientConnection | None:
        """Take the newest idle connection to a server, or return None."""
        stack = self._stacks[origin]
        while stack:
            connection, _ = stack.popitem()
            del self._idle[connection]
            if connection.alive:
                return connection
            connection.drop()
        return None

    def _make_room(self) -> None:
        """Close idle connections to other servers if there would be too many with a new one."""
        if self._room is not None and self.limits.max_connections is not None:
            in_use = self.limits.max_connections - self._room.value
            self._shrink(self.limits.max_connections - in_use)

    def _shrink(self, most: int | None) -> None:
        while most is not None and len(self._idle) > most:
            self._drop(next(iter(self._idle)))

    def _drop(self, connection: ClientConnection) -> None:
        """Close an idle connection."""
        del self._stacks[self._idle.pop(connection)][connection]
        connection.drop()

    def end(self, connection: ClientConnection | None) -> None:
        """Close a connection that was in use."""
        if connection is not None:
            connection.drop()
        self._leave()

    def keep(self, connection: ClientConnection, origin: Origin) -> None:
        """Keep a connection whose request is done."""
        self._leave()
        if self._closed:
            connection.drop()
            return
        connection.idle_since = trio.current_time()
        self._idle[connection] = origin
        self._stacks[origin][connection] = None
        self._shrink(self.limits.max_keepalive_connections)
        if self._sweeper is None and self.limits.keepalive_expiry is not None:
            self._sweeper = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._sweep, self._sweeper, self.limits.keepalive_expiry)

    async def _sweep(self, scope: trio.CancelScope, seconds: float) -> None:
        """Close connections that were idle for so long, until none is idle."""
        with scope:
            while self._idle:
                oldest = next(iter(self._idle))
                if (end := oldest.idle_since + seconds) > trio.current_time():
                    await trio.sleep_until(end)
                else:
                    self._drop(oldest)
        self._sweeper = None  # no checkpoint since the loop has seen that nothing is idle


@define(eq=False)
class ResponseBody(httpx.AsyncByteStream):
    """The body of an answer, in parts as they arrive. It is no generator, so it may be left at any time.

    Attributes:
        ended: whether nothing follows: the whole body has been returned, or the connection was given up.
    """

    _pool: HttpPool
    _connection: ClientConnection
    _origin: Origin
    _patience: float = NEVER
    ended: bool = False

    def __aiter__(self) -> Self:
        """Go on after the last part that was read."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next part. Raises httpx.TransportError."""
        while not self.ended:
            reader = self._connection.reader
            part = reader.taken()
            if reader.done:
                self._leave()
            elif not part:
                await self._more(reader)
            if part:
                return part
        raise StopAsyncIteration

    async def _more(self, reader: ResponseReader) -> None:
        if reader.failure is not None:
            self._leave()
            raise httpx.RemoteProtocolError(reader.failure)
        try:
            await self._connection.receive(self._patience)
        except BaseException:
            self._leave()
            raise

    async def aclose(self) -> None:
        """Close the connection unless the whole body has arrived. It never waits."""
        if not self.ended:
            self._leave()

    def _leave(self) -> None:
        """Give the connection back, if the whole answer has arrived: this body must not touch it any more."""
        self.ended = True
        pool, connection = self._pool, self._connection
        if connection.reader.done and not connection.idle_since:
            pool.connector.remember(connection, self._origin)
        if connection.reusable:
            pool.keep(connection, self._origin)
        else:
            pool.end(connection)
