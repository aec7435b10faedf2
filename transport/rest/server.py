"""HTTP by Hypercorn, one small server for each connection.

Hypercorn listens, and the gateway has accepted already: so each connection is handed over through a unix socket in a
folder that nobody else may enter. A server for each connection rather than one for all: what a client does to its own
server harms nobody else's, and its address cannot be forged.
"""

import contextlib
import errno
import itertools
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import h11
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.transport.http.config import GatewayConfig
from warren.transport.http.ending import Ending
from warren.transport.http.handshake import MAX_HEAD, RefusedError
from warren.transport.http.wire import Wire
from warren.transport.rest.answers import RETRY
from warren.transport.rest.events import LEFT

CHUNK: Final = 64 * 1024
LONGEST_FOLDER: Final = 90
"""Bytes that the folder's name may have: a unix socket's whole path has room for about 104."""
Address = tuple[str, int] | None
GRACE: Final = 0.1
"""Seconds that the server has to read what a client has sent last."""
UNSENT: Final = (
    trio.BrokenResourceError,
    trio.BusyResourceError,
    trio.ClosedResourceError,
    h11.LocalProtocolError,
)
"""What Hypercorn raises in an application that answers while it is closing the connection itself."""
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

logger: Final = logging.getLogger(__name__)


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """Make the folder that an `HttpServer` needs, for a body. Raises OSError where there is no place for sockets."""
    with tempfile.TemporaryDirectory(prefix="warren-", ignore_cleanup_errors=True) as folder:
        if len(os.fsencode(folder)) > LONGEST_FOLDER:
            raise OSError(errno.ENAMETOOLONG, f"{folder} is too long a name for a folder of sockets: set TMPDIR")
        yield Path(folder)


@attrs.define(eq=False)
class HttpServer:
    """Serves HTTP on connections that were accepted already.

    Attributes:
        app: what answers. It gets no lifespan events.
        config: bounds.
        ending: from then on, requests are finished and connections closed.
        folder: where the sockets are; nobody else may enter it.
        connections: how many there are.
    """

    app: ASGIApp
    config: GatewayConfig
    ending: Ending
    folder: Path
    connections: int = 0
    _names: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    async def serve(self, wire: Wire, client: Address, received: bytes) -> None:
        """Serve the connection of a client until one side ends it; `received` is what was read of it already.

        A client that resets the connection, or does not read, ends everything at once, by a group with
        trio.BrokenResourceError; calls that ran are given up, not what they began. Raises RefusedError for one
        connection too many; OSError, in a group, where the system has no more sockets.
        """
        if self.connections >= self.config.max_http:
            raise RefusedError(503, "too many HTTP connections", RETRY)
        self.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                wire.unread(received)
                connection = _Connection(self.app, client, self.ending, nursery.cancel_scope.cancel)
                await _splice(wire, await self._start(nursery, connection), connection.left)
                nursery.cancel_scope.cancel()
        finally:
            self.connections -= 1

    async def _start(self, nursery: trio.Nursery, connection: "_Connection") -> trio.SocketStream:
        """Start a server and return the connection to it."""
        path = self.folder / str(next(self._names))
        try:
            start = partial(serve, shutdown_trigger=connection.over, mode="asgi")
            await nursery.start(start, connection, self._settings(path))
            return await trio.open_unix_socket(path)
        finally:
            path.unlink(missing_ok=True)

    def _settings(self, path: Path) -> Config:
        settings = Config()
        settings.bind = [f"unix:{path}"]
        settings.errorlog = logger
        settings.include_server_header = False
        settings.h11_max_incomplete_size = MAX_HEAD
        settings.keep_alive_timeout = self.config.keep_alive_timeout
        settings.graceful_timeout = math.inf  # who ends the connection bounds it
        return settings


async def _splice(wire: Wire, upstream: trio.SocketStream, left: trio.Event) -> None:
    """Carry bytes both ways until the server ends its side; set `left` when the client has ended its own."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_carry_up, wire, upstream, left)
            while data := await _next(upstream):
                await wire.send_all(data)
            nursery.cancel_scope.cancel()
    finally:
        upstream.socket.close()  # at once: what the server still sends must not wait for a reader


async def _carry_up(wire: Wire, upstream: trio.SocketStream, left: trio.Event) -> None:
    """Carry what the client sends, and its end: a client may end its side and wait for the answer."""
    while data := await wire.receive_some(CHUNK):
        with contextlib.suppress(*GONE):
            await upstream.send_all(data)
    with contextlib.suppress(*GONE):
        await upstream.send_eof()
    left.set()


async def _next(upstream: trio.SocketStream) -> bytes:
    """Return what the server says next; nothing at its end, however that came."""
    with contextlib.suppress(trio.BrokenResourceError):
        return bytes(await upstream.receive_some(CHUNK))
    return b""


@attrs.define(eq=False)
class _Connection:
    """The application as one connection sees it, with the address of its client; and when that connection is over.

    Attributes:
        cut: ends the connection at once.
        left: the client has ended its side; it may wait for an answer still.
    """

    app: ASGIApp
    client: Address
    ending: Ending
    cut: Callable[[], None]
    left: trio.Event = attrs.field(factory=trio.Event)
    _requests: int = 0
    _quiet: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._quiet.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["http_version"] == "2":  # Hypercorn cannot be told not to speak it, and waits for ever in places
            self.cut()
            await trio.lowlevel.checkpoint()
        if not self._requests:
            self._quiet = trio.Event()
        self._requests += 1
        try:
            extensions = {**scope.get("extensions", {}), LEFT: self.left}
            await self.app({**scope, "client": self.client, "extensions": extensions}, receive, send)
        except* UNSENT as group:
            logger.debug("a connection ended while it was answered", exc_info=group)
        finally:
            self._requests -= 1
            if not self._requests:
                self._quiet.set()

    async def over(self) -> None:
        """Return once the gateway ends, or nobody is there and nothing is to be answered.

        Hypercorn alone would keep the connection of a client that has left for as long as that of one that is silent.
        """
        scope = trio.CancelScope()
        with self.ending.ends(scope), scope:
            await self.left.wait()
            while True:
                await self._quiet.wait()
                await trio.sleep(GRACE)
                if self._quiet.is_set():
                    return


async def _live(receive: Receive, send: Send) -> None:
    """Answer the events of a server's life: nothing begins or ends with a connection."""
    message: Any = await receive()
    while message["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
        message = await receive()
    await send({"type": "lifespan.shutdown.complete"})
