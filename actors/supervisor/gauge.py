"""The gauge of the memory that the process uses, against its limit."""

import logging
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from warren.base.values import define

STATM: Final = Path("/proc/self/statm")
PAGE: Final = resource.getpagesize()
MIB: Final = 1024 * 1024
INTERVAL: Final = 0.1
"""Seconds between two looks: a burst of requests takes in little meanwhile."""
logger: Final = logging.getLogger("warren.supervisor")


def resident() -> int | None:
    """Return the bytes of the process that are in memory; None if the system does not tell."""
    try:
        return int(STATM.read_bytes().split()[1]) * PAGE
    except OSError:
        return None


@define(eq=False)
class MemoryGauge:
    """Compares the memory of the process with its limit.

    Attributes:
        limit: MiB; None for no limit.
        short: whether the process used more at the last look.
    """

    limit: int | None
    short: bool = False

    async def watch_loop(self, report: Callable[[bool], None]) -> None:
        """Look at the memory and report whether it is short, for ever; without a limit return at once."""
        while self.limit is not None:
            self._note((resident() or 0) / MIB, self.limit)
            report(self.short)
            await trio.sleep(INTERVAL)

    def _note(self, used: float, limit: int) -> None:
        short = used > limit
        if short and not self.short:
            measures = "idle sessions are evicted, and turns run one at a time"
            logger.warning("the process uses %.0f MiB, more than limits.max_memory (%d MiB): %s", used, limit, measures)
        elif self.short and not short:
            logger.info("the process uses %.0f MiB, which is within limits.max_memory again", used)
        self.short = short
