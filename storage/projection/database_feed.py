"""Reads of a store in PostgreSQL for a projection: the lines of its files are put together by the server.

The trigger of `warren.sessions` notes the transaction of each change. Transactions commit in any order, so a follower
that went by the numbers that it sees would miss those that are committed later. It reads only up to the oldest
transaction that may still run (`pg_snapshot_xmin`): whatever is committed from then on has a higher number. A
transaction that runs for long, in any database of the server, delays the files for as long, and nothing is lost.

The connection is one of psycopg without trio: a projection writes files, so it is in a thread anyway.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import errno
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec
import psycopg

from warren.base.errors import StoreCause, StoreError, WarrenError
from warren.settings.config import PostgresConfig
from warren.storage.postgres import session
from warren.storage.postgres.driver import LostError, ReadOnlyServerError, escaped, failure, unescaped, unknown
from warren.storage.postgres.faults import of_opening, translate
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import record_of
from warren.storage.postgres.servers import Address, Attempt, Server, addresses
from warren.storage.projection import feed
from warren.storage.projection.formats import START, Change, Witness
from warren.storage.rows import ARCHIVED, COLUMNS, DELETED

PAGE_BYTES: Final = 4 * 1024 * 1024
"""The length of events from which on a page of them ends."""
MOST_BEHIND: Final = 10_000
"""Changes that are counted: an old store has millions before its first projection."""
IDLE: Final = 60_000
"""Milliseconds that a transaction may wait for its slice: the files are written within it."""
_SETTLED: Final = "changed < pg_snapshot_xmin(pg_current_snapshot())"
_NUMBER: Final = "changed::text::int8 AS number"  # under its own name `changed` would be sorted as this number
_AFTER: Final = "(changed, key) > (%s::text::xid8, %s)"
# A dump has the numbers of the server that it is from. Those that this one has not reached yet would be out of order.
_RENUMBER: Final = """
    UPDATE warren.sessions SET state = state WHERE changed >= pg_snapshot_xmax(pg_current_snapshot())
"""
_COUNT_FILES: Final = "(SELECT count(*)::int8 FROM warren.attachments WHERE session = key)"
_ROW: Final = f"{_NUMBER}, key, state, events_after, {_COUNT_FILES}, {COLUMNS}"
_CHANGES: Final = f"""
    SELECT {_ROW} FROM warren.sessions WHERE {_AFTER} AND {_SETTLED} ORDER BY changed, key LIMIT %s
"""
_CHANGED: Final = f"SELECT {_ROW} FROM warren.sessions WHERE session_id = %s"
_COUNT: Final = "SELECT count(*) FROM warren.sessions"
_BEHIND: Final = f"SELECT count(*) FROM (SELECT FROM warren.sessions WHERE {_AFTER} LIMIT {MOST_BEHIND}) AS behind"
_NEWEST: Final = f"SELECT {_NUMBER}, key FROM warren.sessions WHERE {_SETTLED} ORDER BY changed DESC, key DESC LIMIT 1"
_WITNESSES: Final = f"""
    SELECT session_id, {_NUMBER}, updated_at FROM warren.sessions WHERE (changed, key) <= (%s::text::xid8, %s)
    ORDER BY changed DESC, key DESC LIMIT %s
"""
_WITNESS: Final = f"SELECT {_NUMBER}, key, updated_at FROM warren.sessions WHERE session_id = %s"
_SUMMARY: Final = "SELECT summary FROM warren.compactions WHERE session = %s ORDER BY key DESC LIMIT 1"
_FILES: Final = """
    SELECT b.key, b.sha256, media_type, octet_length(b.body)
    FROM warren.attachments JOIN warren.blobs b ON b.key = blob WHERE session = %s ORDER BY b.key
"""
_CONTENT: Final = "SELECT substring(body FROM %s FOR %s) FROM warren.blobs WHERE key = %s"
_IDENTITY: Final = "SELECT store::text FROM warren.meta"


def _time(column: str) -> str:
    """Return SQL for a time as the codec writes it."""
    seconds = f"to_char(to_timestamp({column} / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS')"
    fraction = f"CASE WHEN {column} %% 1000000 <> 0 THEN '.' || lpad(({column} %% 1000000)::text, 6, '0') ELSE '' END"
    return f"""
        CASE WHEN {column} BETWEEN 0 AND 253402300799999999 THEN {seconds} || {fraction} || 'Z'
            ELSE '{feed.NO_TIME}' END
    """


# A body is passed on as it is. The running sum ends a page inside the server; the first event always comes.
_EVENTS: Final = f"""
    SELECT string_agg(line, '' ORDER BY seq), max(seq) FROM (
        SELECT seq, line, sum(length(line)) OVER (ORDER BY seq) - length(line) AS before FROM (
            SELECT seq, '{{"session_id":"' || %s || '","seq":' || seq || ',"timestamp":"' || {_time("timestamp")}
                || '","event":' || body || CASE WHEN first_seq < seq THEN ',"first_seq":' || first_seq ELSE '' END
                || '}}' || chr(10) AS line
            FROM warren.events WHERE session = %s AND seq >= %s ORDER BY seq LIMIT {feed.EVENTS_AT_ONCE}
        ) AS page
    ) AS measured WHERE before < {PAGE_BYTES}
