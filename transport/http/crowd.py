"""How many clients each of the workers of one command has: one with more leaves the next client to the others.

All workers wait for clients at the same sockets, and the system wakes them as it likes: in a burst one gets most of
them, and stays the slowest for as long as they stay. The counts lie in memory that the workers share.
"""

import mmap
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, Final, Self

import trio

from warren.base.values import frozen

SIZE: Final = 4
"""Bytes of a count, which a processor writes at once."""
GONE: Final = 2**31
"""The count of a worker that accepts nobody: all others have fewer."""
LOOKS: Final = 20
"""Looks after which a worker takes a client all the same: one with fewer may be at work, or hang."""
INTERVAL: Final = 0.001
"""Seconds between two looks: the others have as long to take the client."""


@frozen(eq=False)
class Crowd:
    """The counts of the workers of one command.

    Attributes:
        sockets: the file descriptors of the sockets that all of them accept clients from.
    """

    sockets: Collection[int]
    _number: int
    _counts: "memoryview[int]"

    @classmethod
    def of(cls, file: int, number: int, workers: int, sockets: Collection[int] = ()) -> Self:
        """Return the counts in a file of `shared`, for one of the workers, whose numbers begin at 1."""
        return cls(sockets, number - 1, memoryview(mmap.mmap(file, SIZE * workers)).cast("I"))

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Accept clients during the block."""
        self._counts[self._number] = 0
        try:
            yield
        finally:
            self.leave()

    def leave(self) -> None:
        """Have nobody leave a client to this worker: it accepts none, or is dead."""
        self._counts[self._number] = GONE

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a client for the block."""
        self._counts[self._number] += 1
        try:
            yield
        finally:
            self._counts[self._number] -= 1  # of a worker that has left, too: it stays by far the largest one

    async def wait_for_client(self, listener: trio.SocketListener) -> None:
        """Return once a client waits that is to be taken by this worker; another one may have it by then."""
        await trio.lowlevel.wait_readable(listener.socket.fileno())
        for _ in range(LOOKS):
            if self._counts[self._number] <= min(self._counts):
                return
            await trio.sleep(INTERVAL)


@contextmanager
def shared(workers: int) -> Iterator[IO[bytes]]:
    """Yield a file for the counts of workers, none of which accepts clients yet."""
    with tempfile.TemporaryFile() as file:
        file.write(GONE.to_bytes(SIZE, sys.byteorder) * workers)
        file.flush()
        yield file
