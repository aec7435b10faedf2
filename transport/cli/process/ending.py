"""The orderly end of commands that serve until a signal stops them."""

import math
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

import attrs
import trio

from warren.base.end_budget import EndBudget
from warren.base.values import define
from warren.calls.facade import RuntimeService
from warren.transport.cli.process.watchdog import Watchdog, kill_descendants
from warren.transport.cli.terminal.stderr import settle

LEAST: Final = 1.0
"""Seconds that an end has at least: what was interrupted has to be stored."""


@asynccontextmanager
async def graceful_signals(
    first: Callable[[int], Awaitable[None]], hangup: Callable[[], None] | None = None
) -> AsyncIterator[None]:
    """While the body runs, call `first` with the first SIGTERM or SIGINT; the second one ends the process.

    With `hangup` each SIGHUP of an operator calls it; one that says that the terminal was closed counts as SIGTERM.
    Signals that the process was told to ignore stay ignored; see `heard`.
    """
    async with trio.open_nursery() as nursery:
        await nursery.start(_listen, first, hangup)
        yield
        nursery.cancel_scope.cancel()


async def _listen(
    first: Callable[[int], Awaitable[None]],
    hangup: Callable[[], None] | None,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    async with aclosing(ends(hangup, task_status)) as numbers, trio.open_nursery() as nursery:
        nursery.start_soon(first, await anext(numbers))
        die_of(await anext(numbers))


async def ends(hangup: Callable[[], None] | None, task_status: trio.TaskStatus[None]) -> AsyncGenerator[int]:
    """Yield the signals that ask for an end, as they come; see `graceful_signals`."""
    terminal = Terminal()
    with trio.open_signal_receiver(*heard(hangup=hangup is not None)) as signals:
        task_status.started()
        async for number in signals:
            if number != signal.SIGHUP or hangup is None:
                yield number
            elif terminal.has_gone:
                yield signal.SIGTERM
            else:
                hangup()


@define(eq=False)
class Stop:
    """The end of a command that serves.

    Attributes:
        seconds: within which the process is gone once the end has begun.
        opening: the scope to open the service and to serve in: cancelled if the end begins before the service is open.
        serving: the scope to serve in: cancelled once every caller of the service has its answer.
        begun: called when the end begins.
        service: the runtime; None until it is open.
        budget: the times of the end; None before it has begun.
    """

    seconds: float
    begun: Callable[[], None] = lambda: None
    opening: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    serving: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    service: RuntimeService | None = None
    budget: EndBudget | None = None

    async def begin(self, *, waits: bool) -> None:
        """Let turns finish if `waits`, interrupt and answer the others, then end the serving; all within the budget.

        Whatever does not end then is ended with the process.
        """
        self.begun()
        seconds = max(self.seconds, LEAST)
        self.budget = budget = EndBudget(trio.current_time(), seconds)
        watchdog = Watchdog.of(seconds)
        watchdog.start()
        if self.service is None:
            self.opening.cancel()
        else:
            with trio.move_on_at(budget.turns if waits else -math.inf):
                await self.service.drain()
            await self.service.stop(budget)
        watchdog.turns_ended.set()
        self.serving.cancel()

    def connections_end(self) -> float:
        """Return when clients must have read their last answers, on trio's clock."""
        return math.inf if self.budget is None else self.budget.connections


@asynccontextmanager
async def until_signalled(
    seconds: float,
    hangup: Callable[[], None] | None = None,
    *,
    waits: bool = True,
    begun: Callable[[], None] = lambda: None,
) -> AsyncIterator[Stop]:
    """Yield a `Stop` that the first SIGTERM or Ctrl-C begins; the second signal ends the process.

    SIGTERM comes from a supervisor that waits for an orderly end: turns may finish as long as `seconds` leaves room for
    the rest, if the command `waits`. Ctrl-C comes from a user: turns are interrupted at once. For `hangup` see
    `graceful_signals`, for `begun` see `Stop`.
    """
    stop = Stop(seconds, begun)

    async def end(number: int) -> None:
        await stop.begin(waits=waits and number == signal.SIGTERM)

    async with graceful_signals(end, hangup):
        yield stop


def heard(*, hangup: bool = False) -> tuple[signal.Signals, ...]:
    """Return the signals that a command listens to: SIGTERM, SIGINT, and with `hangup` SIGHUP.

    The last two are left out if the process was told to ignore them: a shell does so with SIGINT for a command with `&`
    in a script, so that Ctrl-C ends only the command that the user waits for; `nohup` does so with SIGHUP.
    """
    asked = (signal.SIGINT, signal.SIGHUP) if hangup else (signal.SIGINT,)
    return (signal.SIGTERM, *(number for number in asked if signal.getsignal(number) is not signal.SIG_IGN))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@define(eq=False)
class Terminal:
    """The terminal of a process. Its end comes as a SIGHUP, as the request of an operator to read files again does."""

    _was_there: bool = attrs.field(factory=_has_terminal)

    @property
    def has_gone(self) -> bool:
        """Whether the process has lost the terminal that it began with."""
        return self._was_there and not _has_terminal()


def die_of(number: int) -> None:
    """End the process, and all that it started, at once by a signal, as if nobody had listened: its parent sees why."""
    kill_descendants()
    settle()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
