"""Reads of a store for a projection, the same for each home: the changed sessions, and the lines of their files."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from warren.base.errors import WarrenError
from warren.base.values import frozen
from warren.conversation.records import SessionRecord
from warren.storage.projection.formats import Change, Mark, Witness
from warren.storage.rows import COLUMNS

EVENTS_AT_ONCE: Final = 500
FILE_PIECE: Final = 1024 * 1024
"""Bytes of a file that are read at once."""
SESSIONS_AT_ONCE: Final = 2_000
_LINE: Final = re.compile(rb'^(.*?"seq":(\d+),.*?"event":).*?(?:"first_seq":(\d+))?\}$', re.DOTALL)
_TENANT: Final = COLUMNS.split(", ").index("tenant")
NO_TIME: Final = "1970-01-01T00:00:00Z"
"""The time of an event with a damaged time."""
DAMAGED: Final = """
    '{"type":"stream_truncated","dropped":' || (seq - first_seq + 1)
        || ',"resume_after":' || seq || ',"cause":"damaged"}'
"""
"""SQL for the event that stands for one that cannot be read, as in a replay."""


@frozen
class Changed:
    """A session's row.

    Attributes:
        change: its newest change.
        deleted: whether only its tombstone is left.
        events_after: events up to this number are gone from the store.
        files: the number of the files of its messages.
        session_id: its id, as it stands there.
    """

    change: Change
    deleted: bool
    events_after: int
    files: int
    session_id: str
    _columns: tuple[Any, ...]
    _record_of: Callable[[tuple[Any, ...]], SessionRecord]

    @property
    def tenant(self) -> str:
        """The tenant that it belongs to, as it stands there."""
        return str(self._columns[_TENANT])

    @property
    def key(self) -> int:
        """Its number in the store."""
        return self.change.key

    def record(self) -> SessionRecord:
        """Return its record. Raises StoreError(cause="corrupt") for a damaged row."""
        return self._record_of(self._columns)

    def shown_by(self, mark: Mark) -> Change:
        """Return the change of it that its files show."""
        return Change(mark.change, self.key)


@frozen
class StoredFile:
    """A file of a session's messages.

    Attributes:
        key: the number of its bytes in the store.
        sha256: its hash, as it stands there.
        media_type: its type.
        size: bytes.
    """

    key: int
    sha256: str
    media_type: str
    size: int


@frozen
class LineRun:
    """Whole lines of a file.

    Attributes:
        data: the lines.
        last: the number of the row that the last one is of.
    """

    data: bytes
    last: int


class Feed(Protocol):
    """A store, read through a connection of its own. Every method raises the `errors` of its home."""

    def close(self) -> None:
        """Close the connection. Raises nothing."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Show one state of the store to all reads of a block. Trap: keep the block short."""

    def newest(self) -> Change:
        """Return the newest change of which no earlier one can still come; `START` before the first."""

    def behind(self, after: Change) -> int:
        """Return how many changes were committed after one, also of those that `newest` does not reach yet."""

    def count(self) -> int:
        """Return how many sessions there are, tombstones included."""

    def identity(self) -> str | None:
        """Return a text that no other store has; None if this one has none yet."""

    def changes(self, after: Change, limit: int) -> list[Changed]:
        """Return the sessions changed after a change and up to the newest one, in the order of their changes."""

    def changed(self, session_id: str) -> Changed | None:
        """Return one session's row."""

    def witnesses(self, up_to: Change, count: int) -> tuple[Witness, ...]:
        """Return the sessions changed last, up to a change."""

    def confirms(self, witness: Witness, up_to: Change) -> bool:
        """Tell whether a session is as it was when it was one of those that were changed last, up to a change.

        If it was changed since, its change is a later one.
        """

    def events(self, session: Changed, first: int) -> Iterator[LineRun]:
        """Yield the lines of a session's events from the number `first` on, page by page."""

    def summary(self, session: Changed) -> bytes | None:
        """Return the summary of a session's newest compaction."""

    def files(self, session: Changed) -> list[StoredFile]:
        """Return the files of a session's messages."""

    def content(self, file: StoredFile) -> Iterator[bytes]:
        """Yield the bytes of a file, piece by piece."""

    def tenants(self, after: Change) -> list[str]:
        """Return the tenants with a session that was changed after a change, tombstones included."""

    def index(self, tenant: str) -> Iterator[LineRun]:
        """Yield the lines of the index of one tenant, page by page."""


@frozen
class Home:
    """A store that can be followed.

    Attributes:
        holder: the name of this process, for messages in others.
        errors: the exceptions of its database.
        open: opens the store that is there. Raises StoreError and the `errors`.
        fault: returns the error that callers get for one of the `errors`, or for an OSError.
    """

    holder: str
    errors: tuple[type[Exception], ...]
    open: Callable[[], Feed]
    fault: Callable[[Exception], WarrenError]


def marked(line: bytes) -> bytes:
    """Return the line of an event that cannot be read, with a marker in the place of the event."""
    found = _LINE.match(line)
    if found is None:
        return line.decode(errors="replace").encode()
    head, seq, first = found[1], int(found[2]), int(found[3] or found[2])
    event = b'{"type":"stream_truncated","dropped":%d,"resume_after":%d,"cause":"damaged"}' % (seq - first + 1, seq)
    return head + event + (b',"first_seq":%d}' % first if first < seq else b"}")
