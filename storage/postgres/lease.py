"""Leases: the right of a process to write a session, with an epoch that fences late writers off.

A process is alive for others while its row in `holders` has not expired, and while the server knows of its advisory
lock, which ends with its connection. A connection that was lost is replaced: for that time the row says up to when the
process counts as alive without its lock. Only of a process of the same machine can it be sure that it has ended: who
opens the store removes such rows. All times are the server's. Every takeover raises the epoch in the session's
row, and a commit names the epoch of its lease: a process that wakes up after its lease was taken over cannot write.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import os
import socket
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from psycopg import errors

from warren.base.nodes import Announcement
from warren.base.values import define
from warren.settings.config import PostgresConfig
from warren.storage.membership import ForgottenError, boot_time, is_newest, new_key, now, status_of, status_text
from warren.storage.noticing import Hooks
from warren.storage.own_process import has_ended, own_name
from warren.storage.postgres.driver import Connection, array, escaped, unescaped
from warren.storage.postgres.schema import LOCK, SCHEMA, state_of, too_new
from warren.storage.rows import SEQ_STRIDE

GRACE: Final = 1 / 3
"""The time without a lock that a process may have, as a share of the time of its leases."""
PROVED: Final = 0.9
"""The share of that time for which a process that has renewed its leases counts on them.

Its clock may run a little slow. It is not a share of the leases themselves, because a process can lose its lock without
its knowing, as when the server ends its connection.
"""
RENEWALS: Final = 12
END_LEASE: Final = f"""
    UPDATE warren.sessions SET holder = NULL, epoch = epoch + 1, last_seq = last_seq + {SEQ_STRIDE}
    WHERE key = $1::int8 AND holder <> $2::int
"""
"""Fences the holder of a session that counts as dead: it may hang, and wake up later."""
"""Renewals in the time of one lease, so that three come in the time without a lock."""
_LOCKED: Final = f"""EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = {LOCK} AND objsubid = 2
    AND objid = h.key::oid AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"""
ALIVE: Final = f"""(h.expires_at > clock_timestamp() AND (h.graced_until > clock_timestamp() OR {_LOCKED}))"""
"""A condition of SQL: the process of the row `h` lives."""
_ENTER: Final = """
    WITH entered AS (
        INSERT INTO warren.holders (name, version, status, expires_at, graced_until, key) SELECT $1, $4::int, $5,
            clock_timestamp() + $2::float8 * interval '1 s', clock_timestamp() + $3::float8 * interval '1 s', $6::int
        FROM warren.meta, (SELECT nextval('warren.holders_key_seq')) AS counted  -- see `version_of_others`
        WHERE needs <= $4::int FOR SHARE OF meta  -- a contraction of the tables has this row's lock
        RETURNING key
    ) INSERT INTO warren.writers (holder, generation, groups) SELECT key, 0, 0 FROM entered RETURNING holder
"""
# Rows of processes that are long dead: nobody asks for their names any more.
_REAP: Final = f"""
    WITH gone AS (
        DELETE FROM warren.holders h WHERE h.expires_at < clock_timestamp() - interval '1 hour' AND NOT {_LOCKED}
        RETURNING h.key
    ) DELETE FROM warren.writers WHERE holder IN (SELECT key FROM gone)
"""
_OTHERS: Final = """
    SELECT h.key, h.status FROM warren.holders h
    WHERE h.expires_at > clock_timestamp() AND h.key IS DISTINCT FROM $1::int
"""
_BURY: Final = f"""
    WITH gone AS (DELETE FROM warren.holders h WHERE h.key = ANY ($1::int[]) AND NOT {_LOCKED} RETURNING h.key)
    DELETE FROM warren.writers WHERE holder IN (SELECT key FROM gone) RETURNING holder
