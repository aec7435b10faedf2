"""Reads of the store for a projection: the changed sessions, and the lines of its files, put together by SQLite.

Lines are made in C and leave by the page, so that the interpreter has next to nothing to do for each of them.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import apsw

from warren.config import StoreConfig
from warren.records import SessionRecord
from warren.storage.projection.formats import Witness
from warren.storage.rows import ARCHIVED, COLUMNS, DELETED, row_to_record
from warren.storage.sqlite.database import snapshot
from warren.storage.sqlite.file import open_reader
from warren.values import frozen

EVENTS_AT_ONCE: Final = 500
SESSIONS_AT_ONCE: Final = 2_000
_CHANGES: Final = f"""
    SELECT key, change, state, events_after, {COLUMNS} FROM sessions WHERE typeof(change) = 'integer' AND change > ?
    ORDER BY change LIMIT ?
"""
_CHANGED: Final = f"SELECT key, change, state, events_after, {COLUMNS} FROM sessions WHERE session_id = ?"
_COUNT: Final = "SELECT count(*) FROM sessions WHERE typeof(change) = 'integer' AND change > ?"
_NEWEST: Final = "SELECT coalesce(max(change), 0) FROM sessions WHERE typeof(change) = 'integer'"
_FIRST: Final = "SELECT session_id FROM sessions ORDER BY key LIMIT 1"
_WITNESSES: Final = "SELECT session_id, change, updated_at FROM sessions WHERE change <= ? ORDER BY change DESC LIMIT ?"
_WITNESS: Final = "SELECT change, updated_at FROM sessions WHERE session_id = ?"
_SUMMARY: Final = "SELECT CAST(summary AS BLOB) FROM compactions WHERE session = ? ORDER BY rowid DESC LIMIT 1"


def _time(column: str) -> str:
    """Return SQL for a time as the codec writes it."""
    fraction = f"iif({column} % 1000000, '.' || substr(1000000 + {column} % 1000000, 2), '')"
    return f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || {fraction} || 'Z'"


_NO_TIME: Final = "1970-01-01T00:00:00Z"
"""The time of an event with a damaged time."""
_DAMAGED: Final = """
    '{"type":"stream_truncated","dropped":' || (seq - first_seq + 1)
        || ',"resume_after":' || seq || ',"cause":"damaged"}'
"""
"""SQL for the event that stands for one that cannot be read, as in a replay."""
_LINE: Final = re.compile(rb'^(.*?"seq":(\d+),.*?"event":).*?(?:"first_seq":(\d+))?\}$', re.DOTALL)
_EVENTS: Final = f"""
    SELECT CAST(group_concat(line, '' ORDER BY seq) AS BLOB), max(seq) FROM (
        SELECT seq, '{{"session_id":"' || ?1 || '","seq":' || seq
            || ',"timestamp":"' || coalesce({_time("timestamp")}, '{_NO_TIME}') || '","event":'
            || iif(typeof(body) = 'text' AND json_valid(body), body, {_DAMAGED})
            || iif(first_seq < seq, ',"first_seq":' || first_seq, '') || '}}' || char(10) AS line
        FROM events WHERE session = ?2 AND seq >= ?3 ORDER BY seq LIMIT ?4
    )
"""
_INDEX: Final = f"""
    SELECT CAST(group_concat(line, '' ORDER BY key) AS BLOB), max(key) FROM (
        SELECT key, json_object(
            'id', session_id, 'title', title,
            'created_at', {_time("created_at")}, 'updated_at', {_time("updated_at")}, 'turns', turns,
            'message_count', message_count, 'archived', json(iif(state = {ARCHIVED}, 'true', 'false')), 'model', model,
            'labels', json(iif(json_valid(labels), labels, '{{}}'))
        ) || char(10) AS line
        FROM sessions WHERE key > ? AND state <> {DELETED} ORDER BY key LIMIT ?
    )
