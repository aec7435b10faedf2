"""The pace of large requests: one part of one of them in a pass of the event loop."""

import attrs
import trio

from warren.base.values import define


@define(eq=False)
class RequestPace:
    """Spreads the work of large requests over passes of the loop, however many sessions have such a request."""

    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False, repr=False)
    _newest: object = None  # the owner of the newest part; None if its work is done

    async def part(self) -> None:
        """Wait until the next part of some work may be done. This is a checkpoint."""
        async with self._turn:
            self._newest = self

    async def piece(self, owner: object) -> None:
        """Wait until the next piece of a body may be sent.

        If nobody else has done a part since the last piece, the owner goes on at once: the sending is a checkpoint.
        """
        if self._turn.locked() or (self._newest is not None and self._newest is not owner):
            await self.part()
        self._newest = owner

    def end(self, owner: object) -> None:
        """Let the next body begin at once if the newest piece was of this one, whose answer has come meanwhile."""
        if self._newest is owner:
            self._newest = None
