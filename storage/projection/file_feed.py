"""Reads of a store in files for a projection: the lines of its files are put together by SQLite.

Lines are made in C and leave by the page, so that the interpreter has next to nothing to do for each of them.
"""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from warren.settings.config import StoreConfig
from warren.storage.projection import feed
from warren.storage.projection.formats import START, Change, Witness
from warren.storage.rows import ARCHIVED, COLUMNS, DELETED, row_to_record
from warren.storage.sqlite.database import snapshot
from warren.storage.sqlite.file import SESSION_STORE, alone, open_reader
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.replacement import BYSTANDERS

_ROW: Final = f"""
    key, change, state, events_after, (SELECT count(*) FROM attachments WHERE session = key), {COLUMNS}
"""
_CHANGES: Final = f"""
    SELECT {_ROW} FROM sessions
    WHERE typeof(change) = 'integer' AND (change, key) > (?, ?) ORDER BY change LIMIT ?
"""
_CHANGED: Final = f"SELECT {_ROW} FROM sessions WHERE session_id = ?"
_COUNT: Final = "SELECT count(*) FROM sessions WHERE typeof(change) = 'integer' AND change > 0"
_WAITS: Final = "SELECT EXISTS (SELECT 1 FROM sessions WHERE change = ? AND key > ?)"
_NEWEST: Final = "SELECT change, key FROM sessions WHERE typeof(change) = 'integer' ORDER BY change DESC LIMIT 1"
_FIRST: Final = "SELECT session_id FROM sessions ORDER BY key LIMIT 1"
_WITNESSES: Final = "SELECT session_id, change, updated_at FROM sessions WHERE change <= ? ORDER BY change DESC LIMIT ?"
_WITNESS: Final = "SELECT change, updated_at FROM sessions WHERE session_id = ?"
_SUMMARY: Final = "SELECT CAST(summary AS BLOB) FROM compactions WHERE session = ? ORDER BY rowid DESC LIMIT 1"
_FILES: Final = """
    SELECT b.key, CAST(b.sha256 AS BLOB), CAST(media_type AS BLOB), length(b.body)
    FROM attachments JOIN blobs b ON b.key = blob WHERE session = ? AND typeof(b.body) = 'blob' ORDER BY b.key
"""


def _time(column: str) -> str:
    """Return SQL for a time as the codec writes it."""
    fraction = f"iif({column} % 1000000, '.' || substr(1000000 + {column} % 1000000, 2), '')"
    return f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || {fraction} || 'Z'"


_EVENTS: Final = f"""
    SELECT CAST(group_concat(line, '' ORDER BY seq) AS BLOB), max(seq) FROM (
        SELECT seq, '{{"session_id":"' || ?1 || '","seq":' || seq
            || ',"timestamp":"' || coalesce({_time("timestamp")}, '{feed.NO_TIME}') || '","event":'
            || iif(typeof(body) = 'text' AND json_valid(body), body, {feed.DAMAGED})
            || iif(first_seq < seq, ',"first_seq":' || first_seq, '') || '}}' || char(10) AS line
        FROM events WHERE session = ?2 AND seq >= ?3 ORDER BY seq LIMIT ?4
    )
"""
_TENANTS: Final = "SELECT DISTINCT CAST(tenant AS BLOB) FROM sessions WHERE (change, key) > (?, ?)"
_OF_TENANT: Final = f"SELECT key FROM sessions WHERE tenant = ? AND state <> {DELETED} ORDER BY key"
_INDEX: Final = f"""
    SELECT CAST(group_concat(line, '' ORDER BY key) AS BLOB), max(key) FROM (
        SELECT key, json_object(
            'id', session_id, 'title', title,
            'created_at', {_time("created_at")}, 'updated_at', {_time("updated_at")}, 'turns', turns,
            'message_count', message_count, 'archived', json(iif(state = {ARCHIVED}, 'true', 'false')), 'model', model,
            'labels', json(iif(json_valid(labels), labels, '{{}}'))
        ) || char(10) AS line
        FROM sessions WHERE key IN (SELECT value FROM json_each(?)) AND state <> {DELETED}
    )
"""


def home(config: StoreConfig) -> feed.Home:
    """Return the home of a store in files."""
    return feed.Home(Holder.of(config).name, (apsw.Error,), partial(FileFeed, config), SESSION_STORE.fault)


