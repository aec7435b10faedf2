"""Pings to silent WebSocket clients: a proxy in front keeps the connection, and a client that is gone is noticed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import attrs
import trio

from warren.base.values import define

LOOKS: Final = 8
"""Looks at each connection within the time of a heartbeat."""
PING_AT: Final = LOOKS - 1
"""The look in a row without news that sends a ping: the client fell silent up to one look before the first."""
END_AT: Final = PING_AT + LOOKS
BATCH: Final = 64
"""Connections that are looked at in one go: after a restart thousands may be silent at the same time."""


class Client(Protocol):
    """The client of an open connection."""

    def was_heard(self) -> bool:
        """Return whether the client has shown since the last call that it is there."""

    def ping(self) -> None:
        """Ask the client for a sign of life."""


@define(eq=False)
class _Watched:
    """An open connection, and the number of looks in a row that have found nothing new from its client."""

    client: Client
    end: Callable[[], None]
    looks: int = 0


@define(eq=False)
class Heartbeat:
    """Pings the clients that are silent, and ends the connections of those that stay silent.

    One task looks at all connections: a message costs no timer, and a silent connection no task.

    Attributes:
        interval: the seconds of silence before a ping, which leaves at most an eighth of them earlier, and the seconds
            that a client then has to send anything.
    """

    interval: float
    _open: set[_Watched] = attrs.field(factory=set, init=False)

    @contextmanager
    def watches(self, client: Client, end: Callable[[], None]) -> Iterator[None]:
        """Ping a client when it is silent, during a block, and call `end` if it stays silent."""
        watched = _Watched(client, end)
        self._open.add(watched)
        try:
            yield
        finally:
            self._open.discard(watched)

    async def run(self) -> None:
        """Look at all connections again and again, until cancelled.

        A connection is judged by the number of looks: the time during which the process or its machine stood still
        counts against no client.
        """
        while True:
            await trio.sleep(self.interval / LOOKS)
            for number, watched in enumerate(tuple(self._open), 1):
                self._look(watched)
                if number % BATCH == 0:
                    await trio.lowlevel.checkpoint()

    def _look(self, watched: _Watched) -> None:
        watched.looks = 0 if watched.client.was_heard() else watched.looks + 1
        if watched.looks == PING_AT:
            watched.client.ping()
        elif watched.looks == END_AT:
            watched.end()
