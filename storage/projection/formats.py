"""The contents of a projection's files, as values and bytes. No I/O."""

import re
from typing import Final, NamedTuple

from warren.base.principals import TENANT
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.attachments import SHA256
from warren.conversation.records import SessionRecord
from warren.conversation.views import view_of

FORMAT: Final = 3
"""Of the files; those of another one are made anew."""
SESSION: Final = "session.json"
EVENTS: Final = "events.jsonl"
SUMMARY: Final = "summary.txt"
FILES: Final = "files"
"""The folder with the files of a session's messages."""
INDEX: Final = "index.jsonl"
CHECKPOINT: Final = ".checkpoint.json"
"""Is beside the folders of the default tenant's sessions."""
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_CAPITAL: Final = re.compile("[A-Z]")
_ENCODED: Final = re.compile("%([0-9a-f]{2})")


def is_session_id(text: str) -> bool:
    """Tell whether this is an id as `warren.base.ids` mints them: only such a one becomes the name of a folder."""
    return _ID.fullmatch(text) is not None


def folder_of_tenant(tenant: str) -> str | None:
    """Return the name of a tenant's folder; None if this is no name of a tenant.

    A capital is percent-encoded, so that names that differ only in case have two folders on every file system.
    """
    if TENANT.fullmatch(tenant) is None:
        return None
    return _CAPITAL.sub(lambda found: f"%{ord(found[0]):02x}", tenant)


def tenant_of_folder(name: str) -> str | None:
    """Return the tenant that a folder is of; None if the name is that of no tenant's folder."""
    tenant = _ENCODED.sub(lambda found: chr(int(found[1], 16)), name)
    return tenant if folder_of_tenant(tenant) == name else None


_ENDINGS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
    "audio/wav": ".wav",
    "audio/mpeg": ".mp3",
}


def name_of_file(sha256: str, media_type: str) -> str | None:
    """Return the name of the file of a message, by its hash and its type; None if the hash is none."""
    return f"{sha256}{_ENDINGS.get(media_type, '.txt')}" if SHA256.fullmatch(sha256) else None


class Change(NamedTuple):
    """The newest change of a session, in the order in which followers see them.

    Attributes:
        number: the number of the change in a store in files, of the transaction in a database: there the sessions of
            one transaction share it.
        key: the session's number in the store.
    """

    number: int
    key: int

    @property
    def before(self) -> "Change":
        """The last place before it."""
        return Change(self.number, self.key - 1)


START: Final = Change(0, 0)
"""The place before all changes."""


@frozen
class Mark:
    """How far a session's files are; written last, in session.json, so that it vouches for the others.

    Attributes:
        format: how the files are written.
        change: the number of the session's change that they show.
        last_seq: the last event in events.jsonl, 0 if there is none.
        events_bytes: the length of events.jsonl; bytes behind it belong to a line that was never finished.
        events_after: events up to this number were gone from the store when the file was begun.
        compactions: how many the session had; summary.txt is the newest one's.
    """

    format: int
    change: int
    last_seq: int
    events_bytes: int
    events_after: int
    compactions: int


@frozen
class _SessionFile:
    projection: Mark


def session_json(record: SessionRecord, mark: Mark) -> bytes:
    """Return session.json: the view of a session that is not live, and the progress of its files."""
    view = codec.to_data(view_of(record, live=False, active=False))
    return codec.encode({**view, "projection": codec.to_data(mark)}) + b"\n"


def mark_of(raw: bytes) -> Mark | None:
    """Return the mark in a session.json; None if it is damaged or of another format."""
    try:
        file: _SessionFile = codec.decode_stored(_SessionFile, raw)
    except ValueError:
        return None
    mark = file.projection
    whole = min(mark.change, mark.last_seq, mark.events_bytes, mark.events_after) >= 0
    return mark if whole and mark.format == FORMAT else None


@frozen
class Witness:
    """A session as it was when the checkpoint was written; times in microseconds since 1970 UTC."""

    session_id: str
    change: int
    updated_at: int


@frozen
class Checkpoint:
    """How far the files surely are: all that they show up to `change` is on the disk itself.

    Attributes:
        format: how the files are written.
        store: what tells the store from others, such as its first session; None if there was no session yet.
        change: the number of the last change that they show.
        indexed: the number of the last change that index.jsonl shows.
        index_seconds: how long writing index.jsonl took.
        newest: the sessions that were changed last. A store in which they are older, or others, is not the same one:
            it was replaced by a copy.
        key: the session of that last change.
        indexed_key: the same for index.jsonl.
        tenants: whether there were files of other tenants than the default one.
    """

    format: int
    store: str | None
    change: int
    indexed: int
    index_seconds: float
    newest: tuple[Witness, ...]
    key: int = 0
    indexed_key: int = 0
    tenants: bool = False

    @property
    def shown(self) -> Change:
        """The last change that the files show."""
        return Change(self.change, self.key)

    def encode(self) -> bytes:
        """Return checkpoint.json."""
        return codec.encode(self) + b"\n"


def checkpoint_of(raw: bytes) -> Checkpoint | None:
    """Return the checkpoint in checkpoint.json; None if it is damaged or of another format."""
    try:
        found: Checkpoint = codec.decode_stored(Checkpoint, raw)
    except ValueError:
        return None
    return found if found.format == FORMAT and found.change >= 0 else None
