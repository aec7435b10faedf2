"""Count the work of each step of the event loop: by calls of functions, the same number on every machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs
import trio


@attrs.define(eq=False)
class Calls:
    """Counts the functions that this thread calls, in Python and in C.

    Attributes:
        number: calls so far.
    """

    number: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the calls of the body."""
        sys.setprofile(self.count)
        try:
            yield
        finally:
            sys.setprofile(None)

    def count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        """Count an event of `sys.setprofile`."""
        if event in ("call", "c_call"):
            self.number += 1


@attrs.define(eq=False)
class Steps(trio.abc.Instrument):
    """Counts the functions called from one checkpoint of a task to its next.

    Attributes:
        most: calls of the step that made most of them.
        task: the name of its task.
    """

    most: int = 0
    task: str = ""
    _calls: Calls = attrs.field(factory=Calls)

    @classmethod
    @contextmanager
    def counted(cls) -> Iterator["Steps"]:
        """Count the steps of the loop that begin within the body."""
        steps = cls()
        trio.lowlevel.add_instrument(steps)
        try:
            yield steps
        finally:
            trio.lowlevel.remove_instrument(steps)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Begin to count."""
        del task
        self._calls = Calls()
        sys.setprofile(self._calls.count)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Remember the step that took most."""
        sys.setprofile(None)
        if self._calls.number > self.most:
            self.most, self.task = self._calls.number, task.name
