"""A second client that follows a session from its first event."""

import math

import attrs
import trio

from warren.base.values import define
from warren.transport.load.stream import StreamCheck
from warren.transport.load.target import LOST, Seen


@define
class FollowerCheck:
    """Checks a session's events as they arrive.

    Attributes:
        check: the check of the events.
        lost: whether the connection has ended: then no more is checked.
    """

    check: StreamCheck
    lost: bool = False
    _wanted: int | None = None
    _reached: trio.Event = attrs.field(factory=trio.Event)

    def __call__(self, seen: Seen) -> None:
        """Check an event."""
        if seen.kind == LOST:
            self.lost = self.check.truncated = True
        else:
            self.check.take(seen)
        self._look()

    async def reach(self, seq: int, silence: float = math.inf) -> None:
        """Wait for an event and the end of its turn, for the marker of missing events, or the end of the connection.

        It also returns when no event has arrived for the given seconds.
        """
        self._wanted, self._reached = seq, trio.Event()
        self._look()
        before = -1
        while before < self.check.last_seq and not self._reached.is_set():
            before = self.check.last_seq
            with trio.move_on_after(silence):
                await self._reached.wait()

    def _look(self) -> None:
        check = self.check
        if self._wanted is not None and (check.truncated or (check.last_seq >= self._wanted and not check.running)):
            self._reached.set()
