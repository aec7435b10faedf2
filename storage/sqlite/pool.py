"""Things that one caller at a time may use, each with its own blocking calls."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import trio

from warren.storage.runner import Runner

T = TypeVar("T")
R = TypeVar("R")


class Pool(Generic[T]):
    """Lends out its members, one to each caller, and runs the callers' functions on them."""

    def __init__(self, members: Sequence[T], runner: Runner) -> None:
        self._size = len(members)
        self._free = list(members)
        self._turnstile = trio.Semaphore(self._size)
        self._runner = runner

    # A KeyboardInterrupt must not come between the turnstile and the `finally`: the member would be lent out for ever.
    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[[T], R]) -> R:
        """Run `function` on a free member, when there is one. Cancelled while it waits, it has not begun."""
        await self._enter()
        member = self._free.pop()
        try:
            return await self._runner(partial(function, member))
        finally:
            self._free.append(member)
            self._turnstile.release()

    @trio.lowlevel.enable_ki_protection
    async def run_on_all(self, function: Callable[[T], None]) -> None:
        """Run `function` on every member, once all are back. Trap: only one caller at a time, two would deadlock."""
        taken = 0
        try:
            while taken < self._size:
                await self._turnstile.acquire()
                taken += 1
            for member in self._free:
                await self._runner(partial(function, member))
        finally:
            for _ in range(taken):
                self._turnstile.release()

    async def _enter(self) -> None:
        try:
            # Without the checkpoint of acquire(): the runner has one.
            self._turnstile.acquire_nowait()
        except trio.WouldBlock:
            await self._turnstile.acquire()
