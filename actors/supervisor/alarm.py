"""The time at which something is due next by the store's clock, as far as this process knows."""

import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

import attrs
import trio

from warren.base.values import define

LONGEST: Final = 1.0
"""Seconds at most between two looks at the clock, which may jump."""


@define(eq=False)
class Alarm:
    """Tells one task when something is due.

    Attributes:
        due: the time (UTC) by the store's clock; None for none.
    """

    due: datetime | None = None
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def set(self, due: datetime | None) -> None:
        """Note that something is due at a time, if that is the earliest one; None is none."""
        if due is not None and (self.due is None or due < self.due):
            self.due = due
            self._changed.set()
            self._changed = trio.Event()

    async def wait(self, now: Callable[[], datetime]) -> None:
        """Return when something is due by a clock, and forget the time."""
        while self.due is None or self.due > now():
            changed = self._changed
            seconds = math.inf if self.due is None else (self.due - now()).total_seconds()
            with trio.move_on_after(min(seconds, LONGEST) if self.due is not None else seconds):
                await changed.wait()
        self.due = None
