"""The orderly end of commands that serve until a signal stops them."""

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

import attrs
import trio

from warren.service import RuntimeService
from warren.values import define

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@asynccontextmanager
async def graceful_signals(
    first: Callable[[int], Awaitable[None]], hangup: Callable[[], None] | None = None
) -> AsyncIterator[None]:
    """While the body runs, call `first` with the first SIGTERM or SIGINT; the second one ends the process.

    With `hangup` each SIGHUP of an operator calls it; one that says that the terminal was closed counts as SIGTERM.
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
    with trio.open_signal_receiver(*(SIGNALS if hangup is None else heard())) as signals:
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
        serving: the scope to serve in: cancelled once every caller of the service has its answer.
        service: the runtime; None until it is open.
    """

    serving: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    service: RuntimeService | None = None

    async def begin(self, drain: float) -> None:
        """Let turns finish for some seconds, interrupt and answer the others, then end the serving."""
        if self.service is not None:
            with trio.move_on_after(drain):
                await self.service.drain()
            await self.service.stop()
        self.serving.cancel()


@asynccontextmanager
async def until_signalled(drain: float = 0, hangup: Callable[[], None] | None = None) -> AsyncIterator[Stop]:
    """Yield a `Stop` that the first SIGTERM or Ctrl-C begins; the second signal ends the process.

    SIGTERM comes from a supervisor that waits for an orderly end: turns have `drain` seconds to finish. Ctrl-C comes
    from a user: turns are interrupted at once. For `hangup` see `graceful_signals`.
    """
    stop = Stop()

    async def end(number: int) -> None:
        await stop.begin(drain if number == signal.SIGTERM else 0)

    async with graceful_signals(end, hangup):
        yield stop


def heard() -> tuple[signal.Signals, ...]:
    """Return the signals that a server listens to: not SIGHUP if the process was told to ignore it, as by nohup."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return SIGNALS if ignores else (*SIGNALS, signal.SIGHUP)


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
    """End the process at once by a signal, as if nobody had listened for it: its parent sees why."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
