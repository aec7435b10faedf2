"""A pool of connections, each used by one caller at a time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import trio

from warren.storage.runner import Runner

T = TypeVar("T")
R = TypeVar("R")


class SqlitePool(Generic[T]):
    """Lends connections, or whatever works on one, to functions: a member each, in the order of the calls."""

    def __init__(self, members: Sequence[T], runner: Runner) -> None:
        self._size = len(members)
        self._free = list(members)
        self._members_free = trio.Semaphore(self._size)
        self._runner = runner

    # A KeyboardInterrupt must not come between the semaphore and the `finally`: the member would never be free again.
    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[[T], R]) -> R:
        """Run `function` on the next free member. If the caller is cancelled during the wait, it has not begun."""
        await self._members_free.acquire()
        member = self._free.pop()
        try:
            return await self._runner(partial(function, member))
        finally:
            self._free.append(member)
            self._members_free.release()

    @trio.lowlevel.enable_ki_protection
    async def run_on_all(self, function: Callable[[T], None]) -> None:
        """Run `function` on every member, once all are free. Trap: one caller at a time, two would deadlock."""
        taken = 0
        try:
            while taken < self._size:
                await self._members_free.acquire()
                taken += 1
            for member in self._free:
                await self._runner(partial(function, member))
        finally:
            for _ in range(taken):
                self._members_free.release()

    async def replace(self, make: Callable[[], T]) -> None:
        """Replace every member, as `run_on_all` runs, by one that `make` returns."""
        made: list[T] = []
        await self.run_on_all(lambda _: made.append(make()))
        self._free[:] = made
