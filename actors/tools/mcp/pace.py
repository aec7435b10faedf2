"""The pace of a server's messages that nobody has asked for: a storm of them costs a small share of a core."""

from typing import Final

import attrs
import trio

from warren.base.values import define

SHARE: Final = 0.05
"""The share of a processor core that such messages may take."""
BURST: Final = 0.15
"""Seconds of a core that they may take at once."""
DEBT: Final = 0.01
"""Seconds of a core that are spent in one go while a server is held back: few long waits cost less than many."""
MESSAGE: Final = 0.0004
"""Seconds that a notification or a request of a server takes at most, with its answer."""
REQUEST: Final = 0.004
"""Seconds that an HTTP request takes at most which a service causes."""
LINE: Final = 0.00003
"""Seconds that a line takes that is no message."""
BYTE: Final = 5e-9
"""Seconds that a byte takes."""
PATIENCE: Final = 10.0
"""Seconds for which a server is held back before it is disconnected."""
FLOOD: Final = f"sends more messages than {SHARE:.0%} of a processor core can handle, and nobody has asked for them"


class ServerGoneError(Exception):
    """A server has ended or cannot be reached; the text continues after the server's name."""


class FloodError(ServerGoneError):
    """A server is disconnected because of the number of its messages."""


@define(eq=False)
class Pace:
    """Holds back the reading of one connection, so that its server has to wait.

    Attributes:
        asked: the answers that are due: they cost nothing.
    """

    asked: int = 0
    _left: float = BURST
    _at: float = attrs.field(factory=trio.current_time)
    _held_since: float | None = None
    _flooded: trio.Event = attrs.field(factory=trio.Event)

    async def message(self, size: int = 0, *, answers: bool = False) -> None:
        """Wait until a message of this size may be handled; `answers` says that it answers a request."""
        if answers and self.asked:
            self.asked -= 1
        else:
            await self._spend(MESSAGE + size * BYTE)

    async def request(self) -> None:
        """Wait until an HTTP request may be made that a service has caused."""
        await self._spend(REQUEST)

    async def lines(self, count: int, size: int) -> None:
        """Wait until some lines may be read that may be no messages."""
        await self._spend(count * LINE + size * BYTE)

    async def watch(self) -> None:
        """Raise FloodError once the server was held back for too long."""
        await self._flooded.wait()
        raise FloodError(FLOOD)

    async def _spend(self, seconds: float) -> None:
        now = trio.current_time()
        self._left = min(BURST, self._left + (now - self._at) * SHARE) - seconds
        self._at = now
        if self._left >= BURST / 2:
            self._held_since = None
        if self._left >= -DEBT:
            return
        if self._held_since is None:
            self._held_since = now
        elif now >= self._held_since + PATIENCE:
            self._flooded.set()
        await trio.sleep(-self._left / SHARE)