class FileFeed:
    """A store in files; see Feed."""

    def __init__(self, config: StoreConfig) -> None:
        """Open the store that is there. Raises apsw.Error, and StoreError while this process opens it anew."""
        self._folder: Path | None = config.path
        BYSTANDERS.enter(config.path)
        with contextlib.ExitStack() as undo:
            undo.callback(BYSTANDERS.leave, config.path)
            with alone(config.path):
                self._db = open_reader(config)
                undo.callback(self._db.close)
                self._db.pragma("user_version")  # the first read: it opens the log
            undo.pop_all()

    def close(self) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(apsw.Error):
            self._db.close()
        BYSTANDERS.leave(self._folder)
        self._folder = None

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Hold a read transaction for the block; SQLite cannot reset the store's log meanwhile."""
        return snapshot(self._db)

    def newest(self) -> Change:
        """Return the change with the highest number: changes are numbered in the order of their commits."""
        row = self._db.execute(_NEWEST).fetchone()
        return START if row is None else Change(*row)

    def behind(self, after: Change) -> int:
        waits: int = self._db.execute(_WAITS, after).get
        return max(0, self.newest().number - after.number) + waits

    def count(self) -> int:
        return int(self._db.execute(_COUNT).get)

    def identity(self) -> str | None:
        """Return the id of the first session that the store ever had."""
        found: str | None = self._db.execute(_FIRST).get
        return found

    def changes(self, after: Change, limit: int) -> list[feed.Changed]:
        return [_changed(row) for row in self._db.execute(_CHANGES, (*after, limit))]

    def changed(self, session_id: str) -> feed.Changed | None:
        row = self._db.execute(_CHANGED, (session_id,)).fetchone()
        return None if row is None else _changed(row)

    def witnesses(self, up_to: Change, count: int) -> tuple[Witness, ...]:
        return tuple(Witness(*row) for row in self._db.execute(_WITNESSES, (up_to.number, count)))

    def confirms(self, witness: Witness, up_to: Change) -> bool:
        row: Any = self._db.execute(_WITNESS, (witness.session_id,)).fetchone()
        return row is not None and (row[0] > up_to.number or row == (witness.change, witness.updated_at))

    def events(self, session: feed.Changed, first: int) -> Iterator[feed.LineRun]:
        limit = feed.EVENTS_AT_ONCE
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
            yield feed.LineRun(_readable(page.data), page.last)
            first = page.last + 1

    def summary(self, session: feed.Changed) -> bytes | None:
        found: bytes | None = self._db.execute(_SUMMARY, (session.key,)).get
        return found

    def files(self, session: feed.Changed) -> list[feed.StoredFile]:
        rows: list[Any] = self._db.execute(_FILES, (session.key,)).fetchall()
        return [feed.StoredFile(key, _text(hashed), _text(kind), size) for key, hashed, kind, size in rows]

    def content(self, file: feed.StoredFile) -> Iterator[bytes]:
        with self._db.blob_open("main", "blobs", "body", file.key, False) as blob:
            while piece := blob.read(feed.FILE_PIECE):
                yield piece

    def tenants(self, after: Change) -> list[str]:
        return [tenant.decode(errors="replace") for (tenant,) in self._db.execute(_TENANTS, after)]

    def index(self, tenant: str) -> Iterator[feed.LineRun]:
        # Keys from an index of tenants first: a scan in row order would read the rows of all tenants.
        keys = [key for (key,) in self._db.execute(_OF_TENANT, (tenant,))]
        for start in range(0, len(keys), feed.SESSIONS_AT_ONCE):
            page = self._page(_INDEX, (json.dumps(keys[start : start + feed.SESSIONS_AT_ONCE]),))
            if page is not None:
                yield page

    def _page(self, sql: str, values: tuple[Any, ...]) -> feed.LineRun | None:
        data, last = self._db.execute(sql, values).get
        return None if last is None else feed.LineRun(data, last)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _readable(data: bytes) -> bytes:
    """Return lines with a marker in the place of each event that is no UTF-8, which SQLite passes on as it is."""
    if _is_text(data):
        return data
    return b"\n".join(line if _is_text(line) else feed.marked(line) for line in data.split(b"\n"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _changed(row: tuple[Any, ...]) -> feed.Changed:
    key, change, state, events_after, files, *columns = row
    place = Change(change, key)
    return feed.Changed(place, state == DELETED, events_after, files, columns[0], tuple(columns), row_to_record)
