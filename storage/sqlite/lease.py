"""Leases: the right of a process to write a session, with an epoch that fences late writers off.

A process is alive for others while its row in `holders` has not expired and its lock file is locked. The system drops
the lock with the process, so a crash frees the sessions at once; a process that hangs loses them when its row expires.
Every takeover raises the epoch in the session's row, and a commit names the epoch of its lease: a process that wakes up
after its lease was taken over cannot write.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warren.config import StoreConfig
from warren.storage.rows import MAX_NUMBER, shown
from warren.storage.sqlite.columns import raw
from warren.values import define

if TYPE_CHECKING:
    import apsw

if sys.platform != "win32":  # without such locks only the expiry tells that a holder is dead
    import fcntl

FOLDER: Final = "holders"
_HOLDER: Final = f"SELECT {raw('name, expires_at')} FROM holders WHERE key = ?"
# SQLite gives no number above the largest one: a damaged number at the end of the range would refuse all new rows.
_NUMBER_ANEW: Final = (
    """
    UPDATE sqlite_sequence
    SET name = iif(EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'inbox'), 'holders', 'inbox')
    WHERE typeof(name) <> 'text' OR name NOT IN ('inbox', 'holders')
    """,
    f"""
    UPDATE inbox SET number = (SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE number <= {MAX_NUMBER})
    WHERE number = (SELECT max(number) FROM inbox) AND number > {MAX_NUMBER}
    """,
    f"""
    UPDATE sqlite_sequence SET seq = CASE name
        WHEN 'inbox' THEN (SELECT coalesce(max(number), 0) FROM inbox)
        ELSE (SELECT max(coalesce((SELECT max(key) FROM holders), 0), coalesce(max(holder), 0)) FROM sessions
            WHERE holder <= {MAX_NUMBER}) END
    WHERE typeof(seq) <> 'integer' OR seq NOT BETWEEN 0 AND {MAX_NUMBER}
    """,
)


@define(eq=False)
class Holder:
    """A runtime as a holder of leases. It outlives the connections through which it writes.

    Attributes:
        folder: the folder of the lock files.
        name: the name that messages in other processes show.
        seconds: the time from one renewal to the expiry.
        clock: returns seconds since 1970 UTC.
        key: its number in the store; None before its first write.
        lapses: how often it renewed too late, so that other processes may have taken its sessions over.
    """

    folder: Path
    name: str
    seconds: float
    clock: Callable[[], float] = time.time
    key: int | None = None
    lapses: int = 0
    _lock: int | None = None

    @classmethod
    def of(cls, config: StoreConfig) -> "Holder":
        """Return this process as a holder in a store."""
        program = config.holder or Path(sys.argv[0]).name or "python"
        return cls(config.path / FOLDER, f"{program} (process {os.getpid()} on {socket.gethostname()})", config.lease)

    def register(self, db: "apsw.Connection") -> None:
        """Add its row, inside a transaction; also remove the rows of dead processes, but not of late ones."""
        for key in [row[0] for row in db.execute("SELECT key FROM holders")]:
            if is_free(self._path(key)):
                self._remove(db, key)
        for statement in _NUMBER_ANEW:
            db.execute(statement)
        enter = "INSERT INTO holders (name, expires_at) VALUES (?, ?) RETURNING key"
        self.key = int(db.execute(enter, (self.name, self._expiry())).get)
        # Before the commit: a process that sees the row finds the file locked.
        self._lock = _locked(self._path(self.key))

    def renew(self, db: "apsw.Connection") -> None:
        """Postpone the expiry, inside a transaction. Does nothing before `register`."""
        if self.key is not None:
            row: Any = db.execute(_HOLDER, (self.key,)).fetchone()
            expires_at = None if row is None else row[1]
            self.lapses += type(expires_at) is not int or expires_at <= self.clock() * 1e6
            again = "INSERT OR REPLACE INTO holders (key, name, expires_at) VALUES (?, ?, ?)"
            db.execute(again, (self.key, self.name, self._expiry()))
            self._keep_lock(self._path(self.key))

    def leave(self, db: "apsw.Connection") -> None:
        """Remove its row, inside a transaction: its sessions are free for all processes."""
        if self.key is not None:
            self._remove(db, self.key)

    def rival(self, db: "apsw.Connection", key: int) -> str | None:
        """Return the name of the holder with that key; None if it is dead."""
        row: Any = db.execute(_HOLDER, (key,)).fetchone()
        if row is None or type(row[1]) is not int or row[1] <= self.clock() * 1e6 or is_free(self._path(key)):
            return None
        return shown(row[0])

    def _keep_lock(self, path: Path) -> None:
        """Lock a new file if the old one was removed: without a locked file this process would count as dead."""
        if self._lock is not None and not _is_at(self._lock, path):
            os.close(self._lock)
            self._lock = _locked(path)

    def die(self) -> None:
        """Unlock its file and forget its key. Idempotent."""
        self.key = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove(self, db: "apsw.Connection", key: int) -> None:
        db.execute("DELETE FROM holders WHERE key = ?", (key,))
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _expiry(self) -> int:
        return round((self.clock() + self.seconds) * 1e6)

    def _path(self, key: int) -> Path:
        return self.folder / f"{key}.lock"


def _locked(path: Path) -> int | None:
    if sys.platform == "win32":
        return None
    path.parent.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits at most for a process that looks whether the file is free
    except OSError:  # a file system without locks
        os.close(lock)
        return None
    return lock


def is_free(path: Path) -> bool:
    """Tell whether a lock file is surely free. A file that cannot be opened counts as locked."""
    if sys.platform == "win32":
        return False
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:  # a lock file is made before its row is committed: the store was copied here without it
        return True
    except OSError:
        return False
    try:
        fcntl.flock(
            lock, fcntl.LOCK_SH | fcntl.LOCK_NB
        )  # shared: two processes that look do not take each other for the holder
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    try:
        there, held = path.stat(), os.fstat(lock)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
