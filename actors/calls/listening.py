"""The readers of turns: each begins at the first event of one turn in the session's log."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from warren.actors.eventlog import EventLog, LogReader, notify_nobody
from warren.base.values import define, frozen
from warren.calls.service import EventReader, OnBegin, OnEvent
from warren.conversation.events import TERMINAL, Event

R = TypeVar("R")
logger: Final = logging.getLogger("warren.session")

Begins = Callable[[Event], bool | None]
"""Called with each event when it is published. True says that the event is the first one of the turn, or of its input;
False that it is not; None that there will be no such event."""


@frozen
class Telling:
    """The `on_begin` that calls a function with each event of the turn as it is published.

    A session answers the caller of a turn after the turn's last event, so the function has had all events by then. If
    the function raises, the error is logged, and the function gets no more events of this turn.

    Attributes:
        callback: the function.
    """

    callback: OnEvent

    def __call__(self, reader: EventReader) -> None:
        """Call the function with the events so far, and with each later one."""

        def tell(_event: Event | None = None) -> None:
            for envelope in reader.take() or ():
                try:
                    self.callback(envelope)
                except Exception:  # the host's bug ends neither the session nor the turn
                    logger.exception("on_event of session %s raised: it gets no more of this turn", reader.session_id)
                    reader.close()
                    return
                if isinstance(envelope.event, TERMINAL):
                    reader.close()
                    return

        reader.notify = tell
        tell()


@define(eq=False)
class _Watch:
    """Waits for the first event of a turn.

    Attributes:
        reader: follows the log; it is given to the caller of the turn.
        begins: recognises the first event.
        on_begin: the caller's function.
        begun: whether the function was called.
        alone: whether the caller no longer waits for the turn; the watch ends then if the turn cannot begin.
    """

    reader: LogReader
    begins: Begins
    on_begin: OnBegin
    begun: bool = False
    alone: bool = False

    def look(self, event: Event | None) -> None:
        """Check an event that was published; None if the log was changed in another way."""
        reader, before = self.reader, self.reader.log.last_seq - 1
        begins = None if event is None else self.begins(event)
        if begins:
            self.begun, reader.cursor, reader.notify = True, before, notify_nobody
            try:
                self.on_begin(reader)
            except Exception:  # the host's bug ends neither the session nor the turn
                logger.exception("on_begin of session %s raised: it gets nothing of this turn", reader.session_id)
                reader.close()
            return
        reader.cursor = reader.log.last_seq
        if self.alone and event is not None and begins is None:
            reader.close()


async def beginning(log: EventLog, begins: Begins, on_begin: OnBegin, turn: Awaitable[R]) -> R:
    """Wait for a turn, and call a function with a reader of the turn when it publishes its first event.

    If the wait is cancelled, the turn goes on, and may even begin later. A `Telling` is called in that case, other
    functions are not.
    """
    watch = _Watch(log.read(log.last_seq), begins, on_begin)
    watch.reader.notify = watch.look
    try:
        return await turn
    except trio.Cancelled:
        watch.alone = isinstance(on_begin, Telling)
        raise
    finally:
        if not (watch.begun or watch.alone):
            watch.reader.close()
