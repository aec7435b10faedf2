"""An instrument that interrupts at a checkpoint."""

from collections.abc import Callable

import attrs
import trio
import trio.testing


@attrs.define(eq=False)
class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, and does something at one of them.

    Attributes:
        at: the step; 0 is none.
        act: what is done then, at once.
        count: steps so far, once it was begun.
    """

    at: int
    act: Callable[[], None] = lambda: None
    count: int = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count."""
        del task
        self.count += 1
        if self.count == self.at:
            self.act()
