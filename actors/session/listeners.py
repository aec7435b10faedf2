"""Those who hear a turn's events as they come: the one who started it, and whoever has said something in between."""

import logging
from typing import Final

import attrs

from warren.actors.eventlog import EventLog
from warren.events import Event
from warren.journal import Entry
from warren.service import OnEvent

logger: Final = logging.getLogger("warren.session")


@attrs.define(eq=False)
class Listeners:
    """Publishes a turn's events: to the session's log first, then to each listener in turn.

    Attributes:
        log: the session's events.
    """

    log: EventLog
    _callbacks: tuple[OnEvent, ...] = ()

    def add(self, *callbacks: OnEvent | None) -> None:
        """Tell these too, from the next event on."""
        self._callbacks += tuple(callback for callback in callbacks if callback is not None)

    def emit(self, event: Event) -> None:
        """Number an event and publish it."""
        self.tell(self.log.stamp(event))

    def tell(self, entry: Entry) -> None:
        """Publish an event. A callback is the host's code: its bug is not the session's, and is told once."""
        self.log.publish(entry)
        session_id = self.log.session_id
        for callback in self._callbacks:
            try:
                callback(entry.envelope(session_id))
            except Exception:
                logger.exception("on_event of session %s raised: it gets no more of this turn", session_id)
                self._callbacks = tuple(each for each in self._callbacks if each is not callback)
