"""The `on_event` callbacks of hosts: each follows the log of a session while one turn runs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from warren.actors.eventlog import EventLog
from warren.events import TERMINAL, Envelope, Event
from warren.service import OnEvent

logger: Final = logging.getLogger("warren.session")


@attrs.define(eq=False)
class _Listener:
    """Passes the events of one turn of a session on to a callback.

    Attributes:
        callback: the host's function; None once the turn has ended, or the function has raised.
        begins: asked with each event, until it returns True: whether that is the turn's, or its input's, first one.
        begun: whether it has returned True.
    """

    callback: OnEvent | None
    begins: Callable[[Event], bool]
    begun: bool = False

    def __call__(self, envelope: Envelope) -> None:
        callback = self.callback
        self.begun = self.begun or self.begins(envelope.event)
        if callback is None or not self.begun:
            return
        if isinstance(envelope.event, TERMINAL):
            self.callback = None
        try:
            callback(envelope)
        except Exception:  # the host's bug ends neither the session nor the turn
            logger.exception("on_event of session %s raised: it gets no more of this turn", envelope.session_id)
            self.callback = None


@contextmanager
def listening(log: EventLog, callback: OnEvent, begins: Callable[[Event], bool]) -> Iterator[None]:
    """Call a function with each event of a turn, as it is published, until the block is left.

    A session answers whoever waits for a turn behind the turn's last event. So the callback has had all events when the
    block that waits for the answer goes on.

    Args:
        log: the events of the session.
        callback: the function; if it raises, that is logged, and it gets no more of this turn.
        begins: asked with each event as it is published, until it returns True: that event is the first one to tell.
    """
    listener = _Listener(callback, begins)
    log.listeners.append(listener)
    try:
        yield
    finally:
        log.listeners.remove(listener)
