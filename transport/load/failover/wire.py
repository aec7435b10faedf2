"""A wire between one node and the database, which can be cut without a word to either side."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs
import trio

from warren.values import define

CHUNK: Final = 65_536
PORT: Final = 5432
SOCKETS: Final = "/var/run/postgresql"
"""The folder in which libpq looks for a server without a host, as Debian builds it."""

Dial = Callable[[], Awaitable[trio.SocketStream]]


@define(eq=False)
class Wire:
    """The wire of one node.

    Attributes:
        dial: connects to the database.
        whole: set while bytes are carried; what is sent meanwhile waits, as in a network that loses packets.
    """

    dial: Dial
    whole: trio.Event = attrs.field(factory=trio.Event)

    def cut(self) -> None:
        """Carry nothing from now on; connections stay open, and new ones get no answer."""
        self.whole = trio.Event()

    def mend(self) -> None:
        """Carry again, and first the bytes that have waited."""
        self.whole.set()

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry one connection to its end."""
        await self.whole.wait()
        async with client:
            try:
                server = await self.dial()
            except OSError:
                return
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, client, server, nursery.cancel_scope)
                nursery.start_soon(self._carry, server, client, nursery.cancel_scope)

    async def _carry(self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while piece := await source.receive_some(CHUNK):
                await self.whole.wait()
                await sink.send_all(piece)
        scope.cancel()


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[tuple[Wire, str]]:
    """Lay a wire to the database of an address for a body; yields it with the address that leads through it."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    host = options.pop("host", None) or parts.hostname or SOCKETS
    port = int(options.pop("port", None) or parts.port or PORT)
    dial: Dial = partial(trio.open_tcp_stream, host, port)
    if host.startswith("/"):
        dial = partial(trio.open_unix_socket, f"{host}/.s.PGSQL.{port}")
    wire = Wire(dial)
    wire.mend()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, wire.serve, 0, host="127.0.0.1"))
        here = listeners[0].socket.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        if host.startswith("/"):  # no TLS over Unix sockets, and what they begin with is not understood there
            options |= {"sslmode": "disable", "gssencmode": "disable"}
        query = {"host": "127.0.0.1", "port": f"{here}", **options}
        if not host.startswith("/"):  # the name stays, for the server's certificate
            query |= {"host": host, "hostaddr": "127.0.0.1"}
        yield wire, f"{parts.scheme}://{user}{at}{parts.path}?{urlencode(query)}"
        nursery.cancel_scope.cancel()