"""
BURIAL: Final = 1.0
"""Seconds that the connections of processes that have ended get to end, too."""
_TRY_LOCK: Final = f"SELECT pg_try_advisory_lock({LOCK}, $1::int)"
LIVING: Final = f"SELECT h.name, h.version FROM warren.holders h WHERE {ALIVE} ORDER BY h.key"
"""A query for the living processes: their names, and how many scripts of the tables their programs know."""
OLDER: Final = f"SELECT h.name FROM warren.holders h WHERE h.version < $1::int AND {ALIVE} ORDER BY h.key"
"""A query for the living processes whose programs know fewer than $1 scripts of the tables."""
# `old` is read before the row is changed. The row of the writer is only read: it may be locked by a group that waits.
_RENEW: Final = """
    WITH old AS (
        SELECT CASE WHEN $4::bool THEN expires_at ELSE least(expires_at, graced_until) END - clock_timestamp() AS rest,
            leaves, graced_until - $3::float8 * interval '1 s' AS renewed_at, judges_from, saw_at, status
        FROM warren.holders WHERE key = $1::int FOR UPDATE
    ), renewed AS (
        UPDATE warren.holders h SET
            expires_at = clock_timestamp() + $2::float8 * interval '1 s',
            graced_until = clock_timestamp() + $3::float8 * interval '1 s', status = $5,
            judges_from = CASE WHEN $4::bool THEN old.judges_from
                ELSE clock_timestamp() + $3::float8 * interval '1 s' END,
            saw_at = CASE WHEN $4::bool OR old.judges_from > clock_timestamp() THEN old.saw_at ELSE old.renewed_at END
        FROM old WHERE key = $1::int
    ) SELECT extract(epoch FROM rest)::float8, leaves, status, groups, extract(epoch FROM clock_timestamp())::float8
    FROM old JOIN warren.writers ON holder = $1::int
"""
_LEAVE: Final = """
    WITH gone AS (DELETE FROM warren.holders WHERE key = $1::int)
    DELETE FROM warren.writers WHERE holder = $1::int
