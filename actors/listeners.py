"""Those who hear a turn's events as they come: the one who started it, and whoever has said something in between."""

import logging
from collections.abc import Callable
from typing import Final

import attrs

from warren.events import Envelope
from warren.service import OnEvent

logger: Final = logging.getLogger("warren.session")


@attrs.define(eq=False)
class Listeners:
    """Publishes a turn's events: to the session's log first, then to each listener in turn.

    Attributes:
        publish: takes an event into the log.
    """

    publish: Callable[[Envelope], None]
    _callbacks: list[OnEvent] = attrs.field(factory=list)

    def add(self, callback: OnEvent | None) -> None:
        """Tell one more, from the next event on."""
        if callback is not None:
            self._callbacks.append(callback)

    def tell(self, envelope: Envelope) -> None:
        """Publish an event. A callback is the host's code: its bug is not the session's, and is told once."""
        self.publish(envelope)
        for callback in tuple(self._callbacks):
            try:
                callback(envelope)
            except Exception:
                logger.exception("on_event of session %s raised: it gets no more of this turn", envelope.session_id)
                self._callbacks.remove(callback)
