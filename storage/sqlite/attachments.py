"""The files of messages with SQL: their bytes once for each tenant, and a row for each session that has them."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

import apsw

from warren.attachments import Attachment
from warren.storage.operations import Attach
from warren.storage.refusals import not_found
from warren.storage.rows import DELETED, text_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder

_SESSION: Final = f"SELECT key, tenant FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_THERE: Final = "SELECT key FROM blobs WHERE tenant = ? AND sha256 = ?"
_ADD: Final = "INSERT INTO blobs (tenant, sha256, body) VALUES (?,?,?) RETURNING key"
_USE: Final = "INSERT OR IGNORE INTO attachments (session, blob, media_type, name) VALUES (?,?,?,?)"
_SHARE: Final = """
    INSERT INTO attachments (session, blob, media_type, name)
    SELECT ?, blob, media_type, name FROM attachments WHERE session = ?
"""
_LEFT: Final = """
    DELETE FROM blobs WHERE key IN (SELECT blob FROM attachments a WHERE session = ?1
        AND NOT EXISTS (SELECT 1 FROM attachments o WHERE o.blob = a.blob AND o.session <> ?1))
"""
_OF: Final = """
    FROM attachments a JOIN sessions s ON s.key = a.session JOIN blobs b ON b.key = a.blob
    WHERE s.session_id = ? AND b.tenant = s.tenant AND b.sha256 = ?
"""
_FIND: Final = f"SELECT {raw('a.media_type')}, a.name, length(b.body) {_OF}"
_KEY: Final = f"SELECT b.key {_OF}"


def attach(operation: Attach, db: apsw.Connection, _holder: Holder) -> None:
    """Store the bytes that are not here yet, and note that the session has them."""
    found = db.execute(_SESSION, (operation.session_id,)).get
    if found is None:
        raise not_found(operation.session_id)
    session, tenant = found
    for each in operation.blobs:
        of = each.attachment
        blob = db.execute(_THERE, (tenant, of.sha256)).get
        if blob is None:
            blob = db.execute(_ADD, (tenant, of.sha256, each.data)).get
        db.execute(_USE, (session, blob, of.media_type, of.name))


def share(db: apsw.Connection, original: int, fork: int) -> None:
    """Give a fork the files of its original."""
    db.execute(_SHARE, (fork, original))


def drop(db: apsw.Connection, session: int) -> None:
    """Remove the files of a session that no other session has."""
    db.execute(_LEFT, (session,))
    db.execute("DELETE FROM attachments WHERE session = ?", (session,))


def find(db: apsw.Connection, session_id: str, sha256: str) -> Attachment | None:
    """Return the file of that hash that a session has. Raises ValueError for a damaged row."""
    row = db.execute(_FIND, (session_id, sha256)).fetchone()
    if row is None:
        return None
    media_type, name, size = row
    return Attachment(text_in(media_type, "media_type"), sha256, size, name)


def read(db: apsw.Connection, session_id: str, sha256: str, start: int, size: int) -> bytes | None:
    """Return some of the bytes of a file; None if the session does not have it."""
    key = db.execute(_KEY, (session_id, sha256)).get
    if key is None:
        return None
    blob = db.blob_open("main", "blobs", "body", key, False)
    try:
        blob.seek(min(start, blob.length()))
        return blob.read(size)
    finally:
        blob.close()
