"""Leases: the right of a process to write a session, with an epoch that fences late writers off.

A process is alive for others while its row in `holders` has not expired and its lock file is locked. The system drops
the lock with the process, so a crash frees the sessions at once; a process that hangs loses them when its row expires.
Every takeover raises the epoch in the session's row, and a commit names the epoch of its lease: a process that wakes up
after its lease was taken over cannot write.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.base.nodes import Announcement, Node
from warren.base.values import define
from warren.settings.config import StoreConfig
from warren.storage.membership import (
    ForgottenError,
    is_newest,
    new_key,
    node_of,
    now,
    oldest_first,
    status_of,
    status_text,
)
from warren.storage.noticing import Hooks
from warren.storage.rows import MAX_NUMBER, SEQ_STRIDE, shown
from warren.storage.sqlite.columns import raw

if TYPE_CHECKING:
    import apsw

if sys.platform != "win32":  # without such locks only the expiry tells that a holder is dead
    import fcntl

FOLDER: Final = "holders"
PROVED: Final = 0.9
"""The share of a lease for which a process that has renewed it counts on it: its clock may run a little slow."""
RENEWALS: Final = 3
"""Renewals in the time of one lease: two may come late before other processes may take the sessions."""
END_LEASE: Final = f"""
    UPDATE sessions SET holder = NULL, epoch = epoch + 1, last_seq = last_seq + {SEQ_STRIDE}
    WHERE key = ? AND holder <> ?
