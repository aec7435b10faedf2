"""A turn's events on their way to a client that asked for progress."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from warren import codec
from warren.events import Envelope, Event, ReasoningDelta, TextDelta
from warren.service import OnEvent, SessionService
from warren.transport.event_text import text_of_event
from warren.transport.rpc.feeds import Feeds
from warren.transport.rpc.outbox import Outbox
from warren.views import TurnResult

WAITING: Final = 256
"""Events that may wait for a client that reads slowly; the others stay in the log until it has read."""

Send = Callable[[Envelope], Awaitable[None]]
Run = Callable[[OnEvent], Awaitable[TurnResult]]

logger: Final = logging.getLogger(__name__)


class Progress:
    """Hands a turn's events over, in order and all of them, without ever holding the turn up."""

    def __init__(self, service: SessionService, send: Send, tasks: trio.Nursery) -> None:
        """Report a turn of a service; `send` brings one event to the client."""
        self._send = send
        self._outbox = Outbox(WAITING, notify=self._notify)
        self._moved = trio.lowlevel.ParkingLot()
        self._feeds = Feeds(service, self._outbox, self._moved, tasks, max_subscriptions=0)
        self._waiting = trio.Event()
        self._ended = False

    async def stream(self, session_id: str | None, run: Run) -> TurnResult:
        """Run a turn; returns or raises after its last event was handed over."""
        return await self._feeds.stream(session_id, run)

    def end(self) -> None:
        """Have `deliver` return once the client has everything."""
        self._ended = True
        self._notify()

    async def deliver(self) -> None:
        """Send what was put in, until the end. A client that cannot be reached any more gets nothing, and no error."""
        try:
            while not self._ended or self._outbox:
                await self._waiting.wait()
                self._waiting = trio.Event()
                await self._send_all()
        except Exception:
            logger.exception("progress cannot be reported any more")
        finally:
            self._outbox.close()
            self._moved.unpark_all()

    async def _send_all(self) -> None:
        taken = self._outbox.take()
        self._moved.unpark_all()
        for item in taken:
            if isinstance(item, Envelope):
                await self._send(item)

    def _notify(self) -> None:
        self._waiting.set()


def message_of(event: Event) -> str:
    """Return what a person who watches is shown: the text as it comes, and in words what happens besides."""
    match event:
        case TextDelta(delta=delta) | ReasoningDelta(delta=delta):
            return delta
    return text_of_event(event) or str(codec.to_data(event)["type"]).replace("_", " ")
