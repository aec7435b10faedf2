"""A wire between a store and its PostgreSQL server that can be cut at any message, in either direction."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import attrs
import trio

Way = Literal["up", "down"]


@attrs.define(eq=False)
class Wire:
    """The behaviour of the wire from now on, and the bytes that it has carried.

    Attributes:
        url: the address of the store, by way of the wire.
        path: the socket of the server to which new connections lead.
        carried: pieces that were carried, up to the server and down from it.
        fail_at: the number of the piece at which all connections are cut; that piece is lost.
        fail_way: only pieces that go this way count for `fail_at`; None for both.
        closed: whether new connections are refused.
        closes: whether the cut by `fail_at` also closes the wire to new connections.
        cuts: how often connections were cut by `fail_at`.
        answers: as long as it is not set, pieces from the server are held back, so that it seems to hang.
        requests: as long as it is not set, pieces to the server are held back.
    """

    url: str = ""
    path: str = ""
    carried: int = 0
    fail_at: int | None = None
    fail_way: Way | None = None
    closed: bool = False
    closes: bool = True
    cuts: int = 0
    answers: trio.Event = attrs.field(factory=trio.Event)
    requests: trio.Event = attrs.field(factory=trio.Event)
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    def cut(self) -> None:
        """Cut all connections."""
        for scope in self._scopes:
            scope.cancel()

    def hold(self) -> None:
        """Carry nothing in either direction, and cut nothing: a partition of the network."""
        self.answers, self.requests = trio.Event(), trio.Event()

    def go_on(self) -> None:
        """Carry everything, also what was held back."""
        self.answers.set()
        self.requests.set()

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry one connection."""
        if self.closed:
            await trio.aclose_forcefully(client)
            return
        try:
            server = await trio.open_unix_socket(self.path)
        except OSError:
            await trio.aclose_forcefully(client)
            return
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, client, server, "up", scope)
                    nursery.start_soon(self._carry, server, client, "down", scope)
            finally:
                self._scopes.discard(scope)
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(client)
                    await trio.aclose_forcefully(server)

    async def _carry(
        self, source: trio.SocketStream, sink: trio.SocketStream, way: Way, scope: trio.CancelScope
    ) -> None:
        try:
            while piece := await source.receive_some(65536):
                if self.fail_way in (None, way):
                    self.carried += 1
                    if self.fail_at is not None and self.carried >= self.fail_at:
                        self.fail_at = None
                        self.closed = self.closes
                        self.cuts += 1
                        self.cut()
                        return
                await (self.answers if way == "down" else self.requests).wait()
                await sink.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """Lay a wire to the server of an address that `tests.support.postgres.database` has made."""
    parts = urlsplit(url)
    wire = Wire(path=f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432")
    wire.go_on()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, wire.serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        wire.url = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable&gssencmode=disable"
        yield wire
        nursery.cancel_scope.cancel()