"""
_SPECIAL: Final = b"\x02"
"""A character that JSON has only as an escape: it is around texts that are escaped for the database."""


def _json(column: str) -> str:
    """Return SQL for a text of a caller as JSON."""
    mark = f"CASE WHEN position(chr(1) IN {column}) > 0 THEN chr(2) ELSE '' END"
    return f"coalesce({mark} || to_json({column})::text || {mark}, 'null')"


_TENANTS: Final = f"SELECT DISTINCT tenant FROM warren.sessions WHERE {_AFTER}"
_OF_TENANT: Final = f"SELECT key FROM warren.sessions WHERE tenant = %s AND state <> {DELETED} ORDER BY key"
_INDEX: Final = f"""
    SELECT string_agg(line, '' ORDER BY key), max(key) FROM (
        SELECT key, '{{"id":' || {_json("session_id")} || ',"title":' || {_json("title")} || ',"created_at":"'
            || {_time("created_at")} || '","updated_at":"' || {_time("updated_at")} || '","turns":' || turns
            || ',"message_count":' || message_count || ',"archived":'
            || CASE WHEN state = {ARCHIVED} THEN 'true' ELSE 'false' END || ',"model":' || {_json("model")}
            || ',"labels":' || labels || '}}' || chr(10) AS line
        FROM warren.sessions WHERE key = ANY(%s) AND state <> {DELETED}
    ) AS page
"""
_ESCAPED: Final = re.compile(_SPECIAL + b"(.*?)" + _SPECIAL)
_LINES: Final = msgspec.json.Decoder(msgspec.Raw)
_CAUSES: Final[dict[int | None, StoreCause]] = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EROFS: "read_only",
    errno.EIO: "io_error",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
}


def home(config: PostgresConfig) -> feed.Home:
    """Return the home of a store in a database."""
    return feed.Home(Holder.of(config).name, (psycopg.Error, LostError), partial(_open, config), _fault)


def _open(config: PostgresConfig) -> "DatabaseFeed":
    """Connect. Raises StoreError: of an error while connecting, it names the address without its password."""
    try:
        return DatabaseFeed(config)
    except (psycopg.Error, LostError) as exc:
        raise of_opening(exc, config) from None


def _fault(exc: Exception) -> WarrenError:
    if isinstance(exc, OSError):
        return StoreError(str(exc), cause=_CAUSES.get(exc.errno, "cannot_open"))
    return translate(exc)


class DatabaseFeed:
    """A store in a database; see Feed."""

    def __init__(self, config: PostgresConfig) -> None:
        """Connect. Raises StoreError for a malformed address, LostError and psycopg.Error."""
        self._limit = config.timeout + 1
        self._db = self._connected(config)
        try:
            self._rows(_RENUMBER)
        except BaseException:
            self._db.close()
            raise

    def _connected(self, config: PostgresConfig) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return a connection to the first server that answers and can be written; see `Connection.open`."""
        address = Address.of(config.url, "projector")
        deadline = time.monotonic() + config.timeout
        found, problems = _looked_up(address)
        attempts = address.attempts(found)
        for number, attempt in enumerate(attempts):
            share = address.share(deadline - time.monotonic(), len(attempts) - number)
            try:
                db = psycopg.connect(attempt.conninfo, connect_timeout=math.ceil(share), autocommit=True)
                try:
                    with _limited(db, share):
                        _begin(db, config, attempt)
                except BaseException:
                    db.close()
                    raise
            except (psycopg.OperationalError, LostError) as exc:
                if isinstance(exc, psycopg.errors.ConnectionTimeout):
                    attempt.note_silence()
                problems.append(exc if isinstance(exc, LostError) else LostError(str(exc).strip()))
            else:
                return db
        raise failure(problems)

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        self._rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not self._db.closed:
                self._rows("ROLLBACK")

    def newest(self) -> Change:
        """Return the newest change older than the oldest transaction that may still run."""
        rows = self._rows(_NEWEST)
        return Change(*rows[0]) if rows else START

    def behind(self, after: Change) -> int:
        """Return the number of sessions changed after a change, `MOST_BEHIND` at most."""
        return int(self._one(_BEHIND, after.number, after.key)[0])

    def count(self) -> int:
        return int(self._one(_COUNT)[0])

    def identity(self) -> str | None:
        """Return the mark that was written when the tables were made."""
        return str(self._one(_IDENTITY)[0])

    def changes(self, after: Change, limit: int) -> list[feed.Changed]:
        return [_changed(row) for row in self._rows(_CHANGES, after.number, after.key, limit)]

    def changed(self, session_id: str) -> feed.Changed | None:
        return next(map(_changed, self._rows(_CHANGED, escaped(session_id))), None)

    def witnesses(self, up_to: Change, count: int) -> tuple[Witness, ...]:
        rows = self._rows(_WITNESSES, up_to.number, up_to.key, count)
        return tuple(Witness(unescaped(session_id), *rest) for session_id, *rest in rows)

    def confirms(self, witness: Witness, up_to: Change) -> bool:
        rows = self._rows(_WITNESS, escaped(witness.session_id))
        if not rows:
            return False
        ((number, key, updated_at),) = rows
        return Change(number, key) > up_to or (number, updated_at) == (witness.change, witness.updated_at)

    def events(self, session: feed.Changed, first: int) -> Iterator[feed.LineRun]:
        while (page := self._page(_EVENTS, session.session_id, session.key, first)) is not None:
            yield feed.LineRun(_readable(page.data), page.last)
            first = page.last + 1

    def summary(self, session: feed.Changed) -> bytes | None:
        return next((unescaped(summary).encode() for (summary,) in self._rows(_SUMMARY, session.key)), None)

    def files(self, session: feed.Changed) -> list[feed.StoredFile]:
        return [feed.StoredFile(*row) for row in self._rows(_FILES, session.key)]

    def content(self, file: feed.StoredFile) -> Iterator[bytes]:
        for start in range(0, file.size, feed.FILE_PIECE):
            yield self._one(_CONTENT, start + 1, feed.FILE_PIECE, file.key)[0]

    def tenants(self, after: Change) -> list[str]:
        return [tenant for (tenant,) in self._rows(_TENANTS, max(0, after.number), after.key)]

    def index(self, tenant: str) -> Iterator[feed.LineRun]:
        # Keys from an index of tenants first: a scan in row order would read the rows of all tenants.
        keys = [key for (key,) in self._rows(_OF_TENANT, tenant)]
        for start in range(0, len(keys), feed.SESSIONS_AT_ONCE):
            page = self._page(_INDEX, keys[start : start + feed.SESSIONS_AT_ONCE])
            if page is not None:
                yield feed.LineRun(
                    _ESCAPED.sub(_unescaped, page.data) if _SPECIAL in page.data else page.data, page.last
                )

    def _page(self, sql: str, *values: Any) -> feed.LineRun | None:
        data, last = self._one(sql, *values)
        return None if last is None else feed.LineRun(data.encode(), last)

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        (row,) = self._rows(sql, *values)
        return row

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with _limited(self._db, self._limit):
            cursor = self._db.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


