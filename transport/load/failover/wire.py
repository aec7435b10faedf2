"""A wire to the database or to a node, which can be cut without a word to either side."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs
import trio

from warren.base.values import define

CHUNK: Final = 65_536
HOST: Final = "127.0.0.1"
PORT: Final = 5432
SOCKETS: Final = "/var/run/postgresql"
"""The folder in which libpq looks for a server without a host, as Debian builds it."""
STORES: Final = b"INSERT INTO warren.events"
"""A part of the statement that stores turns."""
IDLE: Final = b"Z\0\0\0\5I"
"""The end of the server's answer behind which no transaction is open."""

Dial = Callable[[], Awaitable[trio.SocketStream]]


@define(eq=False)
class Commits:
    """The requests of one connection to PostgreSQL, as far as a commit is known by its request and its answer.

    Attributes:
        statement: the name under which the server has the statement that stores turns.
        asked: whether the newest request commits, if it is no part of a transaction that goes on.
    """

    statement: bytes | None = None
    asked: bool = False

    def ask(self, piece: bytes) -> None:
        """Look at a piece from the client."""
        kind, rest = piece[:1], piece[5:]
        if kind == b"P" and STORES in piece:
            self.statement = rest.partition(b"\0")[0]
        if kind == b"B":  # its first text is the name of the portal, which is empty
            self.asked = rest.split(b"\0", 2)[1] == self.statement
        elif kind in (b"P", b"Q"):
            self.asked = rest == b"COMMIT\0"

    def answered(self, piece: bytes) -> bool:
        """Return whether a piece from the server is the answer to a commit."""
        return self.asked and piece.endswith(IDLE)


@define(eq=False)
class Wire:
    """The wire of one node.

    Attributes:
        dial: connects to the other end.
        whole: set while bytes are carried; what is sent meanwhile waits, as in a network that loses packets.
        swallows: whether answers to commits are lost, each with its connection.
        swallowed: answers that were lost so far.
    """

    dial: Dial
    whole: trio.Event = attrs.field(factory=trio.Event)
    swallows: bool = False
    swallowed: int = 0

    def __attrs_post_init__(self) -> None:
        self.whole.set()

    def cut(self) -> None:
        """Carry nothing from now on; connections stay open, and new ones get no answer."""
        self.whole = trio.Event()

    def mend(self) -> None:
        """Carry everything again, and first the bytes that have waited."""
        self.swallows = False
        self.whole.set()

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry one connection to its end."""
        await self.whole.wait()
        async with client:
            try:
                server = await self.dial()
            except OSError:
                return
            commits = Commits()
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, client, server, nursery.cancel_scope, commits, True)
                nursery.start_soon(self._carry, server, client, nursery.cancel_scope, commits, False)

    async def _carry(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        scope: trio.CancelScope,
        commits: Commits,
        up: bool,  # noqa: FBT001 - a nursery passes arguments by their places
    ) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while piece := await source.receive_some(CHUNK):
                if up:
                    commits.ask(piece)
                elif self.swallows and commits.answered(piece):
                    self.swallowed += 1
                    break
                await self.whole.wait()
                await sink.send_all(piece)
        scope.cancel()


@asynccontextmanager
async def laid(wire: Wire) -> AsyncIterator[int]:
    """Carry the connections to a port of this machine for a body; yields the port."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, wire.serve, 0, host=HOST))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


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
    async with laid(wire) as here:
        user, at, _ = parts.netloc.rpartition("@")
        if host.startswith("/"):  # no TLS over Unix sockets, and what they begin with is not understood there
            options |= {"sslmode": "disable", "gssencmode": "disable"}
        query = {"host": HOST, "port": f"{here}", **options}
        if not host.startswith("/"):  # the name stays, for the server's certificate
            query |= {"host": host, "hostaddr": HOST}
        yield wire, f"{parts.scheme}://{user}{at}{parts.path}?{urlencode(query)}"
