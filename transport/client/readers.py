"""Subscriptions over a gateway, which survive lost connections."""

import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import ClassVar, Final

import anyio

from warren.base.errors import AgentError, WarrenError
from warren.base.principals import LOCAL, Principal
from warren.calls.reading import SubscribeRequest
from warren.calls.streams import Notify, OnBegin
from warren.conversation import codec
from warren.conversation.events import Envelope, Event
from warren.transport.client.connection import LostError
from warren.transport.client.links import ATTEMPTS, Claim, Links
from warren.transport.rpc.behalf import carrying
from warren.transport.rpc.results import Subscribed

PAGE: Final = 256
"""Events that are taken at once."""
MAX_HELD: Final = 1_000
"""Events that wait for a slow owner; beyond it the server is told to stop until they are taken."""
logger: Final = logging.getLogger(__name__)


def quiet(_event: Event | None) -> None:
    """Nobody waits."""


class _Place:
    """A reader's feed on one connection. A reader that has moved on to another feed hears no more of this one.

    The server handles requests concurrently, so it is asked to end a subscription once it has said that it has begun.

    Attributes:
        reader: the reader; None once it has moved on.
        takes_all: see Feed. Before the subscription begins, events of a turn of this client would come too early.
    """

    def __init__(self, reader: "RemoteReader", links: Links, principal: Principal) -> None:
        self.reader: RemoteReader | None = reader
        self.takes_all = False
        self._links = links
        self._principal = principal
        self._claim: Claim | None = None

    async def subscribe(self, session_id: str, after_seq: int | None) -> int | None:
        """Ask for the events above `after_seq`, or for new ones if it is None.

        Return the number after which they begin; None if the reader has moved on before the server was asked.
        Raises LostError, WarrenError.
        """
        claim = await self._links.claim(session_id, self)
        if self.reader is None:
            claim.release()
            return None
        self._claim = claim
        wanted = carrying(SubscribeRequest(session_id, after_seq=after_seq), self._principal)
        try:
            found = await claim.connection.ask("session/subscribe", wanted, self._answered)
        except WarrenError:
            if self.reader is not None:  # there is no subscription, and so no event of it can come
                self._claim = None
                claim.release()
            raise
        return codec.from_server(Subscribed, found).after_seq

    async def newest(self, session_id: str) -> int:
        """Return the number of the session's newest event. Raises as `subscribe`.

        A second request without a number leaves the subscription as it is.
        """
        if self._claim is None:
            raise LostError(sent=False)
        wanted = carrying(SubscribeRequest(session_id), self._principal)
        found = await self._claim.connection.ask("session/subscribe", wanted)
        return codec.from_server(Subscribed, found).after_seq

    def event(self, envelope: Envelope) -> None:
        if self.reader is not None:
            self.reader.hear(envelope)

    def ended(self) -> None:
        if self.reader is not None:
            self.reader.end()

    def lost(self) -> None:
        if self.reader is not None:
            self.reader.leave()

    def leave(self) -> None:
        """Let the reader move on, and end the subscription; if it has not begun, as soon as it has."""
        self.reader = None
        if self.takes_all:
            self._end()

    def _answered(self) -> None:
        self.takes_all = True
        if self.reader is None:
            self._end()

    def _end(self) -> None:
        claim = self._claim
        if claim is not None and not claim.connection.lost:
            self._links.tasks.start_soon(_unsubscribe, claim)


class TurnPlace:
    """The place of a turn's caller: its reader gets the events that the connection of the request brings.

    The reader begins with the first event. When the turn has ended, the connection is lost, or the owner is slow, it
    moves on to a subscription of its own.

    Attributes:
        reader: the reader; None before the turn has begun.
        live: whether events that come now follow those that the reader has.
        takes_all: see Feed. The caller gets the events of one turn.
    """

    takes_all: ClassVar[bool] = False

    def __init__(self, links: Links, principal: Principal, on_begin: OnBegin | None) -> None:
        """Prepare for a turn; `on_begin` gets the reader."""
        self.reader: RemoteReader | None = None
        self.live: bool = True
        self.on_begin: OnBegin | None = on_begin
        self._links = links
        self._principal = principal

    def begin(self, session_id: str, cursor: int) -> "RemoteReader":
        """Give the caller its reader."""
        reader = self.reader = RemoteReader(self._links, session_id, cursor, self._principal)
        if self.live:
            reader.sit(self)
        if self.on_begin is not None:
            try:
                self.on_begin(reader)
            except Exception:
                logger.exception("on_begin of session %s raised: it gets nothing of this turn", session_id)
                reader.close()
        return reader

    def event(self, envelope: Envelope) -> None:
        """Take the next event."""
        if self.live:
            reader = self.reader or self.begin(envelope.session_id, (envelope.first_seq or envelope.seq) - 1)
            reader.hear(envelope)

    def ended(self) -> None:
        """Do nothing: the answer comes."""

    def lost(self) -> None:
        """Take no events of a later connection: there may be a gap before them."""
        self.live = False
        if self.reader is not None:
            self.reader.leave()

    def leave(self) -> None:
        """Let the reader move on."""
        self.live = False