"""


@frozen
class Changed:
    """A session's row.

    Attributes:
        key: its number in the store.
        change: the number of its newest change.
        deleted: whether only its tombstone is left.
        events_after: events up to this number are gone from the store.
        session_id: its id, as it stands there.
    """

    key: int
    change: int
    deleted: bool
    events_after: int
    session_id: str
    _columns: tuple[Any, ...]

    def record(self) -> SessionRecord:
        """Return its record. Raises StoreError(cause="corrupt") for a damaged row."""
        return row_to_record(self._columns)


@frozen
class LineRun:
    """Whole lines of a file.

    Attributes:
        data: the lines.
        last: the number of the row that the last one is of.
    """

    data: bytes
    last: int


class Feed:
    """The store, read through a connection of its own. Every method raises apsw.Error if the file cannot be read."""

    def __init__(self, config: StoreConfig) -> None:
        """Open the store that is there. Raises apsw.Error."""
        self._db = open_reader(config)

    def close(self) -> None:
        """Close the connection. Raises nothing."""
        with contextlib.suppress(apsw.Error):
            self._db.close()

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Show one state of the store to all reads of a block. Trap: the store's log cannot be reset meanwhile."""
        return snapshot(self._db)

    def newest(self) -> int:
        """Return the number of the newest change, 0 before the first."""
        return int(self._db.execute(_NEWEST).get)

    def count(self, after: int) -> int:
        """Return how many sessions were changed after a number."""
        return int(self._db.execute(_COUNT, (after,)).get)

    def first_session(self) -> str | None:
        """Return the id of the first session that the store ever had."""
        found: str | None = self._db.execute(_FIRST).get
        return found

    def changes(self, after: int, limit: int) -> list[Changed]:
        """Return the sessions changed after a number, in the order of their newest changes."""
        return [_changed(row) for row in self._db.execute(_CHANGES, (after, limit))]

    def changed(self, session_id: str) -> Changed | None:
        """Return one session's row."""
        row = self._db.execute(_CHANGED, (session_id,)).fetchone()
        return None if row is None else _changed(row)

    def witnesses(self, up_to: int, count: int) -> tuple[Witness, ...]:
        """Return the sessions changed last, up to a number."""
        return tuple(Witness(*row) for row in self._db.execute(_WITNESSES, (up_to, count)))

    def confirms(self, witness: Witness, up_to: int) -> bool:
        """Tell whether a session is as it was when it was one of those that were changed last, up to a number.

        If it was changed since, its number is above that one.
        """
        row: Any = self._db.execute(_WITNESS, (witness.session_id,)).fetchone()
        return row is not None and (row[0] > up_to or row == (witness.change, witness.updated_at))

    def events(self, session: Changed, first: int) -> Iterator[LineRun]:
        """Yield the lines of a session's events from the number `first` on, page by page."""
        limit = EVENTS_AT_ONCE
        while True:
            try:
                page = self._page(_EVENTS, (session.session_id, session.key, first, limit))
            except (apsw.TooBigError, apsw.NoMemError, MemoryError):  # events of many megabytes: fewer at once
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            if page is None:
                return
            yield LineRun(_readable(page.data), page.last)
            first = page.last + 1

    def summary(self, session: Changed) -> bytes | None:
        """Return the summary of a session's newest compaction."""
        found: bytes | None = self._db.execute(_SUMMARY, (session.key,)).get
        return found

    def index(self) -> Iterator[LineRun]:
        """Yield the lines of the index, page by page."""
        last = -1
        while (page := self._page(_INDEX, (last, SESSIONS_AT_ONCE))) is not None:
            yield page
            last = page.last

    def _page(self, sql: str, values: tuple[Any, ...]) -> LineRun | None:
        data, last = self._db.execute(sql, values).get
        return None if last is None else LineRun(data, last)


def _readable(data: bytes) -> bytes:
    """Return lines with a marker in the place of each event that is no UTF-8, which SQLite passes on as it is."""
    if _is_text(data):
        return data
    return b"\n".join(line if _is_text(line) else _marker(line) for line in data.split(b"\n"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _marker(line: bytes) -> bytes:
    found = _LINE.match(line)
    if found is None:
        return line.decode(errors="replace").encode()
    head, seq, first = found[1], int(found[2]), int(found[3] or found[2])
    event = b'{"type":"stream_truncated","dropped":%d,"resume_after":%d,"cause":"damaged"}' % (seq - first + 1, seq)
    return head + event + (b',"first_seq":%d}' % first if first < seq else b"}")


def _changed(row: tuple[Any, ...]) -> Changed:
    key, change, state, events_after, *columns = row
    return Changed(key, change, state == DELETED, events_after, columns[0], tuple(columns))
