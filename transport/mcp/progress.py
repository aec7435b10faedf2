"""A turn's events on their way to a client that asked for progress."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from warren import codec
from warren.events import Envelope, Event, ReasoningDelta, TextDelta
from warren.transport.remarks import remark_of
from warren.transport.rpc.outbox import Outbox

WAITING: Final = 256
"""Events that may wait for a client that reads slowly; past it adjacent deltas become one, then there is a gap."""

Send = Callable[[Envelope], Awaitable[None]]

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class Progress:
    """Hands a turn's events over, in order, without ever holding the turn up.

    Attributes:
        send: brings one event to the client; None where the client does not want any.
    """

    send: Send | None
    _outbox: Outbox = attrs.field(init=False)
    _waiting: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._outbox = Outbox(WAITING, notify=self._notify)

    def put(self, envelope: Envelope) -> None:
        """Take the turn's next event. Never waits."""
        if self.send is not None:
            self._outbox.event(envelope)

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
            self._outbox.close()

    async def _send_all(self) -> None:
        assert self.send is not None or not self._outbox  # noqa: S101 - `put` takes nothing otherwise
        for item in self._outbox.take():
            if self.send is not None and isinstance(item, Envelope):
                await self.send(item)

    def _notify(self) -> None:
        self._waiting.set()


def message_of(event: Event) -> str:
    """Return what a person who watches is shown: the text as it comes, and in words what happens besides."""
    match event:
        case TextDelta(delta=delta) | ReasoningDelta(delta=delta):
            return delta
    return remark_of(event) or str(codec.to_data(event)["type"]).replace("_", " ")
