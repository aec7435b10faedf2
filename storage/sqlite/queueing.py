"""The order in which processes get the write lock of a file.

SQLite keeps no queue: a process that waits looks at the lock again every millisecond, and one that writes group after
group takes it back in less. A waiting process could starve for seconds. So each waits in this queue before it asks for
the lock, and leaves the queue once it has it: whoever has just written finds the next one ahead.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from warren.base.values import define

if sys.platform != "win32":  # without such locks chance decides
    import fcntl

PATIENCE: Final = 0.05
"""Seconds after which a process asks for the lock out of turn: the one ahead may be stopped."""
INTERVAL: Final = 0.0003
"""Seconds between two attempts."""


@define(eq=False)
class Queue:
    """The queue of the processes of a store: the lock of a folder, which the system drops with a process."""

    _folder: Path
    _opened: int | None = attrs.field(default=None, init=False)

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Wait to be the next one, for `PATIENCE` at most, and stay it for the block."""
        taken = self._take()
        try:
            yield
        finally:
            if taken and self._opened is not None:
                fcntl.flock(self._opened, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the folder. Idempotent."""
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def _take(self) -> bool:
        if sys.platform == "win32":
            return False
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(OSError):  # no folder can be made, or its file system has no locks
            if self._opened is None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                self._opened = os.open(self._folder, os.O_RDONLY)
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                if time.monotonic() >= deadline:
                    return False
                time.sleep(INTERVAL)
        return False
