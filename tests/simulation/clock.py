"""The clock of a run: its time is virtual."""

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import trio
from trio.abc import Clock as Base

FOREVER: Final = 1_000.0


class Clock(Base):
    """A clock that goes on to the next deadline at once when no task can run.

    `trio.testing.MockClock` does so as well, but for each jump it needs another pass of the loop, which asks all tasks
    what they wait for. Nothing may come from outside, such as from a thread: it would come too late.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers: Iterator[int] = itertools.count()
        self._ends: list[tuple[float, int]] = []  # of the sleeps, by time
        self._asleep: dict[int, trio.lowlevel.Task] = {}  # those that were not cancelled

    def start_clock(self) -> None:
        """Do nothing: time stands still while a task runs."""

    def current_time(self) -> float:
        """Return the virtual time."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Go on to a deadline, or to the end of the next sleep. Trio asks this when no task can run."""
        ends, asleep = self._ends, self._asleep
        while ends and ends[0][1] not in asleep:
            heapq.heappop(ends)
        if ends:
            deadline = min(deadline, ends[0][0])
        if math.isinf(deadline):
            return FOREVER
        self._now = max(self._now, deadline)
        while ends and ends[0][0] <= self._now:
            task = asleep.pop(heapq.heappop(ends)[1], None)
            if task is not None:
                trio.lowlevel.reschedule(task)
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep as `trio.sleep`, but without a cancel scope, whose end takes more time than what is woken."""
        if seconds <= 0:
            await trio.lowlevel.checkpoint()
            return
        number = next(self._numbers)
        self._asleep[number] = trio.lowlevel.current_task()
        heapq.heappush(self._ends, (self._now + seconds, number))

        def abort(_raise: Any) -> trio.lowlevel.Abort:
            del self._asleep[number]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


async def sleep(seconds: float) -> None:
    """Sleep for seconds of virtual time, by whichever clock there is."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, Clock):
        await clock.sleep(seconds)
    else:
        await trio.sleep(seconds)
