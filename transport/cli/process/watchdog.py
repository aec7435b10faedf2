"""The guard of an end within a time: a thread, as the event loop may be what hangs."""

import logging
import math
import os
import threading
import time
from typing import Final

import attrs

from warren.base.end_budget import EndBudget
from warren.base.values import define
from warren.transport.cli.terminal.stderr import settle

FAILED: Final = 1
EARLY: Final = 0.6
"""The share of the time for interrupted turns after which their processes are killed, so that they can end."""
REAPED: Final = 0.1
"""Seconds that processes have to vanish once they are killed."""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Watchdog:
    """Has a process gone in time, with all that it started.

    Attributes:
        last: when the process has to be gone, on the clock of `time.monotonic`.
        processes: when the processes are killed that have not ended by themselves.
        turns: when they are killed if turns still run.
        turns_ended: set once no turn runs any more.
    """

    last: float
    processes: float
    turns: float = math.inf
    turns_ended: threading.Event = attrs.field(factory=threading.Event)

    @classmethod
    def of(cls, seconds: float) -> "Watchdog":
        """Return the watchdog of an end that begins now."""
        budget = EndBudget(time.monotonic(), seconds)
        turns = budget.turns + EARLY * (budget.cut_off - budget.turns)
        return cls(budget.last, min(budget.connections, budget.last - REAPED), turns)

    @classmethod
    def of_parent(cls, seconds: float) -> "Watchdog":
        """Return the watchdog of a process whose children have watchdogs of their own, which come a little earlier."""
        began = time.monotonic()
        last = began + seconds
        return cls(last, max(last - REAPED, EndBudget(began, seconds).last))

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def _watch(self) -> None:
        ended = self.turns_ended.wait(max(0.0, min(self.turns, self.processes) - time.monotonic()))
        if not ended:
            kill_descendants()
        time.sleep(max(0.0, self.processes - time.monotonic()))
        kill_descendants()
        time.sleep(max(0.0, self.last - time.monotonic()))
        logger.error("the process has not ended by itself within the drain time, and is ended now")
        settle()
        os._exit(FAILED)


def kill_descendants() -> None:
    """Kill all processes that this one has started, and those that they have started."""
    from warren.actors.tools.shell import keeper  # noqa: PLC0415 - only an end needs it

    keeper.kill_descendants()
