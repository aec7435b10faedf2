"""Subscriptions over a gateway, which survive lost connections."""

import logging
from collections import deque
from typing import ClassVar, Final

import anyio

from warren.base.errors import AgentError, WarrenError
from warren.base.principals import LOCAL, Principal
from warren.calls.reading import SubscribeRequest
from warren.calls.streams import EventReader, OnBegin
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.transport.client.connection import LostError
from warren.transport.client.links import ATTEMPTS, Claim, Links
from warren.transport.rpc.behalf import carrying
from warren.transport.rpc.results import Subscribed

PAGE: Final = 256
"""Events that are taken at once."""
MAX_HELD: Final = 1_000
"""Events that wait for a slow owner; beyond it the server is told to stop until they are taken."""
logger: Final = logging.getLogger(__name__)


class _Place:
    """A log's feed on one connection. A log that has moved on to another feed hears no more of this one.

    The server handles requests concurrently, so it is asked to end a subscription once it has said that it has begun.

    Attributes:
        log: the log; None once it has moved on.
        takes_all: see Feed. Before the subscription begins, events of a turn of this client would come too early.
    """

    def __init__(self, log: "RemoteLog", links: Links, principal: Principal) -> None:
        self.log: RemoteLog | None = log
        self.takes_all: bool = False
        self._links = links
        self._principal = principal
        self._claim: Claim | None = None

    async def subscribe(self, session_id: str, after_seq: int | None) -> int | None:
        """Ask for the events above `after_seq`, or for new ones if it is None.

        Return the number after which they begin; None if the log has moved on before the server was asked.
        Raises LostError, WarrenError.
        """
        claim = await self._links.claim(session_id, self)
        if self.log is None:
            claim.release()
            return None
        self._claim = claim
        wanted = carrying(SubscribeRequest(session_id, after_seq=after_seq), self._principal)
        try:
            found = await claim.connection.ask("session/subscribe", wanted, self._answered)
        except WarrenError:
            if self.log is not None:  # there is no subscription, and so no event of it can come
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
        if self.log is not None:
            self.log.hear(envelope)

    def ended(self) -> None:
        if self.log is not None:
            self.log.end()

    def lost(self) -> None:
        if self.log is not None:
            self.log.move_on()

    def leave(self) -> None:
        """Let the log move on, and end the subscription; if it has not begun, as soon as it has."""
        self.log = None
        if self.takes_all:
            self._end()

    def _answered(self) -> None:
        self.takes_all = True
        if self.log is None:
            self._end()

    def _end(self) -> None:
        claim = self._claim
        if claim is not None and not claim.connection.lost:
            self._links.tasks.start_soon(_unsubscribe, claim)


class TurnPlace:
    """The place of a turn's caller: its log gets the events that the connection of the request brings.

    The log begins with the first event. When the turn has ended, the connection is lost, or the owner is slow, it
    moves on to a subscription of its own.

    Attributes:
        log: the log; None before the turn has begun.
        live: whether events that come now follow those that the log has.
        takes_all: see Feed. The caller gets the events of one turn.
    """

    takes_all: ClassVar[bool] = False

    def __init__(self, links: Links, principal: Principal, on_begin: OnBegin | None) -> None:
        """Prepare for a turn; `on_begin` gets the reader."""
        self.log: RemoteLog | None = None
        self.live: bool = True
        self.on_begin: OnBegin | None = on_begin
        self._links = links
        self._principal = principal

    def begin(self, session_id: str, cursor: int) -> "RemoteLog":
        """Give the caller its reader."""
        log = self.log = RemoteLog(self._links, session_id, cursor, self._principal)
        if self.live:
            log.place = self
        if self.on_begin is not None:
            try:
                self.on_begin(log.reader)
            except Exception:
                logger.exception("on_begin of session %s raised: it gets nothing of this turn", session_id)
                log.reader.close()
        return log

    def event(self, envelope: Envelope) -> None:
        """Take the next event."""
        if self.live:
            log = self.log or self.begin(envelope.session_id, (envelope.first_seq or envelope.seq) - 1)
            log.hear(envelope)

    def ended(self) -> None:
        """Do nothing: the answer comes."""

    def lost(self) -> None:
        """Take no events of a later connection: there may be a gap before them."""
        self.live = False
        if self.log is not None:
            self.log.move_on()

    def leave(self) -> None:
        """Let the log move on."""
        self.live = False


