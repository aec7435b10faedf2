"""The files behind an open store, and whether others were put in their place.

SQLite notices neither that a file was replaced nor that it was written over: it goes on with a file that has no name
any more, or mixes pages of both, and the commits that it confirms are gone.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

import apsw

from warren.errors import StoreError
from warren.storage.sqlite.file import FILE_NAME
from warren.values import define

_HEADER: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
LONG: Final = 1_000
"""Pages from which on a log is moved into its file, as SQLite does by itself."""
Id = tuple[int, int]
"""The device and the number of a file."""


@define(eq=False)
class Files:
    """The file and the log of an open connection.

    The file changes when its log is moved there: by this connection, which notes it, or by another one, which changes
    the version of the data, too. Any other change is somebody's who has written over it.
    """

    _path: str
    _log_path: str
    _file: Id | None
    _log: Id | None
    _written: Id = (0, 0)  # the time of the last change, in nanoseconds, and the size
    _version: int = 0
    _lost: bool = False

    @classmethod
    def of(cls, db: apsw.Connection) -> "Files":
        """Return the files of a connection that was just opened. Raises apsw.Error."""
        path, log = db.filename, db.filename_wal
        (file, written), (log_there, _) = _look(path), _look(log)
        found = cls(path, log, file, log_there, written, db.pragma("data_version"))
        db.set_wal_hook(found._move_log)
        return found

    def replaced(self, db: apsw.Connection) -> bool:
        """Return whether the file or its log are others now, or were written over. Raises apsw.Error."""
        (file, written), (log, _) = _look(self._path), _look(self._log_path)
        self._log = self._log or log
        if file != self._file or log != self._log:
            self._lost = True
        elif written != self._written:
            before = self._version
            self._written, self._version = written, db.pragma("data_version")
            self._lost = self._lost or self._version == before
        return self._lost

    def _move_log(self, db: apsw.Connection, name: str, pages: int) -> int:
        """Move the log into the file after a commit, if it is long, and the file was not replaced."""
        if pages >= LONG:
            with contextlib.suppress(apsw.Error):  # the commit is done, and a later one moves the log
                if not self.replaced(db):
                    db.wal_checkpoint(name)
                    self._written = _look(self._path)[1]
        return apsw.SQLITE_OK

    def remove_log(self) -> None:
        """Remove the log if the file was replaced: it would be taken for that of the file of now."""
        for path in (self._log_path, self._log_path.removesuffix("-wal") + "-shm"):
            if self._lost and self._log is not None and _look(self._log_path)[0] in (self._log, None):
                with contextlib.suppress(OSError):
                    Path(path).unlink()


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
        raise StoreError(problem, cause="cannot_open")


def _look(path: str) -> tuple[Id | None, Id]:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path costs more than the call
    except OSError:
        return None, (0, 0)
    return (found.st_dev, found.st_ino), (found.st_mtime_ns, found.st_size)
