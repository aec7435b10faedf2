"""How a command that serves until it is told to stop is told."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from warren.transport.cli.turns import SIGNALS, die_of

Drain = Callable[[], Awaitable[None]]


@asynccontextmanager
async def until_told(drain: Drain = trio.lowlevel.checkpoint) -> AsyncIterator[trio.CancelScope]:
    """Give the scope to serve in: the first SIGTERM or Ctrl-C cancels it, the second ends the process.

    SIGTERM comes from who waits for an orderly end: it drains first. Ctrl-C comes from who has seen enough.
    """
    stop = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        await nursery.start(_listen, stop, drain)
        yield stop
        nursery.cancel_scope.cancel()


async def _listen(stop: trio.CancelScope, drain: Drain, *, task_status: trio.TaskStatus[None]) -> None:
    told = False
    with trio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        async with trio.open_nursery() as nursery:
            async for number in signals:
                if told:
                    die_of(number)
                told = True
                nursery.start_soon(_end, stop, drain if number == signal.SIGTERM else trio.lowlevel.checkpoint)


async def _end(stop: trio.CancelScope, drain: Drain) -> None:
    await drain()
    stop.cancel()
