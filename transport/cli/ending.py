"""How a command that serves until it is told to stop is told."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from warren.transport.cli.turns import SIGNALS, die_of

Drain = Callable[[], Awaitable[None]]


@asynccontextmanager
async def told_twice(first: Callable[[int], Awaitable[None]]) -> AsyncIterator[None]:
    """While the body runs, call `first` with the first SIGTERM or Ctrl-C; the second ends the process."""
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


@asynccontextmanager
async def until_told(drain: Drain = trio.lowlevel.checkpoint) -> AsyncIterator[trio.CancelScope]:
    """Give the scope to serve in: the first SIGTERM or Ctrl-C cancels it, the second ends the process.

    SIGTERM comes from who waits for an orderly end: it drains first. Ctrl-C comes from who has seen enough.
    """
    stop = trio.CancelScope()

    async def end(number: int) -> None:
        if number == signal.SIGTERM:
            await drain()
        else:
            await trio.lowlevel.checkpoint()
        stop.cancel()

    async with told_twice(end):
        yield stop
