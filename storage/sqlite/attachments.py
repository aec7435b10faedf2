"""The files of messages with SQL: their bytes once for each tenant, and a row for each session that has them."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Any, Final

import apsw

from warren.conversation.attachments import Attachment
from warren.storage.operations import Attach, Sweep
from warren.storage.queries import AttachmentBytes, StoredAttachment, UnsureFiles
from warren.storage.refusals import not_found
from warren.storage.rows import DELETED, text_in
from warren.storage.sqlite.columns import NEXT_CHANGE, raw
from warren.storage.sqlite.lease import END_LEASE, Holder
from warren.storage.sqlite.reading import Reading

_SESSION: Final = f"SELECT key, tenant FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_THERE: Final = "SELECT key FROM blobs WHERE tenant = ? AND sha256 = ?"
_ADD: Final = "INSERT INTO blobs (tenant, sha256, body) VALUES (?,?,?) RETURNING key"
# The process is noted for `sweep`, unless the file is known to be used.
_USE: Final = """
    INSERT INTO attachments (session, blob, media_type, name, holder) VALUES (?,?,?,?,?)
    ON CONFLICT DO UPDATE SET holder = excluded.holder WHERE holder IS NOT NULL
"""
_SHARE: Final = """
    INSERT INTO attachments (session, blob, media_type, name)
    SELECT ?, blob, media_type, name FROM attachments WHERE session = ?
"""
_LEFT: Final = """
    DELETE FROM blobs WHERE key IN (SELECT blob FROM attachments a WHERE session = ?1
        AND NOT EXISTS (SELECT 1 FROM attachments o WHERE o.blob = a.blob AND o.session <> ?1))
"""
_UNUSED: Final = "DELETE FROM blobs WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM attachments WHERE blob = ?1)"
_CHANGED: Final = f"UPDATE sessions SET change = {NEXT_CHANGE} WHERE key = ?"  # the projection has the file, too
MOST_SWEPT: Final = 500
"""Files that are looked at in one transaction: the rest wait for the next start."""
_UNSURE: Final = f"""
    SELECT a.session, a.blob, b.sha256, a.holder, s.holder FROM attachments a
    JOIN blobs b ON b.key = a.blob JOIN sessions s ON s.key = a.session WHERE a.holder IS NOT NULL LIMIT {MOST_SWEPT}
"""
# Retention may have removed the messages that named the file.
_NAMED: Final = """
    SELECT EXISTS (SELECT 1 FROM sessions WHERE key = ?1 AND (messages_from > 0 OR events_after > 0))
        OR EXISTS (SELECT 1 FROM messages WHERE session = ?1 AND instr(body, ?2))
        OR EXISTS (SELECT 1 FROM events WHERE session = ?1 AND instr(body, ?2))
        OR EXISTS (SELECT 1 FROM inbox WHERE session = ?1 AND instr(body, ?2))
        OR EXISTS (SELECT 1 FROM calls WHERE session = ?1 AND instr(body, ?2))
        OR EXISTS (SELECT 1 FROM waits WHERE session = ?1 AND instr(body, ?2))
"""
_OF: Final = """
    FROM attachments a JOIN sessions s ON s.key = a.session JOIN blobs b ON b.key = a.blob
    WHERE s.session_id = ? AND b.tenant = s.tenant AND b.sha256 = ?
"""
_FIND: Final = f"SELECT {raw('a.media_type')}, a.name, length(b.body) {_OF}"
_KEY: Final = f"SELECT b.key {_OF}"


def attach(operation: Attach, db: apsw.Connection, holder: Holder) -> None:
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
        db.execute(_USE, (session, blob, of.media_type, of.name, holder.key))


def sweep(_operation: Sweep, db: apsw.Connection, holder: Holder) -> None:
    """Remove the files that no message names, of processes that are dead."""
    rows: list[Any] = db.execute(_UNSURE).fetchall()
    for session, blob, sha256, *processes in rows:
        if any(_lives(db, holder, key) for key in processes):
            continue
        if db.execute(_NAMED, (session, sha256)).get:
            db.execute("UPDATE attachments SET holder = NULL WHERE session = ? AND blob = ?", (session, blob))
        else:
            db.execute(END_LEASE, (session, holder.key))  # its holder must not store a message that names the file
            db.execute("DELETE FROM attachments WHERE session = ? AND blob = ?", (session, blob))
            db.execute(_UNUSED, (blob,))
            db.execute(_CHANGED, (session,))


def _lives(db: apsw.Connection, holder: Holder, key: int | None) -> bool:
    return key is not None and (key == holder.key or holder.rival(db, key) is not None)


def unsure(at: Reading, _query: UnsureFiles) -> bool:
    """Return whether there are files that `sweep` may remove."""
    return bool(at.db.execute("SELECT EXISTS (SELECT 1 FROM attachments WHERE holder IS NOT NULL)").get)


def share(db: apsw.Connection, original: int, fork: int) -> None:
    """Give a fork the files of its original."""
    db.execute(_SHARE, (fork, original))


def drop(db: apsw.Connection, session: int) -> None:
    """Remove the files of a session that no other session has."""
    db.execute(_LEFT, (session,))
    db.execute("DELETE FROM attachments WHERE session = ?", (session,))


def find(at: Reading, query: StoredAttachment) -> Attachment | None:
    """Return the file of that hash that a session has. Raises ValueError for a damaged row."""
    row = at.db.execute(_FIND, (query.session_id, query.sha256)).fetchone()
    if row is None:
        return None
    media_type, name, size = row
    return Attachment(text_in(media_type, "media_type"), query.sha256, size, name)


def read(at: Reading, query: AttachmentBytes) -> bytes | None:
    """Return some of the bytes of a file; None if the session does not have it."""
    key = at.db.execute(_KEY, (query.session_id, query.sha256)).get
    if key is None:
        return None
    blob = at.db.blob_open("main", "blobs", "body", key, False)
    try:
        blob.seek(min(query.start, blob.length()))
        return blob.read(query.size)
    finally:
        blob.close()
