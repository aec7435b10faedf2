"""How much memory the process has, and whether that is more than it may."""

import logging
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio

STATM: Final = Path("/proc/self/statm")
PAGE: Final = resource.getpagesize()
MIB: Final = 1024 * 1024
INTERVAL: Final = 0.1
"""Seconds between two looks: what a burst can take in meanwhile is small."""
logger: Final = logging.getLogger("warren.supervisor")


def resident() -> int | None:
    """Return the bytes of the process that are in memory; None where the system does not tell."""
    try:
        return int(STATM.read_bytes().split()[1]) * PAGE
    except OSError:
        return None


@attrs.define(eq=False)
class MemoryGauge:
    """Holds the process's memory against its limit.

    Attributes:
        limit: MiB; None for none.
        full: whether the process had more than that when it was looked at last.
    """

    limit: int | None
    full: bool = False

    async def watch(self, relieve: Callable[[], None]) -> None:
        """Look again and again; while it has too much, have some given back."""
        while self.limit is not None:
            self._note((resident() or 0) / MIB, self.limit)
            if self.full:
                relieve()
            await trio.sleep(INTERVAL)

    def _note(self, used: float, limit: int) -> None:
        full = used > limit
        if full and not self.full:
            measures = "idle sessions are evicted, and turns run one at a time"
            logger.warning("the process uses %.0f MiB, more than limits.max_memory (%d MiB): %s", used, limit, measures)
        elif self.full and not full:
            logger.info("the process uses %.0f MiB, which is within limits.max_memory again", used)
        self.full = full
