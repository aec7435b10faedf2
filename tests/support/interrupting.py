"""A KeyboardInterrupt in front of any one line of a module that a program comes to, as Ctrl-C would bring it there."""

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import attrs
import trio

from warren.base.errors import WarrenError


@attrs.define
class Interruption:
    """Ctrl-C in front of one line.

    Attributes:
        files: the modules whose lines count.
        at: in front of which of the lines that are executed, counted from 1.
        count: lines that were executed.
        where: the line.
    """

    files: frozenset[str | None]
    at: int
    count: int = 0
    where: str = ""

    def trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        """Send the signal when it is time: the trace function of `sys.settrace`."""
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self.trace


@contextmanager
def _tracing(interruption: Interruption) -> Iterator[None]:
    before, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(interruption.trace)
    try:
        yield
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)


def _run(main: Callable[[], Awaitable[None]], interruption: Interruption) -> None:
    """Run `main` on an event loop of its own; fail unless it ends in the KeyboardInterrupt, if there is one."""
    ended: BaseException | None = None
    with _tracing(interruption):
        try:
            trio.run(main)
        except BaseException as exc:  # noqa: BLE001 - whatever it is, it is looked at
            ended = exc
    if isinstance(ended, BaseExceptionGroup) and interruption.where:
        assert ended.subgroup(KeyboardInterrupt) is not None
        # What others are told of the end of a task that the KeyboardInterrupt has ended.
        ended = ended.split((KeyboardInterrupt, WarrenError))[1] or KeyboardInterrupt()
    if ended is not None and not isinstance(ended, KeyboardInterrupt):
        raise AssertionError(f"Ctrl-C at {interruption.where} ended in {ended!r}") from ended
    assert (ended is not None) == bool(interruption.where), f"Ctrl-C at {interruption.where} was lost"


Program = tuple[Callable[[], Awaitable[None]], Callable[[], None] | None]
"""A function to run, and one to call afterwards."""


def interrupt_everywhere(program: Callable[[], Program], *modules: ModuleType) -> int:
    """Run a program again and again, with Ctrl-C in front of another line of the modules each time.

    `program` returns a new one each time. Return how many lines there were.
    """
    at = 0
    while True:
        at += 1
        main, check = program()
        interruption = Interruption(frozenset(module.__file__ for module in modules), at)
        _run(main, interruption)
        if not interruption.where:
            return at - 1
        if check is not None:
            check()