"""
"""Fences the holder of a session that counts as dead: it may hang, and wake up later."""
END_ALL: Final = "UPDATE holders SET expires_at = 0 WHERE key = ?"
"""Lets a holder of which a session is taken count as dead for all: it hears so by its renewal, whatever clocks say."""
_HOLDER: Final = f"SELECT {raw('name, expires_at, status')} FROM holders WHERE key = ?"
_HOLDERS: Final = f"SELECT key, {raw('name, expires_at, status')} FROM holders"
# A row that another process removed is put in again.
_ENTER: Final = "INSERT INTO holders (key, name, expires_at, status) VALUES (?, ?, ?, ?) RETURNING key"
_CHANGE: Final = "SELECT change FROM sessions WHERE key = ?"
_AGAIN: Final = """
    INSERT INTO holders (key, name, expires_at, status) VALUES (?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET name = excluded.name, expires_at = excluded.expires_at, status = excluded.status
    RETURNING leaves
"""
_ASK_TO_LEAVE: Final = "UPDATE holders SET leaves = 1 WHERE key = ?"
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
        started_at: the time at which this process opened the store.
        said: what this process has said of itself last; None if it is no node.
        went_back: how often the store went back: each time this process died as a holder, and became another one.
        wrote: the session that this process has changed last, and the number of the change.
        hooks: the webhooks of the store.
    """

    folder: Path
    name: str
    seconds: float
    clock: Callable[[], float] = time.time
    key: int | None = None
    lapses: int = 0
    started_at: datetime = attrs.field(factory=now)
    said: Announcement | None = None
    went_back: int = 0
    wrote: tuple[int, int] = (0, 0)
    hooks: Hooks = attrs.field(factory=Hooks)
    _witness: tuple[int, int] = (0, 0)  # the newest one of a group that is committed
    _renewals: int = 0
    _confirmed: int = 0  # the newest of these renewals that is known to be stored
    _renewed: int = 0  # the newest one that is stored if the group under way is
    _lock: int | None = None

    @classmethod
    def of(cls, config: StoreConfig) -> "Holder":
        """Return this process as a holder in a store."""
        program = config.holder or Path(sys.argv[0]).name or "python"
        return cls(config.path / FOLDER, f"{program} (process {os.getpid()} on {platform.node()})", config.lease)

    def register(self, db: "apsw.Connection") -> None:
        """Add its row, inside a transaction; also remove the rows of dead processes, but not of late ones."""
        for key in [row[0] for row in db.execute("SELECT key FROM holders")]:
            if is_free(self._path(key)):
                self._remove(db, key)
        for statement in _NUMBER_ANEW:
            db.execute(statement)
        self.key = int(db.execute(_ENTER, (new_key(), self.name, self._expiry(), self._status())).get)
        self._confirmed = self._renewals
        # Before the commit: a process that sees the row finds the file locked.
        self._lock = _locked(self._path(self.key))

    def renew(self, db: "apsw.Connection") -> bool:
        """Postpone the expiry, inside a transaction; return whether this node was asked to drain.

        Does nothing before `register`. Raises ForgottenError if the row is not as this process has left it.
        """
        if self.key is None:
            return False
        row: Any = db.execute(_HOLDER, (self.key,)).fetchone()
        expires_at = None if row is None else row[1]
        if row is not None and not is_newest(row[2], self.started_at, range(self._confirmed, self._renewals + 1)):
            raise ForgottenError
        self.lapses += type(expires_at) is not int or expires_at <= self.clock() * 1e6
        self._renewed = self._renewals = self._renewals + 1
        leaves: Any = db.execute(_AGAIN, (self.key, self.name, self._expiry(), self._status())).get
        self._keep_lock(self._path(self.key))
        return bool(leaves == 1)

    def check(self, db: "apsw.Connection") -> None:
        """Raise ForgottenError if the store does not have the newest change of this process."""
        key, change = self._witness
        if change:
            found = db.execute(_CHANGE, (key,)).get
            if found is None or (type(found) is int and found < change):
                raise ForgottenError
        self.wrote, self._renewed = self._witness, self._confirmed

    def committed(self) -> None:
        """Note that the group after the last `check` is committed."""
        self._witness, self._confirmed = self.wrote, self._renewed

    def become_another(self) -> None:
        """Die, as the store has gone back: what this holder was given there may be given to others now."""
        if self.key is not None:
            with contextlib.suppress(OSError):
                self._path(self.key).unlink()
        self.die()
        self.went_back += 1
        self.lapses += 1
        self.hooks.forget()

    def leave(self, db: "apsw.Connection") -> None:
        """Remove its row, inside a transaction: its sessions are free for all processes."""
        if self.key is not None:
            self._remove(db, self.key)

    def rival(self, db: "apsw.Connection", key: int) -> str | None:
        """Return the name of the holder with that key; None if it is dead."""
        row: Any = db.execute(_HOLDER, (key,)).fetchone()
        return shown(row[0]) if row is not None and self._lives(key, row[1]) else None

    def node(self, db: "apsw.Connection", key: int | None) -> Node | None:
        """Return the holder with that key, which may be this one; None if it is dead."""
        row: Any = db.execute(_HOLDER, (key,)).fetchone()
        if key is None or row is None or not (key == self.key or self._lives(key, row[1])):
            return None
        return node_of(key, shown(row[0]), row[2])

    def nodes(self, db: "apsw.Connection") -> list[Node]:
        """Return all holders that live."""
        rows: list[Any] = db.execute(_HOLDERS).fetchall()
        alive = (row for row in rows if row[0] == self.key or self._lives(row[0], row[2]))
        return oldest_first(node_of(key, shown(name), status) for key, name, _, status in alive)

    def ask_to_drain(self, db: "apsw.Connection", name: str) -> bool:
        """Ask the living nodes of a name to drain, inside a transaction; return whether there is one."""
        rows: list[Any] = db.execute(_HOLDERS).fetchall()
        named = [(row[0],) for row in rows if self._lives(row[0], row[2]) and status_of(row[3]).node == name]
        db.executemany(_ASK_TO_LEAVE, named)
        return bool(named)

    def _lives(self, key: int, expires_at: object) -> bool:
        return type(expires_at) is int and expires_at > self.clock() * 1e6 and not is_free(self._path(key))

    def _keep_lock(self, path: Path) -> None:
        """Lock a new file if the old one was removed: without a locked file this process would count as dead."""
        if self._lock is not None and not _is_at(self._lock, path):
            os.close(self._lock)
            self._lock = _locked(path)

    def die(self) -> None:
        """Unlock its file and forget its key. Idempotent."""
        self.key = None
        self.wrote = self._witness = (0, 0)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove(self, db: "apsw.Connection", key: int) -> None:
        db.execute("DELETE FROM holders WHERE key = ?", (key,))
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _status(self) -> str:
        return status_text(self.started_at, self.said, self._renewals)

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
