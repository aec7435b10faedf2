"""Addresses of servers: many connections to one at once look its name up once, and take its addresses in turn.

A thousand sessions that begin together would else look the name of their provider up a thousand times, each in a
thread. A lookup holds for a moment only: operators move servers by their names.
"""

import contextlib
import math
import socket
from collections import deque
from typing import Any, Final, NamedTuple

import attrs
import trio

from warren.values import define, frozen

FRESH: Final = 10.0
"""Seconds for which the addresses of a name hold."""
PATIENCE: Final = 1.0
"""Seconds that one of several addresses has to accept a connection, before the name is looked up anew.

An only one has the time of the caller: a server that very many connect to at once may let some of them wait.
"""


class Place(NamedTuple):
    """A name or an address, and a port."""

    host: str
    port: int


@frozen(eq=False)
class _Known:
    """The addresses of a place.

    Attributes:
        family: the family of all of them, one in which the server was reached.
        addresses: as the system's functions take them, the next one to use first.
        until: the time on trio's clock up to which they hold.
    """

    family: int
    addresses: deque[Any]
    until: float

    def next(self) -> Any:
        """Return the address whose turn it is."""
        self.addresses.rotate(-1)
        return self.addresses[-1]


@define(eq=False)
class _Search:
    """A first connection to a place, for whose outcome others wait."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    error: OSError | None = None


@define(eq=False)
class Addresses:
    """Opens TCP streams to servers, by names or addresses."""

    _known: dict[Place, _Known] = attrs.field(factory=dict)
    _searches: dict[Place, _Search] = attrs.field(factory=dict)

    async def stream_to(self, host: str, port: int) -> trio.SocketStream:
        """Return a new stream to a server. Raises OSError if the server cannot be reached.

        If nothing is known of the place, one caller searches for it, at all its addresses, and the others wait: they
        have its addresses then, or its error.
        """
        place = Place(host, port)
        while True:
            known = self._known.get(place)
            if known is not None and trio.current_time() < known.until:
                stream = await _accepted(known)
                if stream is not None:
                    return stream
                if self._known.get(place) is known:
                    del self._known[place]
            search = self._searches.get(place)
            if search is None:
                return await self._found(place)
            await search.ended.wait()
            if search.error is not None:
                raise OSError(*search.error.args) from search.error

    async def _found(self, place: Place) -> trio.SocketStream:
        """Look a place up, try its addresses, and note those of the family that answers first."""
        search = self._searches[place] = _Search()
        try:
            stream = await trio.open_tcp_stream(*place)
            try:
                self._forget()
                self._known[place] = await _addresses(place, stream)
            except BaseException:
                stream.socket.close()
                raise
        except OSError as exc:
            search.error = exc
            raise
        finally:
            del self._searches[place]
            search.ended.set()
        return stream

    def _forget(self) -> None:
        """Drop the lookups that no longer hold."""
        now = trio.current_time()
        for place in [place for place, known in self._known.items() if known.until <= now]:
            del self._known[place]


async def _addresses(place: Place, reached: trio.SocketStream) -> _Known:
    """Return the addresses of a place that are of the family of a stream to it."""
    family, addresses = reached.socket.family, [reached.socket.getpeername()]
    with contextlib.suppress(socket.gaierror):
        found = await trio.socket.getaddrinfo(*place, family=family, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(address for *_, address in found))
    return _Known(family, deque(addresses), trio.current_time() + FRESH)


async def _accepted(known: _Known) -> trio.SocketStream | None:
    """Return a stream to the next address, or None if the server refuses it, or takes too long."""
    connection = trio.socket.socket(known.family, socket.SOCK_STREAM)
    stream = None
    try:
        with contextlib.suppress(OSError), trio.move_on_after(PATIENCE if len(known.addresses) > 1 else math.inf):
            await connection.connect(known.next())
            stream = trio.SocketStream(connection)
    finally:
        if stream is None:
            connection.close()
    return stream
