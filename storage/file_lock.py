"""A lock between processes: only one at a time writes the projections of a store, or builds a memory's graph."""

import os
import sys
from pathlib import Path
from typing import Final

from warren.base.values import define

if sys.platform != "win32":
    import fcntl

_LONGEST_NAME: Final = 500


@define(eq=False)
class FileLock:
    """A lock on a file. The system drops it with the process that has it.

    Attributes:
        path: the file.
        name: the name that messages in other processes show.
    """

    path: Path
    name: str
    _file: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._file is not None

    def take(self) -> bool:
        """Take the lock unless another process has it; return whether it is taken. Raises OSError.

        A file that was removed is as good as none: another process would make its own.
        """
        if self._file is not None and not self._is_there(self._file):
            self.drop()
        if self._file is None and sys.platform != "win32":
            file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(file, 0)
                os.pwrite(file, self.name.encode(errors="replace"), 0)
                self._file = file
            except BlockingIOError:
                pass
            finally:
                if self._file is None:
                    os.close(file)
        return self.held

    def _is_there(self, file: int) -> bool:
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(file))
        except FileNotFoundError:
            return False

    def holder(self) -> str:
        """Return the name of the process that has the lock."""
        try:
            with self.path.open("rb") as file:
                return file.read(_LONGEST_NAME).decode(errors="replace") or "another process"
        except OSError:
            return "another process"

    def drop(self) -> None:
        """Let go of it. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
