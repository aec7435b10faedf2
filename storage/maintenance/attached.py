"""Checks of the files of messages in a store in files, and their repairs."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import apsw

from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.attachments import Attachment
from warren.conversation.messages import files_of
from warren.reports.reports import Finding
from warren.storage.maintenance.checks import CUT_OFF, DIFFERENT, EMPTY, LOST, UNUSED
from warren.storage.maintenance.damage import keep
from warren.storage.rows import DELETED, shown
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder

REFERENCE: Final = '"sha256":"'
"""The letters that a message with a file has."""
_PIECE: Final = 1 << 20
_MESSAGES: Final = f"""
    SELECT m.session, {raw("session_id")}, {raw("m.body")} FROM messages m JOIN sessions ON sessions.key = m.session
    WHERE state <> {DELETED} AND instr(m.body, '{REFERENCE}')
"""
_HAS: Final = """
    SELECT 1 FROM attachments a JOIN blobs b ON b.key = a.blob JOIN sessions s ON s.key = a.session
    WHERE a.session = ? AND b.tenant = s.tenant AND b.sha256 = ?
"""
_WITH_FILE: Final = f"SELECT {raw('session_id')} FROM attachments JOIN sessions ON key = session WHERE blob = ?"
_BYTES: Final = """
    SELECT b.key FROM blobs b JOIN sessions s ON s.tenant = b.tenant WHERE s.key = ? AND b.sha256 = ?
"""


@frozen
class Lost:
    """A file of a message that the session does not have.

    Attributes:
        session: the key of the session.
        session_id: its id.
        file: the reference in the message.
        blob: the key of its bytes, which are there; None if they are not.
    """

    session: int
    session_id: str
    file: Attachment
    blob: int | None


def examine_files(db: apsw.Connection, *, full: bool) -> Iterator[Finding]:
    """Yield the findings about files; with `full` their bytes are read too. Raises apsw.Error."""
    yield from about_lost(list(lost_files(db)))
    if full:
        rows = (row for key in different(db) for row in db.execute(_WITH_FILE, (key,)))
        yield from DIFFERENT.of_sessions((shown(row[0]) for row in rows), fixable=True)


def about_lost(lost: Sequence[Lost]) -> Iterator[Finding]:
    """Yield the findings about files that sessions do not have: those whose bytes are there, and the others."""
    yield from CUT_OFF.of_sessions(each.session_id for each in lost if each.blob is not None)
    yield from LOST.of_sessions(each.session_id for each in lost if each.blob is None)


def lost_files(db: apsw.Connection) -> Iterator[Lost]:
    """Yield the files of messages that their sessions do not have. Raises apsw.Error."""
    seen = set[tuple[int, str]]()
    for session, session_id, body in db.execute(_MESSAGES):
        try:
            files = files_of(codec.decode_message(body))
        except Exception:  # noqa: BLE001, S112 - such a row has a finding of its own
            continue
        for file in files:
            place = (session, file.sha256 or "")
            if file.sha256 is not None and place not in seen and db.execute(_HAS, place).get is None:
                yield Lost(session, shown(session_id), file, db.execute(_BYTES, place).get)
            seen.add(place)


def different(db: apsw.Connection) -> Iterator[int]:
    """Yield the keys of bytes that do not have their hash; reads all of them. Raises apsw.Error."""
    rows: list[Any] = db.execute("SELECT key, sha256 FROM blobs WHERE typeof(body) = 'blob'").fetchall()
    for key, hashed in rows:
        if hash_of(db, key) != hashed:
            yield key


def hash_of(db: apsw.Connection, key: int) -> str:
    """Return the hash of some stored bytes, which are read piece by piece. Raises apsw.Error."""
    found = sha256()
    with db.blob_open("main", "blobs", "body", key, False) as blob:
        while piece := blob.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


# -- repairs: each returns how many rows it mended


def drop_empty(db: apsw.Connection, _holder: Holder, folder: Path) -> int:
    """Remove the rows of files without bytes."""
    keep(db, folder, "attachments", EMPTY["sqlite"], "it has no bytes")
    db.execute(f"DELETE FROM attachments WHERE {EMPTY['sqlite']}")
    return db.changes()


def set_different_aside(db: apsw.Connection, _holder: Holder, folder: Path) -> int:
    """Set bytes aside that do not have their hash; the right ones can be attached again."""
    wrong = list(different(db))
    for key in wrong:
        keep(db, folder, "blobs", f"key = {key}", "its bytes do not have its hash")
        db.execute("DELETE FROM attachments WHERE blob = ?", (key,))
        db.execute("DELETE FROM blobs WHERE key = ?", (key,))
    return len(wrong)


def give_back(db: apsw.Connection, _holder: Holder, _folder: Path) -> int:
    """Give sessions the files back that their messages name, and whose bytes are there."""
    add = "INSERT OR IGNORE INTO attachments (session, blob, media_type, name) VALUES (?,?,?,?)"
    found = [each for each in lost_files(db) if each.blob is not None]
    for each in found:
        db.execute(add, (each.session, each.blob, each.file.media_type, each.file.name))
    return len(found)


def drop_unused(db: apsw.Connection, _holder: Holder, _folder: Path) -> int:
    """Remove bytes that no session has."""
    db.execute(f"DELETE FROM blobs WHERE {UNUSED['sqlite']}")
    return db.changes()
