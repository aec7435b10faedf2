"""Who may write which session: leases with an epoch, held by processes."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.config import StoreConfig
from warren.storage.sqlite.rows import MAX_NUMBER, raw, shown

if TYPE_CHECKING:
    import apsw

if sys.platform != "win32":  # where there are no such locks, a dead holder is known by its time alone
    import fcntl

FOLDER: Final = "holders"
_HOLDER: Final = f"SELECT {raw('name, expires_at')} FROM holders WHERE key = ?"
# SQLite numbers nothing above the largest number there is: one that is damaged would stop all that is to be numbered.
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


@attrs.define(eq=False)
class Holder:
    """One runtime as a holder of leases. It outlives the connections that it writes through.

    It lives for others while it keeps renewing its row, and while it keeps a lock on a file of its own: the system
    drops that with the process, so that a crash frees its sessions at once, and a process that hangs does so in time.

    Attributes:
        folder: where the locks are.
        name: what others are told.
        seconds: how long it lives unless it renews.
        clock: seconds since 1970 UTC.
        key: its number in the file; None until it first writes.
        lapses: how often it was late to renew, so that others may have taken over what it had.
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
        """Enter itself, inside a transaction; also removes holders that are dead, not those that only are late."""
        for key in [row[0] for row in db.execute("SELECT key FROM holders")]:
            if is_free(self._path(key)):
                self._remove(db, key)
        for statement in _NUMBER_ANEW:
            db.execute(statement)
        enter = "INSERT INTO holders (name, expires_at) VALUES (?, ?) RETURNING key"
        self.key = int(db.execute(enter, (self.name, self._expiry())).get)
        # Before the commit: whoever sees the row finds the lock held.
        self._lock = _locked(self._path(self.key))

    def renew(self, db: "apsw.Connection") -> None:
        """Live on. Does nothing before `register`."""
        if self.key is not None:
            row: Any = db.execute(_HOLDER, (self.key,)).fetchone()
            expires_at = None if row is None else row[1]
            self.lapses += type(expires_at) is not int or expires_at <= self.clock() * 1e6
            again = "INSERT OR REPLACE INTO holders (key, name, expires_at) VALUES (?, ?, ?)"
            db.execute(again, (self.key, self.name, self._expiry()))
            self._keep_lock(self._path(self.key))

    def leave(self, db: "apsw.Connection") -> None:
        """Remove itself, inside a transaction: what it still holds is there for anybody."""
        if self.key is not None:
            self._remove(db, self.key)

    def rival(self, db: "apsw.Connection", key: int) -> str | None:
        """Return the name of the holder of that number; None where it is dead."""
        row: Any = db.execute(_HOLDER, (key,)).fetchone()
        if row is None or type(row[1]) is not int or row[1] <= self.clock() * 1e6 or is_free(self._path(key)):
            return None
        return shown(row[0])

    def _keep_lock(self, path: Path) -> None:
        """Lock anew where somebody has removed the file: without one it would count as dead."""
        if self._lock is not None and not _is_at(self._lock, path):
            os.close(self._lock)
            self._lock = _locked(path)

    def die(self) -> None:
        """Give its lock back and be nobody from now on. Idempotent."""
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
        fcntl.flock(lock, fcntl.LOCK_EX)  # it can only wait for somebody who looks whether it is free
    except OSError:  # a file system without locks
        os.close(lock)
        return None
    return lock


def is_free(path: Path) -> bool:
    """Tell whether a lock surely is nobody's. One that cannot be looked at may be somebody's."""
    if sys.platform == "win32":
        return False
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:  # it is made before its holder can be seen: this file was brought here without it
        return True
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look do not take each other for a holder
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
