"""The orderly end of commands that serve until a signal stops them."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from warren.service import RuntimeService
from warren.values import define

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@asynccontextmanager
async def graceful_signals(first: Callable[[int], Awaitable[None]]) -> AsyncIterator[None]:
    """While the body runs, call `first` with the first SIGTERM or SIGINT; the second one ends the process."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_listen, first)
        yield
        nursery.cancel_scope.cancel()


async def _listen(first: Callable[[int], Awaitable[None]], *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first, await anext(signals))
            die_of(await anext(signals))


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
async def until_signalled(drain: float = 0) -> AsyncIterator[Stop]:
    """Yield a `Stop` that the first SIGTERM or Ctrl-C begins; the second signal ends the process.

    SIGTERM comes from a supervisor that waits for an orderly end: turns have `drain` seconds to finish. Ctrl-C comes
    from a user: turns are interrupted at once.
    """
    stop = Stop()

    async def end(number: int) -> None:
        await stop.begin(drain if number == signal.SIGTERM else 0)

    async with graceful_signals(end):
        yield stop


def die_of(number: int) -> None:
    """End the process at once by a signal, as if nobody had listened for it: its parent sees why."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
