"""Where the store's database calls run: in a thread, or right here."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

R = TypeVar("R")


class Runner(Protocol):
    """Runs a function that may block and returns what it returns or raises.

    Once the function has begun it runs to its end, also when the caller is cancelled meanwhile. The store never asks
    for two functions of one connection at once.
    """

    async def __call__(self, function: Callable[[], R], /) -> R:
        """Run `function`."""
        ...


# Between the start of the thread and the wait a KeyboardInterrupt would leave a task to be woken that does not sleep.
@trio.lowlevel.enable_ki_protection
async def thread_runner(function: Callable[[], R], /) -> R:
    """Run `function` in one of trio's idle threads, so that the disk never holds up the event loop."""
    await trio.lowlevel.checkpoint_if_cancelled()
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()
    # What to_thread.run_sync does, without its limiter: a commit of one session takes a tenth less time.
    trio.lowlevel.start_thread_soon(
        function, lambda result: token.run_sync_soon(trio.lowlevel.reschedule, task, result)
    )
    result: R = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
    return result


async def inline_runner(function: Callable[[], R], /) -> R:
    """Run `function` on the event loop: for tests on a virtual clock, which threads would confuse.

    Trap: every task waits while the disk does.
    """
    await trio.lowlevel.checkpoint()
    return function()
