"""Which live sessions have nothing to do, and for how long."""

from collections import OrderedDict

import attrs
import trio


@attrs.define(eq=False)
class Idle:
    """Sessions in the order in which they were last needed; every change costs the same, however many there are.

    Attributes:
        after: seconds after which one is due to leave memory.
    """

    after: float
    _since: OrderedDict[str, float] = attrs.field(factory=OrderedDict)
    _first: trio.Event = attrs.field(factory=trio.Event)

    def touch(self, session_id: str) -> None:
        """Count a session in, as needed last."""
        self._since[session_id] = trio.current_time()
        self._since.move_to_end(session_id)
        self._first.set()

    def drop(self, session_id: str) -> None:
        """Count a session out: it has work, or is gone. Idempotent."""
        self._since.pop(session_id, None)

    def longest(self) -> str | None:
        """Return the session that was not needed for the longest time."""
        return next(iter(self._since), None)

    async def next_due(self) -> str:
        """Wait until a session has been idle for too long, and count it out."""
        while True:
            await trio.lowlevel.checkpoint()
            longest = self.longest()
            if longest is None:
                self._first = trio.Event()
                await self._first.wait()
            elif (due := self._since[longest] + self.after) > trio.current_time():
                await trio.sleep_until(due)
            else:
                self.drop(longest)
                return longest
