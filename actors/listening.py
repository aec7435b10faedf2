"""The `on_event` callbacks of hosts: each follows the log of a session while one turn runs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from warren.actors.eventlog import EventLog
from warren.events import TERMINAL, Envelope, Event
from warren.service import OnEvent

logger: Final = logging.getLogger("warren.session")


@attrs.define(eq=False)
class _Listener:
    """Passes the events of one turn of a session on to a callback.

    Attributes:
        log: the events of the session.
        callback: the host's function; None once the turn has ended, or the function has raised.
        begins: asked with each event, until it returns True: whether that is the turn's, or its input's, first one.
            None says that there will be no such event.
        begun: whether it has returned True.
        alone: whether nobody waits for the turn any more: the listener goes when it has nothing more to pass on.
    """

    log: EventLog
    callback: OnEvent | None
    begins: Callable[[Event], bool | None]
    begun: bool | None = False
    alone: bool = False

    def __call__(self, envelope: Envelope) -> None:
        callback = self.callback
        self.begun = self.begun or self.begins(envelope.event)
        if callback is not None and self.begun:
            if isinstance(envelope.event, TERMINAL):
                self.callback = None
            try:
                callback(envelope)
            except Exception:  # the host's bug ends neither the session nor the turn
                logger.exception("on_event of session %s raised: it gets no more of this turn", envelope.session_id)
                self.callback = None
        if self.alone and (self.callback is None or self.begun is None):
            self.log.listeners.remove(self)


@contextmanager
def listening(log: EventLog, callback: OnEvent, begins: Callable[[Event], bool | None]) -> Iterator[None]:
    """Call a function with each event of a turn, as it is published, until the turn has ended.

    A session answers whoever waits for a turn behind the turn's last event. So the callback has had all events when the
    block that waits for the answer goes on. If the block is cancelled, the turn goes on, and so does the callback.

    Args:
        log: the events of the session.
        callback: the function; if it raises, that is logged, and it gets no more of this turn.
        begins: asked with each event as it is published, until it returns True: that event is the first one to tell.
            None says that there will be no such event.
    """
    listener = _Listener(log, callback, begins)
    log.listeners.append(listener)
    try:
        yield
    except trio.Cancelled:
        listener.alone = True
        raise
    finally:
        if not listener.alone or listener.callback is None:
            log.listeners.remove(listener)
