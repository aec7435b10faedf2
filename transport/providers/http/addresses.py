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

from warren.base.values import define, frozen

FRESH: Final = 10.0
"""Seconds for which the addresses of a name hold."""
PATIENCE: Final = 1.0
"""Seconds that one of several addresses has to accept a connection, before the next one is used.

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

    async def connected(self) -> trio.SocketStream | None:
        """Return a stream to the address whose turn it is, or None if the server refuses it, or takes too long.

        Such an address is not used again.
        """
        self.addresses.rotate(-1)
        address, patience = self.addresses[-1], PATIENCE if len(self.addresses) > 1 else math.inf
        connection, stream = trio.socket.socket(self.family, socket.SOCK_STREAM), None
        try:
            with contextlib.suppress(OSError), trio.move_on_after(patience):
                await connection.connect(address)
                stream = trio.SocketStream(connection)
        finally:
            if stream is None:
                connection.close()
        if stream is None and address in self.addresses:
            self.addresses.remove(address)
        return stream


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
            if known is not None and known.addresses and trio.current_time() < known.until:
                stream = await known.connected()
                if stream is not None:
                    return stream
                continue
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
                self._known[place] = await _known_by(place, stream)
            except BaseException:
                stream.socket.close()
                raise
        except OSError as exc:
            search.error = _explained(exc)
            raise search.error from exc
        finally:
            del self._searches[place]
            search.ended.set()
        return stream

    def _forget(self) -> None:
        """Drop the lookups that no longer hold."""
        now = trio.current_time()
        for place in [place for place, known in self._known.items() if known.until <= now]:
            del self._known[place]


async def _known_by(place: Place, reached: trio.SocketStream) -> _Known:
    """Return the addresses of a place that are of the family of a stream to it, and first the one that it reached."""
    family, addresses = reached.socket.family, []
    with contextlib.suppress(OSError), trio.move_on_after(PATIENCE):
        addresses.append(reached.socket.getpeername())
        found = await trio.socket.getaddrinfo(*place, family=family, type=socket.SOCK_STREAM)
        addresses += [address for *_, address in found if address not in addresses]
    return _Known(family, deque(addresses), trio.current_time() + FRESH)


def _explained(error: OSError) -> OSError:
    """Return an error with the reason of the system: trio has it in a group behind its own words."""
    group = error.__cause__
    return OSError(f"{error}: {group.exceptions[-1]}") if isinstance(group, ExceptionGroup) else error
