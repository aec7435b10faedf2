"""The clock of a run: its time is virtual."""

import math
from typing import Final

from trio.abc import Clock as Base

FOREVER: Final = 1_000.0


class Clock(Base):
    """A clock that goes on to the next deadline at once when no task can run.

    `trio.testing.MockClock` does so as well, but for each jump it needs another pass of the loop, which asks all tasks
    what they wait for. Nothing may come from outside, such as from a thread: it would come too late.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Do nothing: time stands still while a task runs."""

    def current_time(self) -> float:
        """Return the virtual time."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Go on to a deadline. Trio asks this when no task can run."""
        if math.isinf(deadline):
            return FOREVER
        self._now = max(self._now, deadline)
        return 0.0
