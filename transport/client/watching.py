"""The watch of a gateway's sessions, which survives lost connections."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import anyio

from warren.base.principals import Principal
from warren.base.values import define
from warren.calls.reading import WatchRequest
from warren.conversation.views import SessionChanges, SessionSummary
from warren.transport.client.links import Links
from warren.transport.rpc.behalf import carrying

MOST: Final = 10_000
"""Changed sessions that wait for a reader; beyond it the reader is told to list them."""


@define(eq=False)
class _Place:
    """The receiver of the changes on one connection."""

    watch: "RemoteWatch"

    def hear(self, changes: SessionChanges | None) -> None:
        self.watch.hear(self, changes)


class RemoteWatch(AsyncIterator[SessionChanges]):
    """The `ChangeReader` of a server's sessions. Changes that come while nobody reads are merged.

    A lost connection is opened again, and the next changes say that some were missed.
    """

    def __init__(self, links: Links, wanted: WatchRequest, principal: Principal) -> None:
        """Prepare a watch; `connect` begins it."""
        self._links = links
        self._params = carrying(wanted, principal)
        self._sessions: dict[str, SessionSummary | None] = {}  # None is one that is gone
        self._missed = self._lost = False
        self._place: _Place | None = None
        self._news = anyio.Event()
        self._connection = AsyncExitStack()

    async def connect(self) -> None:
        """Begin the watch on a connection of its own. Raises WarrenError if the server refuses."""

        async def begin() -> None:
            self._place = None
            await self._connection.aclose()
            place, self._lost = _Place(self), False
            connection = await self._connection.enter_async_context(self._links.own(on_changes=place.hear))
            self._place = place
            await connection.ask("session/watch", self._params)

        await self._links.repeat(begin, repeatable=True)

    async def aclose(self) -> None:
        """End the watch."""
        await self._connection.aclose()

    def hear(self, place: "_Place", changes: SessionChanges | None) -> None:
        """Take changes, or the end of the connection; nothing of an earlier connection."""
        if place is not self._place:
            return
        if changes is None:
            self._lost = self._missed = True
        else:
            if changes.missed:
                self._sessions.clear()
                self._missed = True
            self._sessions |= {row.session_id: row for row in changes.sessions} | dict.fromkeys(changes.gone)
            if len(self._sessions) > MOST:
                self._sessions.clear()
                self._missed = True
        self._news.set()

    def __aiter__(self) -> "RemoteWatch":
        return self

    async def __anext__(self) -> SessionChanges:
        while not self._lost and not self._sessions and not self._missed:
            self._news = anyio.Event()
            await self._news.wait()
        if self._lost:
            await self.connect()
        sessions, missed, self._sessions, self._missed = self._sessions, self._missed, {}, False
        rows = tuple(row for row in sessions.values() if row is not None)
        return SessionChanges(rows, tuple(each for each, row in sessions.items() if row is None), missed)
