"""The events of a turn as the progress of a call, for a client that asked for progress."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from warren.calls.streams import EventReader
from warren.conversation import codec
from warren.conversation.event_text import text_of_event
from warren.conversation.events import TERMINAL, Envelope, Event, ReasoningDelta, StreamTruncated, TextDelta

Send = Callable[[Envelope], Awaitable[None]]

logger: Final = logging.getLogger(__name__)


class Progress:
    """Sends all events of a turn in order. The turn never waits for the client."""

    def __init__(self, send: Send, tasks: trio.Nursery) -> None:
        """Prepare to report a turn.

        Args:
            send: sends one event to the client.
            tasks: the nursery of the task that reads the log.
        """
        self._send = send
        self._tasks = tasks
        self._reading = False
        self._delivering = trio.CancelScope()
        self._newest = 0
        self._done = trio.Event()

    def begin(self, reader: EventReader) -> None:
        """Report the events of a reader, up to the end of the turn."""
        self._reading = True
        self._tasks.start_soon(self._deliver, reader)

    def stop(self) -> None:
        """Report nothing more."""
        self._delivering.cancel()

    async def settle(self, last_seq: int | None) -> None:
        """Return once the client has the turn's last event, if the turn has begun."""
        if last_seq is not None and self._newest >= last_seq:  # a marker stands for the last events
            self.stop()
        if self._reading:
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
                    if isinstance(event, TERMINAL):
                        break
        except Exception:
            logger.exception("the progress of a call can no longer be sent")
        finally:
            reader.close()
            self._done.set()


def message_of(event: Event) -> str:
    """Return the text of an event for people: a piece of the answer, or a description of the event."""
    match event:
        case TextDelta(delta=delta) | ReasoningDelta(delta=delta):
            return delta
    return text_of_event(event) or str(codec.to_data(event)["type"]).replace("_", " ")