def _looked_up(address: Address) -> tuple[list[Server], list[LostError]]:
    """Return the servers with the addresses of their names, and the errors of those that have none."""
    servers, problems = list[Server](), list[LostError]()
    for each in address.servers:
        try:
            every = socket.getaddrinfo(each.host, each.port, type=socket.SOCK_STREAM) if each.is_name else None
            servers += [each] if every is None else addresses(each, every)
        except (OSError, UnicodeError) as exc:
            problems.append(unknown(each, exc))
    return servers, problems


def _begin(db: "psycopg.Connection[Any]", config: PostgresConfig, attempt: Attempt) -> None:
    """Give a session its settings. Raises ReadOnlyServerError, LostError and psycopg.Error."""
    cursor = db.execute(session.script(config, lock_timeout=0, idle_in_transaction_session_timeout=IDLE).encode())
    while cursor.nextset():
        pass
    (state,) = cursor
    problem = session.unwritable(*state) if attempt.writable else None
    if problem is not None:
        raise ReadOnlyServerError(attempt.failed(problem))


@contextlib.contextmanager
def _limited(db: "psycopg.Connection[Any]", seconds: float) -> Iterator[None]:
    """Hang up if the block takes longer: a server that is frozen would keep the thread, and the end of the process."""
    watch = threading.Timer(seconds, _hang_up, [db])
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _hang_up(db: "psycopg.Connection[Any]") -> None:
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(db.fileno())) as shared:
        shared.shutdown(socket.SHUT_RDWR)


def _readable(data: bytes) -> bytes:
    """Return lines with a marker in the place of each event that is no JSON."""
    if _is_json(data):
        return data
    return b"".join(line + b"\n" if _is_json(line) else feed.marked(line) + b"\n" for line in data.splitlines())


def _is_json(lines: bytes) -> bool:
    try:
        _LINES.decode_lines(lines)
    except msgspec.DecodeError:
        return False
    return True


def _unescaped(found: "re.Match[bytes]") -> bytes:
    return json.dumps(unescaped(json.loads(found[1])), ensure_ascii=False).encode()


def _changed(row: tuple[Any, ...]) -> feed.Changed:
    number, key, state, events_after, files, *columns = row
    place, session_id = Change(number, key), unescaped(columns[0])
    return feed.Changed(place, state == DELETED, events_after, files, session_id, tuple(columns), record_of)
