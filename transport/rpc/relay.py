"""The events of one turn on their way to its caller, for the surfaces that send each event in a message of its own."""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from warren.base.errors import WarrenError
from warren.calls.streams import EventReader
from warren.conversation.events import TERMINAL, Envelope, StreamTruncated
from warren.conversation.views import TurnResult

Send = Callable[[Envelope], Awaitable[None]]

logger: Final = logging.getLogger(__name__)


class Relay:
    """Sends all events of a turn in order. The turn never waits for the client."""

    def __init__(self, send: Send, tasks: trio.Nursery) -> None:
        """Prepare to relay a turn.

        Args:
            send: sends one event to the client.
            tasks: the nursery of the task that reads the log.
        """
        self._send = send
        self._tasks = tasks
        self._reader: EventReader | None = None
        self._delivering = trio.CancelScope()
        self._newest = 0
        self._last: float = math.inf
        self._done = trio.Event()

    def begin(self, reader: EventReader) -> None:
        """Send the events of a reader, up to the end of the turn."""
        self._reader, self._newest = reader, reader.cursor
        self._tasks.start_soon(self._deliver, reader)

    def stop(self) -> None:
        """Send nothing more."""
        self._delivering.cancel()

    async def settle(self, last_seq: int | None) -> None:
        """Return once the client has the last event of a turn that is over for its caller, if the turn has begun.

        Args:
            last_seq: the number of the turn's terminal event; None if it has none, as the turn was put back and goes on
                later: then the newest event so far is the last one.
        """
        if self._reader is None:
            return
        self._last = self._reader.newest if last_seq is None else last_seq
        if self._newest >= self._last:  # a marker may stand for the last events
            self.stop()
        await self._done.wait()

    async def _deliver(self, reader: EventReader) -> None:
        """Send events, no faster than the client reads. If the client cannot be reached, this logs it and returns."""
        try:
            with self._delivering:
                async for envelope in reader:
                    await self._send(envelope)
                    event = envelope.event
                    self._newest = envelope.seq
                    if isinstance(event, StreamTruncated):
                        self._newest = event.before + event.dropped
                    if isinstance(event, TERMINAL) or self._newest >= self._last:
                        break
        except Exception:
            logger.exception("session %s: the events of a turn can no longer be sent", reader.session_id)
        finally:
            reader.close()
            self._done.set()


def last_seq_of(end: TurnResult | Exception) -> int | None:
    """Return the number of the terminal event of a turn; None if it has none."""
    if isinstance(end, TurnResult):
        return end.last_seq
    return end.details.get("last_seq") if isinstance(end, WarrenError) else None
