"""What SQLite reports, as the errors that callers meet."""

import errno
import os
from pathlib import Path
from typing import Final

import apsw

from warren.errors import StoreCause, StoreError, WarrenError

# From the particular to the general: the first that fits counts.
_CAUSES: Final[tuple[tuple[type[Exception], StoreCause, bool, str], ...]] = (
    (apsw.BusyError, "locked", True, "another process keeps the session store locked"),
    (apsw.LockedError, "locked", True, "another process keeps the session store locked"),
    (apsw.FullError, "disk_full", True, "the disk that holds the session store is full"),
    (apsw.ReadOnlyError, "read_only", False, "the session store cannot be written: it is read-only"),
    (apsw.NotADBError, "not_a_database", False, "the session store's file is not a database, or it is damaged"),
    (apsw.CorruptError, "corrupt", False, "the session store's file is damaged"),
    (apsw.IOError, "io_error", True, "the disk that holds the session store reports an error"),
    (apsw.CantOpenError, "cannot_open", False, "the session store's file cannot be opened"),
    (apsw.PermissionsError, "permission", False, "the session store's file may not be opened"),
    (apsw.NoMemError, "out_of_memory", True, "there is not enough memory for the session store"),
    (MemoryError, "out_of_memory", True, "there is not enough memory for the session store"),
    (apsw.TooBigError, "too_big", False, "a row is larger than the session store can hold"),
    (apsw.ConstraintError, "conflict", True, "a row of the same number is in the session store already"),
    (apsw.ConnectionClosedError, "closed", False, "the session store is closed"),
    (PermissionError, "permission", False, "the session store may not be opened"),
    (UnicodeDecodeError, "corrupt", False, "a row of the session store is damaged"),
    (OSError, "cannot_open", False, "the session store cannot be opened"),
    (apsw.Error, "database_error", False, "the session store refused"),
)
# What opening a folder or a file reports by number, as what SQLite says for the same.
_BY_NUMBER: Final[dict[int, type[apsw.Error]]] = {
    errno.ENOSPC: apsw.FullError,
    errno.EDQUOT: apsw.FullError,
    errno.EFBIG: apsw.FullError,
    errno.EROFS: apsw.ReadOnlyError,
    errno.EIO: apsw.IOError,
}


def precise(exc: apsw.IOError, db: apsw.Connection) -> apsw.Error:
    """Return the error of the system's own number for an I/O error that a connection has just raised.

    It tells a file that may not grow from a broken disk. Trap: the connection forgets the number when it is closed.
    """
    number = db.system_errno
    return _BY_NUMBER[number](f"{exc}: {os.strerror(number)}") if number in _BY_NUMBER else exc


def translate(exc: Exception, *, session_id: str | None = None, path: Path | None = None) -> WarrenError:
    """Return the error a caller meets for what a database call raised, concerning a session or a file.

    One of Warren's own passes as it is. Anything that is neither its own nor the database's is a value that cannot
    be stored: a StoreError with `cause="unstorable"`.

    Args:
        exc: the exception.
        session_id: the session concerned.
        path: the file concerned.
    """
    if isinstance(exc, WarrenError):
        return exc
    if isinstance(exc, OSError) and exc.errno in _BY_NUMBER:
        exc = _BY_NUMBER[exc.errno](str(exc))
    elif isinstance(exc, apsw.CantOpenError) and path is not None and on_read_only_disk(path):
        exc = apsw.ReadOnlyError(str(exc))
    fits = ((cause, retryable, text) for kind, cause, retryable, text in _CAUSES if isinstance(exc, kind))
    cause, retryable, text = next(fits, ("unstorable", False, "a value cannot be stored"))
    where = "" if path is None else f"{path}: "
    error = StoreError(f"{where}{text} ({exc})", session_id=session_id, cause=cause, retryable=retryable)
    error.__cause__ = exc
    return error


def on_read_only_disk(path: Path) -> bool:
    """Tell whether a file is on a file system that is mounted read-only."""
    try:
        return hasattr(os, "statvfs") and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