class RemoteLog:
    """A session's log on a server, as its one reader gets it.

    Events are read ahead up to a bound; beyond it, and after a lost connection, the log subscribes again behind the
    last event that it has, so that none is missed and none comes twice.

    Attributes:
        session_id: the session.
        reader: the reader.
        newest: the last seq that was heard of.
        settling: see EventReader. The server holds the events back itself.
        closed: whether the log has ended.
        place: where events come from: a subscription, or the request of a turn; None while the log has none.
    """

    settling: ClassVar[bool] = False

    def __init__(self, links: Links, session_id: str, cursor: int | None, principal: Principal = LOCAL) -> None:
        """Prepare for a reader behind `cursor`; None is for the next event that is published. `load` connects it."""
        self.session_id: str = session_id
        self.reader: EventReader = EventReader(self, cursor or 0)
        self.newest: int = cursor or 0
        self.place: _Place | TurnPlace | None = None
        self._links = links
        self._principal = principal
        self._cursor = cursor
        self._held: deque[Envelope] = deque()
        self.closed: bool = False
        self._connecting = anyio.Lock()

    # -- for the reader

    def news(self) -> anyio.Event:
        return anyio.Event()

    def is_behind(self, reader: EventReader) -> bool:
        del reader
        return bool(self._held)

    def take(self, reader: EventReader) -> list[Envelope] | None:
        """Return the next events; None also if the log is on no connection, so `load` has to connect."""
        if reader.cursor != (self._cursor or 0):
            self._follow(reader)
        held = self._held
        if not held:
            return [] if self.place is not None or self.closed else None
        if len(held) <= PAGE:
            page = list(held)
            held.clear()
        else:
            page = [held.popleft() for _ in range(PAGE)]
        self._cursor = reader.cursor = page[-1].seq
        return page

    async def load(self, reader: EventReader) -> list[Envelope]:
        """Connect, and return the events that have come."""
        self._follow(reader)
        await self.connect()
        return self.take(reader) or []

    def another(self, reader: EventReader) -> EventReader:
        self._follow(reader)
        return RemoteLog(self._links, self.session_id, self._cursor, self._principal).reader

    def leave(self, reader: EventReader) -> None:
        del reader
        self.closed = True
        self._held.clear()
        self._leave_place()

    def _follow(self, reader: EventReader) -> None:
        """Begin again if the reader was moved."""
        if reader.cursor != (self._cursor or 0):
            self._held.clear()
            self._cursor = reader.cursor
            self._leave_place()

    # -- for the connection

    @property
    def subscribed(self) -> bool:
        """Whether the log has a subscription, or asks for one."""
        return isinstance(self.place, _Place)

    async def newest_there(self) -> int:
        """Return the number of the newest event at the server. Raises WarrenError."""

        async def ask() -> int:
            await self.connect()
            if self.closed:
                raise AgentError("the subscription has ended", cause="not_owner", retryable=True)
            if not isinstance(self.place, _Place):  # it was lost as soon as it had begun
                raise LostError(sent=False)
            return await self.place.newest(self.session_id)

        found: int = await self._links.repeat(ask, repeatable=True)
        return found

    def hear(self, envelope: Envelope) -> None:
        """Take an event from the connection."""
        first = not self._held
        self._held.append(envelope)
        self.newest = max(self.newest, envelope.seq)
        if len(self._held) >= MAX_HELD:
            self.move_on()
        if first:
            self.reader.notify(envelope.event)

    def end(self) -> None:
        """Handle the end of the log."""
        self.closed = True
        self._leave_place()
        self._notify()

    def move_on(self) -> None:
        """Give the place on the connection up; the next `load` takes another one."""
        if self.place is not None:
            self._leave_place()
            self._notify()

    async def connect(self) -> None:
        """Subscribe behind the last event that is here, unless the log has a place or has ended.

        Return when the subscription has begun, even if another task asks for it. If that one fails or is cancelled,
        the next task that waits tries. Raises WarrenError if the server refuses.
        """
        async with self._connecting:
            for _ in range(ATTEMPTS):
                if self.place is not None or self.closed:
                    return
                self.place = place = _Place(self, self._links, self._principal)
                try:
                    first = await place.subscribe(self.session_id, self._held[-1].seq if self._held else self._cursor)
                except BaseException as exc:
                    if self.place is place:
                        self.place = None
                    place.leave()
                    self._notify()  # the task that iterates may wait for events of this place
                    if not isinstance(exc, LostError):
                        raise
                    continue
                if self._cursor is None and first is not None:
                    self._cursor = self.reader.cursor = first
                    self.newest = max(self.newest, first)
                return
        raise AgentError("each connection was lost before the subscription began", cause="unreachable", retryable=True)

    def _leave_place(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            place.leave()

    def _notify(self) -> None:
        """Tell the reader that it has to look, if nothing is held that it has heard of."""
        if not self._held:
            self.reader.notify(None)


async def _unsubscribe(claim: Claim) -> None:
    """Give a place up once no event of it can come any more: behind the answer of the server."""
    try:
        await claim.connection.ask("session/unsubscribe", {"session_id": claim.session_id})
    except (LostError, WarrenError):
        pass  # there is no subscription any more
    finally:
        claim.release()
