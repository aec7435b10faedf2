"""Runners of blocking calls: in a thread, or on the event loop."""

import math
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import trio

R = TypeVar("R")


class Runner(Protocol):
    """Runs a function that may block, and returns or raises as the function does.

    A function that has begun runs to its end, and its result reaches the caller, even if that is cancelled meanwhile. A
    store never asks for two functions of one connection at once.
    """

    async def __call__(self, function: Callable[[], R], /) -> R:
        """Run `function`. If the caller is cancelled before the function begins, the function never runs."""


# Each store bounds its calls by the number of its connections. Trio's default limiter is shared with all other code of
# the host program: threads that hang there would keep turns from being stored.
_UNLIMITED: Final = trio.CapacityLimiter(math.inf)


async def thread_runner(function: Callable[[], R], /) -> R:
    """Run `function` in a thread, so that the disk never delays the event loop."""
    return await trio.to_thread.run_sync(function, limiter=_UNLIMITED)


async def inline_runner(function: Callable[[], R], /) -> R:
    """Run `function` on the event loop: for tests on a virtual clock, which threads would confuse.

    Trap: all tasks wait while the disk works.
    """
    await trio.lowlevel.checkpoint()
    return function()
