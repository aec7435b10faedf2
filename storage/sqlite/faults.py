"""Exceptions of SQLite and of the system, translated into the errors that callers get."""

import errno
import os
from pathlib import Path
from typing import Final, TypeVar

import apsw

from warren.base.errors import StoreCause, StoreError, WarrenError

E = TypeVar("E", bound=BaseException)

# From the particular to the general: the first class that fits counts. `{0}` is the noun of the file.
_CAUSES: Final[tuple[tuple[type[Exception], StoreCause, bool, str], ...]] = (
    (apsw.BusyError, "locked", True, "another process keeps the {0} locked"),
    (apsw.LockedError, "locked", True, "another process keeps the {0} locked"),
    (apsw.FullError, "disk_full", True, "the disk that holds the {0} is full"),
    (apsw.ReadOnlyError, "read_only", False, "the {0} cannot be written: it is read-only"),
    (apsw.NotADBError, "not_a_database", False, "the {0}'s file is not a database, or it is damaged"),
    (apsw.CorruptError, "corrupt", False, "the {0}'s file is damaged"),
    (apsw.IOError, "io_error", True, "the disk that holds the {0} reports an error"),
    (apsw.CantOpenError, "cannot_open", False, "the {0}'s file cannot be opened"),
    (apsw.PermissionsError, "permission", False, "the {0}'s file may not be opened"),
    (apsw.NoMemError, "out_of_memory", True, "there is not enough memory for the {0}"),
    (MemoryError, "out_of_memory", True, "there is not enough memory for the {0}"),
    (apsw.TooBigError, "too_big", False, "a row is larger than the {0} can hold"),
    (apsw.ConstraintError, "conflict", True, "a row of the same number is in the {0} already"),
    (apsw.ConnectionClosedError, "closed", False, "the {0} is closed"),
    (PermissionError, "permission", False, "the {0} may not be opened"),
    (UnicodeDecodeError, "corrupt", False, "a row of the {0} is damaged"),
    (OSError, "cannot_open", False, "the {0} cannot be opened"),
    (apsw.Error, "database_error", False, "the {0} refused"),
)
# Numbers of the system, for a folder or a file, with the class that SQLite raises for the same fault.
_BY_NUMBER: Final[dict[int, type[apsw.Error]]] = {
    errno.ENOSPC: apsw.FullError,
    errno.EDQUOT: apsw.FullError,
    errno.EFBIG: apsw.FullError,
    errno.EROFS: apsw.ReadOnlyError,
    errno.EIO: apsw.IOError,
}


# I/O errors of a disk that works.
_OF_THE_FILE: Final = {
    apsw.SQLITE_IOERR_SHORT_READ: "it or its log ends too early",
    apsw.SQLITE_IOERR_CORRUPTFS: "its file system found the damage",
}


def precise(exc: E, db: apsw.Connection) -> E | apsw.Error:
    """Return the error for the system's number behind an I/O error that a connection has just raised.

    Any other exception is returned as it is.

    The number tells a file that may not grow from a broken disk. A file that is cut off is a damaged one. Trap: a
    connection forgets the number when it is closed, and at its next call.
    """
    if not isinstance(exc, apsw.IOError):
        return exc
    damage = damage_of(exc)
    if damage is not None:
        return damage
    number = db.system_errno
    return _BY_NUMBER[number](f"{exc}: {os.strerror(number)}") if number in _BY_NUMBER else exc


def damage_of(exc: Exception) -> apsw.CorruptError | None:
    """Return the error for a damaged file that SQLite reports as an I/O error; None for any other exception."""
    # Only those that SQLite has raised have a number.
    why = _OF_THE_FILE.get(getattr(exc, "extendedresult", 0)) if isinstance(exc, apsw.IOError) else None
    return None if why is None else apsw.CorruptError(why)


def translate(exc: Exception, noun: str, *, session_id: str | None = None, path: Path | None = None) -> WarrenError:
    """Return the error that a caller gets for an exception of a database call.

    A WarrenError is returned as it is. An exception that is neither Warren's nor the database's comes from a value
    that cannot be stored: a StoreError with `cause="unstorable"`.

    Args:
        exc: the exception.
        noun: the name of the file's kind, such as "session store".
        session_id: the session concerned.
        path: the file concerned.
    """
    if isinstance(exc, WarrenError):
        return exc
    exc = damage_of(exc) or exc
    if isinstance(exc, OSError) and exc.errno in _BY_NUMBER:
        exc = _BY_NUMBER[exc.errno](str(exc))
    elif isinstance(exc, apsw.CantOpenError | apsw.ReadOnlyError) and path is not None:
        exc = _beside(path, exc)
    fits = ((cause, retryable, text) for kind, cause, retryable, text in _CAUSES if isinstance(exc, kind))
    cause, retryable, text = next(fits, ("unstorable", False, "a value cannot be stored"))
    named = "" if path is None else f"{path}: "
    error = StoreError(f"{named}{text.format(noun)} ({exc})", session_id=session_id, cause=cause, retryable=retryable)
    error.__cause__ = exc
    return error


def _beside(path: Path, exc: apsw.Error) -> Exception:
    """Return the error that tells why SQLite could not make its files beside a database, if that was the fault."""
    if on_read_only_disk(path):
        return apsw.ReadOnlyError(str(exc))
    if path.exists() and os.access(path, os.W_OK) and not os.access(path.parent, os.W_OK):
        return PermissionError("SQLite can make no files beside it: its folder may not be written")
    return exc


def on_read_only_disk(path: Path) -> bool:
    """Tell whether a file is on a file system that is mounted read-only."""
    try:
        return hasattr(os, "statvfs") and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