"""


def alive(me: str) -> str:
    """Return a condition of SQL: the process of the row `h` lives, or `me` cannot tell yet whether it does."""
    since = f"(SELECT me.saw_at FROM warren.holders me WHERE me.key = {me} AND me.judges_from > clock_timestamp())"
    return f"({ALIVE} OR h.expires_at > {since})"


def ahead(sent: float, there: float, received: float) -> float:
    """Return by how many seconds the server's clock is ahead of this machine's; 0 if that cannot be told.

    Args:
        sent: the time here before the question.
        there: the server's time.
        received: the time here after the answer.
    """
    return 0.0 if sent <= there <= received else round(there - (sent + received) / 2, 3)


def rival(owner: str, me: str) -> str:
    """Return SQL for the name of the process `owner` if it is alive and not `me`; else NULL."""
    known = f"h.key = {owner} AND h.key IS DISTINCT FROM {me}"
    return f"(SELECT h.name FROM warren.holders h WHERE {known} AND {alive(me)})"


_RIVAL: Final = f"SELECT {rival('$1::int', '$2::int')}"


async def rival_of(db: Connection, owner: int | None, me: int | None) -> str | None:
    """Return the name of the process that has a session if it is alive and not `me`; else None.

    It has a statement of its own, after the one that locked the session's row: if that one had to wait, it shows the
    row as it became meanwhile, and everything else, as the rows of processes, as it was before. Raises as `fetch`.
    """
    if owner in (None, me):
        return None
    name = await db.value(_RIVAL, owner, me)
    return None if name is None else unescaped(name)


@define(eq=False)
class Holder:
    """A runtime as a holder of leases. It outlives the connections through which it writes.

    Attributes:
        name: the name that messages in other processes show.
        seconds: the time from one renewal to the expiry.
        key: its number in the store; None before its first write.
        lapses: how often it renewed too late, so that other processes may have taken its sessions over.
        started_at: the time at which this process opened the store.
        said: what this process has said of itself last; None if it is no node.
        sent: the number of the newest group of operations.
        stored: the number of the newest group that is known to be stored. A store without it has gone back.
        went_back: how often the store went back: each time this process died as a holder, and became another one.
        clock_ahead: see Store.
        process: the name by which others can tell that this process has ended; None if they cannot.
        hooks: the webhooks of the store.
    """

    name: str
    seconds: float
    key: int | None = None
    lapses: int = 0
    started_at: datetime = attrs.field(factory=now)
    said: Announcement | None = None
    sent: int = 0
    stored: int = 0
    went_back: int = 0
    clock_ahead: float | None = None
    process: str | None = attrs.field(factory=own_name)
    hooks: Hooks = attrs.field(factory=Hooks)
    _renewals: int = 0
    _confirmed: int = 0  # the newest of these renewals that is known to be stored
    _locked: Connection | None = None  # the connection that has the lock

    @classmethod
    def of(cls, config: PostgresConfig) -> "Holder":
        """Return this process as a holder in a store."""
        program = config.holder or Path(sys.argv[0]).name or "python"
        return cls(f"{program} (process {os.getpid()} on {socket.gethostname()})", config.lease)

    @property
    def grace(self) -> float:
        """Seconds from a renewal on for which it counts as alive without its lock."""
        return self.seconds * GRACE

    async def register(self, db: Connection) -> None:
        """Add its row, take its lock, and remove the rows of long dead processes.

        Raises StoreError(cause="newer_schema") if the tables were contracted meanwhile, and as `Connection.fetch`.
        """
        await db.fetch(_REAP)
        values = escaped(self.name), str(self.seconds), str(self.grace), SCHEMA.version, self._status()
        self.key, self._confirmed = await db.value(_ENTER, *values, new_key()), self._renewals
        if self.key is None:
            raise too_new(await state_of(db))
        await self._lock(db)

    async def bury(self, db: Connection) -> None:
        """Remove the rows of processes of this machine that have ended, so that their sessions are free at once.

        For all others they would live until their grace is over: only here it is sure that they do not come back. It
        does nothing for a role that may not write. Raises LostError.
        """
        with contextlib.suppress(errors.Error), trio.move_on_after(BURIAL):
            while dead := [key for key, status in await db.fetch(_OTHERS, self.key) if _has_ended(status)]:
                if not await db.fetch(_BURY, array(dead)):
                    await trio.sleep(BURIAL / 20)

    async def renew(self, db: Connection) -> bool:
        """Postpone the expiry; return whether this node was asked to drain. Does nothing before `register`.

        Raises ForgottenError if the row is not as this process has left it, and as `Connection.fetch`.
        """
        if self.key is None:
            return False
        locked, began, sent, stored = self._locked is db, boot_time(), time.time(), self.stored
        expected = range(self._confirmed, self._renewals + 1)
        self._renewals += 1
        rows = await db.fetch(_RENEW, self.key, str(self.seconds), str(self.grace), locked, self._status())
        if not rows or rows[0][3] < stored or not is_newest(rows[0][2], self.started_at, expected):
            raise ForgottenError
        rest, leaves, _, _, there = rows[0]
        self._confirmed = self._renewals
        # Others see the renewal once it is committed, which is before its answer: until then they go by the old row.
        self.lapses += boot_time() - began >= rest
        self.clock_ahead = ahead(sent, there, time.time())
        if not locked:
            await self._lock(db)
        return bool(leaves)

    async def leave(self, db: Connection) -> None:
        """Remove its row: its sessions are free for all processes. Raises as `Connection.fetch`."""
        if self.key is not None:
            await db.fetch(_LEAVE, self.key)
        self.die()

    def die(self) -> None:
        """Forget its key. Idempotent."""
        self.key = self._locked = None
        self.sent = self.stored = 0

    def become_another(self) -> None:
        """Die, as the store has gone back: what this holder was given there may be given to others now."""
        self.die()
        self.went_back += 1
        self.lapses += 1
        self.hooks.forget()

    def _status(self) -> str:
        return status_text(self.started_at, self.said, self._renewals, self.clock_ahead, self.process)

    async def _lock(self, db: Connection) -> None:
        """Take the lock, unless a lost connection still has it: then it counts as locked, and a renewal tries again."""
        self._locked = db if await db.value(_TRY_LOCK, self.key) else None


def _has_ended(stored: Any) -> bool:
    process = status_of(stored).process
    return process is not None and has_ended(process)
