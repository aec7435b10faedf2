"""The files behind an open store, and whether others were put in their place.

SQLite does not notice that a file was replaced, or its log removed: it goes on with a file that has no name any more,
and the commits that it confirms are gone.
"""

import contextlib
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import apsw
import attrs

from warren.base.errors import StoreError
from warren.base.values import define
from warren.storage.sqlite.file import FILE_NAME

_HEADER: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
LONG: Final = 1_000
"""Pages from which on a log is moved into its file, as SQLite does by itself."""
Id = tuple[int, int]
"""The device and the number of a file."""


@define(eq=False)
class Files:
    """The file and the log of a connection that has read from both.

    As long as the connection is open, the numbers of its files are not given to others, and SQLite removes no log. So
    others at their places are somebody's who has put them there. The time of a change proves nothing: every checkpoint
    of another process changes it.
    """

    _path: str
    _log_path: str
    _file: Id | None
    _log: Id | None
    _lost: bool = False
    _log_left: bool = False  # at its place, and the connection keeps its number from others

    @classmethod
    def of(cls, db: apsw.Connection) -> "Files":
        """Return the files of a connection that was just opened."""
        path, log = db.filename, db.filename_wal
        found = cls(path, log, _at(path), _at(log))
        db.set_wal_hook(found._move_log)
        return found

    def replaced(self) -> bool:
        """Return whether the file or its log were removed, or are others now. Raises nothing."""
        with contextlib.suppress(OSError):  # a folder that cannot be read just now proves nothing
            file, log = _at(self._path), _at(self._log_path)
            self._lost = self._lost or file != self._file or log != self._log
        return self._lost

    def _move_log(self, db: apsw.Connection, name: str, pages: int) -> int:
        """Move the log into the file after a commit, if it is long, and the file was not replaced."""
        if pages >= LONG and not self.replaced():
            with contextlib.suppress(apsw.Error):  # the commit is done, and a later one moves the log
                db.wal_checkpoint(name)
        return apsw.SQLITE_OK

    def log_left(self) -> bool:
        """Return whether the log is where it was: the connection stays open then until `remove_log`. Raises nothing."""
        self._log_left = self._log is not None
        with contextlib.suppress(OSError):
            self._log_left &= _at(self._log_path) == self._log
        return self._log_left

    def there(self) -> bool:
        """Return whether the file and its log were moved away, and are back. Raises OSError."""
        return self._log_left and (_at(self._path), _at(self._log_path)) == (self._file, self._log)

    def remove_log(self) -> None:
        """Remove the log of the former file: the one in its place would be taken to have it. Raises OSError.

        The connection has to be open still: others are given the number of the log when it is closed.
        """
        log = _at(self._log_path)
        if log is None or (self._log_left and log == self._log):  # else a process has made one for the file of now
            Path(self._log_path.removesuffix("-wal") + "-shm").unlink(missing_ok=True)
            if log is not None:
                Path(self._log_path).unlink(missing_ok=True)
        self._log_left = False


@define(eq=False)
class Bystanders:
    """The connections of this process to the files of stores, beside those of the stores themselves.

    SQLite shares the index of a log among all connections of a process to one file. A connection that is opened after
    the file was replaced, and before the former log is removed, has the former index; one that was open before a file
    was written over has it, too. If the store opened the file beside it, it would share that index: each write would
    find the file locked, or end in a log that no other process reads. So while a store is away, from the moment that
    it has found its file replaced until it has opened the one of now, nobody else opens it, and the store waits for
    those that have it open. Its methods may be called in any thread.
    """

    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _open: Counter[str] = attrs.field(factory=Counter)
    _away: Counter[str] = attrs.field(factory=Counter)

    def enter(self, folder: Path) -> None:
        """Note a connection that is about to be opened. Raises StoreError while the store of the folder is away."""
        with self._lock:
            if self._away[key := os.path.realpath(folder)]:
                raise StoreError(f"the store in {folder} is being opened anew", cause="cannot_open", retryable=True)
            self._open[key] += 1

    def leave(self, folder: Path) -> None:
        """Forget a connection that is closed."""
        with self._lock:
            self._open[os.path.realpath(folder)] -= 1

    def store_left(self, folder: Path) -> None:
        """Keep others away from a folder whose store has found its file replaced."""
        with self._lock:
            self._away[os.path.realpath(folder)] += 1

    def check_left(self, folder: Path) -> None:
        """Raise StoreError while somebody has the file of a folder open whose store is away."""
        with self._lock:
            if self._open[os.path.realpath(folder)]:
                problem = f"the projections in {folder} still read the file that was there before: try again"
                raise StoreError(problem, cause="cannot_open", retryable=True)

    def store_is_back(self, folder: Path) -> None:
        """Let others open the file again: the store has, or is closed."""
        with self._lock:
            self._away[os.path.realpath(folder)] -= 1


BYSTANDERS: Final = Bystanders()


def abandon(db: apsw.Connection) -> None:
    """Close a connection without a change of any file: others are in the place of its own. Raises nothing."""
    with contextlib.suppress(apsw.Error):
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    with contextlib.suppress(apsw.Error):
        db.close()


def check_whole(folder: Path) -> None:
    """Raise StoreError while the file of a folder is missing, or not as long as it says: it may be on its way."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
        size = path.stat().st_size
    except OSError:
        head, size = b"", 0
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    if not head.startswith(_MAGIC) or size != (65536 if page == 1 else page) * pages:
        problem = f"{path} is missing or not whole: put a backup in its place, or start anew"
        raise StoreError(problem, cause="cannot_open", retryable=True)


def _at(path: str) -> Id | None:
    """Return the file at a path; None if there is none. Raises OSError if that cannot be told."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path costs more than the call
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