class RemoteReader(AsyncIterator[Envelope]):
    """A place in a session's log on a server: an `EventReader`.

    Events are read ahead up to a bound; beyond it, and after a lost connection, the reader subscribes again behind the
    last event that it has, so that none is missed and none comes twice.

    Attributes:
        settling: see EventReader. The server holds the events back itself.
    """

    settling: bool = False

    def __init__(self, links: Links, session_id: str, cursor: int | None, principal: Principal = LOCAL) -> None:
        """Prepare a reader behind `cursor`; None is for the next event that is published. `load` connects it."""
        self.notify: Notify = quiet
        self._links = links
        self._principal = principal
        self._session_id = session_id
        self._cursor = cursor
        self._held: deque[Envelope] = deque()
        self._newest = cursor or 0
        self._place: _Place | TurnPlace | None = None
        self._ended = False
        self._moved: anyio.Event | None = None
        self._connecting = anyio.Lock()

    @property
    def session_id(self) -> str:
        """The session."""
        return self._session_id

    @property
    def cursor(self) -> int:
        """See EventReader."""
        return self._cursor or 0

    @cursor.setter
    def cursor(self, seq: int) -> None:
        self.leave()
        self._held.clear()
        self._cursor = seq

    @property
    def newest(self) -> int:
        """The last seq that was heard of."""
        return self._newest

    @property
    def over(self) -> bool:
        """See EventReader."""
        return self._ended and not self._held

    def take(self) -> list[Envelope] | None:
        """See EventReader. None also means that the reader is not connected."""
        if not self._held:
            return [] if self._place is not None or self._ended else None
        page = [self._held.popleft() for _ in range(min(PAGE, len(self._held)))]
        self._cursor = page[-1].seq
        return page

    async def load(self) -> list[Envelope]:
        """Connect, and return the events that have come. Raises WarrenError if the server refuses."""
        await self.connect()
        return self.take() or []

    async def newest_there(self) -> int:
        """Return the number of the newest event at the server. Raises WarrenError."""

        async def ask() -> int:
            await self.connect()
            if self._ended:
                raise AgentError("the subscription has ended", cause="not_owner", retryable=True)
            if not isinstance(self._place, _Place):  # it was lost as soon as it had begun
                raise LostError(sent=False)
            return await self._place.newest(self._session_id)

        found: int = await self._links.repeat(ask, repeatable=True)
        return found

    def another(self) -> "RemoteReader":
        """See EventReader."""
        return RemoteReader(self._links, self._session_id, self._cursor, self._principal)

    def close(self) -> None:
        """See EventReader."""
        self.leave()
        self._ended = True
        self._held.clear()
        self._wake()

    @property
    def connected(self) -> bool:
        """Whether events come, by a subscription or with the answer to a turn's request."""
        return self._place is not None

    @property
    def subscribed(self) -> bool:
        """Whether the reader has a subscription, or asks for one."""
        return isinstance(self._place, _Place)

    def sit(self, place: TurnPlace) -> None:
        """Get the events of a turn from its own place."""
        self._place = place

    def hear(self, envelope: Envelope) -> None:
        """Take an event from the connection."""
        first = not self._held
        self._held.append(envelope)
        self._newest = max(self._newest, envelope.seq)
        if len(self._held) >= MAX_HELD:
            self.leave()
        self._wake()
        if first:
            self.notify(envelope.event)

    def end(self) -> None:
        """Handle the end of the log."""
        self._ended = True
        self.leave()
        if not self._held:
            self.notify(None)

    def leave(self) -> None:
        """Give the place on the connection up; the next `load` takes another one."""
        place, self._place = self._place, None
        if place is None:
            return
        place.leave()
        self._wake()
        if not (self._held or self._ended):
            self.notify(None)

    def __aiter__(self) -> "RemoteReader":
        return self

    async def __anext__(self) -> Envelope:
        while not self._held:
            if self._ended:
                raise StopAsyncIteration
            if self._place is None:
                await self.connect()
            else:
                if self._moved is None:
                    self._moved = anyio.Event()
                await self._moved.wait()
        envelope = self._held.popleft()
        self._cursor = envelope.seq
        return envelope

    async def connect(self) -> None:
        """Subscribe behind the last event that is here, unless the reader has a place or has ended.

        Return when the subscription has begun, also if another task asks for it. If that one fails or is cancelled,
        the next task that waits tries. Raises WarrenError if the server refuses.
        """
        async with self._connecting:
            for _ in range(ATTEMPTS):
                if self._place is not None or self._ended:
                    return
                self._place = place = _Place(self, self._links, self._principal)
                try:
                    first = await place.subscribe(self._session_id, self._held[-1].seq if self._held else self._cursor)
                except BaseException as exc:
                    if self._place is place:
                        self._place = None
                    place.leave()
                    self._wake()  # the task that iterates may wait for events of this place
                    if not isinstance(exc, LostError):
                        raise
                    continue
                if self._cursor is None and first is not None:
                    self._cursor = first
                    self._newest = max(self._newest, first)
                return
        raise AgentError("each connection was lost before the subscription began", cause="unreachable", retryable=True)

    def _wake(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set()


async def _unsubscribe(claim: Claim) -> None:
    """Give a place up once no event of it can come any more: behind the answer of the server."""
    try:
        await claim.connection.ask("session/unsubscribe", {"session_id": claim.session_id})
    except (LostError, WarrenError):
        pass  # there is no subscription any more
    finally:
        claim.release()
