"""How much memory the process has, and whether that is more than it may."""

import logging
import math
import resource
from pathlib import Path
from typing import Final

import attrs
import trio

STATM: Final = Path("/proc/self/statm")
PAGE: Final = resource.getpagesize()
MIB: Final = 1024 * 1024
FRESH: Final = 0.05
"""Seconds for which a reading holds: what a burst can take in meanwhile is small."""
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
    """

    limit: int | None
    _read_at: float = -math.inf
    _full: bool = False

    @property
    def full(self) -> bool:
        """Whether the process has more than it may, as of the last moments."""
        if self.limit is None:
            return False
        now = trio.current_time()
        if now - self._read_at >= FRESH:
            self._read_at = now
            self._note((resident() or 0) / MIB, self.limit)
        return self._full

    def _note(self, used: float, limit: int) -> None:
        full = used > limit
        if full and not self._full:
            logger.warning(
                "the process has %.0f MiB of the %d it may have: it takes in less until it has less", used, limit
            )
        elif self._full and not full:
            logger.info("the process has %.0f MiB again, which it may have", used)
        self._full = full
