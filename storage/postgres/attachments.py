"""The files of messages with SQL: their bytes once for each tenant, and a row for each session that has them."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from base64 import b64decode, b64encode
from typing import Final

from warren.conversation.attachments import Attachment
from warren.storage.operations import Attach, Sweep
from warren.storage.postgres.driver import Connection, escaped, unescaped
from warren.storage.postgres.lease import END_LEASE, Holder, rival
from warren.storage.postgres.reading import Reading
from warren.storage.queries import AttachmentBytes, StoredAttachment, UnsureFiles
from warren.storage.refusals import not_found
from warren.storage.rows import DELETED

# The lock keeps the session from being deleted meanwhile; turns of it are stored all the same.
_SESSION: Final = f"""
    SELECT key, tenant FROM warren.sessions WHERE session_id = $1 AND state <> {DELETED} FOR KEY SHARE
"""
# Locked, so that the deletion of the last session that has it does not take it away meanwhile.
_THERE: Final = "SELECT key FROM warren.blobs WHERE tenant = $1 AND sha256 = $2 FOR UPDATE"
_ADD: Final = """
    INSERT INTO warren.blobs (tenant, sha256, body) VALUES ($1, $2, decode($3, 'base64'))
    ON CONFLICT (tenant, sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING key
"""
# The process is noted for `sweep`, unless the file is known to be used.
_USE: Final = """
    INSERT INTO warren.attachments AS a (session, blob, media_type, name, holder)
    VALUES ($1::int8, $2::int8, $3, $4, $5::int)
    ON CONFLICT (session, blob) DO UPDATE SET holder = excluded.holder WHERE a.holder IS NOT NULL
"""
_SHARE: Final = """
    INSERT INTO warren.attachments (session, blob, media_type, name)
    SELECT $1::int8, blob, media_type, name FROM warren.attachments WHERE session = $2::int8
"""
# In their order, so that two deletions do not wait for each other.
_LOCK: Final = """
    SELECT FROM warren.blobs WHERE key IN (SELECT blob FROM warren.attachments WHERE session = $1::int8)
    ORDER BY key FOR UPDATE
"""
_LEFT: Final = """
    DELETE FROM warren.blobs WHERE key IN (SELECT blob FROM warren.attachments a WHERE session = $1::int8
        AND NOT EXISTS (SELECT FROM warren.attachments o WHERE o.blob = a.blob AND o.session <> $1::int8))
"""
_DROP: Final = "DELETE FROM warren.attachments WHERE session = $1::int8"
_CHANGED: Final = "UPDATE warren.sessions SET state = state WHERE key = $1::int8"  # the projection has the file, too
MOST_SWEPT: Final = 500
"""Files that are looked at in one transaction: the rest wait for the next start."""
# The locks of the files are those of `_THERE`: a process that attaches such a file at this moment keeps it. Those of
# sessions keep a process that wakes up from storing a message that names the file, and others from taking the session.
_UNSURE: Final = f"""
    SELECT a.session, a.blob, b.sha256, a.holder FROM warren.attachments a
    JOIN warren.blobs b ON b.key = a.blob JOIN warren.sessions s ON s.key = a.session
    WHERE a.holder IS NOT NULL AND a.holder <> $1::int AND s.holder IS DISTINCT FROM $1::int
        AND {rival("a.holder", "$1::int")} IS NULL AND {rival("s.holder", "$1::int")} IS NULL
    ORDER BY b.key LIMIT {MOST_SWEPT} FOR UPDATE OF b, s SKIP LOCKED
"""
# Retention may have removed the messages that named the file.
_NAMED: Final = """
    SELECT EXISTS (SELECT FROM warren.sessions WHERE key = $1::int8 AND (messages_from > 0 OR events_after > 0))
        OR EXISTS (SELECT FROM warren.messages WHERE session = $1::int8 AND strpos(body, $2) > 0)
        OR EXISTS (SELECT FROM warren.events WHERE session = $1::int8 AND strpos(body, $2) > 0)
        OR EXISTS (SELECT FROM warren.inbox WHERE session = $1::int8 AND strpos(body, $2) > 0)
        OR EXISTS (SELECT FROM warren.calls WHERE session = $1::int8 AND strpos(body, $2) > 0)
        OR EXISTS (SELECT FROM warren.waits WHERE session = $1::int8 AND strpos(body, $2) > 0)
"""
_OF_HOLDER: Final = "WHERE session = $1::int8 AND blob = $2::int8 AND holder = $3::int"
_SETTLE: Final = f"UPDATE warren.attachments SET holder = NULL {_OF_HOLDER}"
_REMOVE: Final = f"DELETE FROM warren.attachments {_OF_HOLDER}"
_UNUSED: Final = """
    DELETE FROM warren.blobs WHERE key = $1::int8
        AND NOT EXISTS (SELECT FROM warren.attachments WHERE blob = $1::int8)
"""
_OF: Final = """
    FROM warren.attachments a JOIN warren.sessions s ON s.key = a.session JOIN warren.blobs b ON b.key = a.blob
    WHERE s.session_id = $1 AND ($2::text IS NULL OR s.tenant = $2) AND b.tenant = s.tenant AND b.sha256 = $3
"""
_FIND: Final = f"SELECT a.media_type, a.name, octet_length(b.body) {_OF}"
_READ: Final = f"SELECT encode(substring(b.body FROM $4::int FOR $5::int), 'base64') {_OF}"


async def attach(operation: Attach, db: Connection, holder: Holder) -> None:
    """Store the bytes that are not here yet, and note that the session has them."""
    rows = await db.fetch(_SESSION, escaped(operation.session_id))
    if not rows:
        raise not_found(operation.session_id)
    ((session, tenant),) = rows
    for each in sorted(operation.blobs, key=lambda blob: str(blob.attachment.sha256)):
        of = each.attachment
        found = await db.fetch(_THERE, tenant, of.sha256)
        if not found:
            found = await db.fetch(_ADD, tenant, of.sha256, b64encode(each.data).decode())
        name = None if of.name is None else escaped(of.name)
        await db.fetch(_USE, session, found[0][0], of.media_type, name, holder.key)


async def sweep(_operation: Sweep, db: Connection, holder: Holder) -> None:
    """Remove the files that no message names, of processes that are dead."""
    for session, blob, sha256, owner in await db.fetch(_UNSURE, holder.key):
        if await db.value(_NAMED, session, sha256):
            await db.fetch(_SETTLE, session, blob, owner)
        else:
            await db.fetch(END_LEASE, session, holder.key)  # its holder must not store a message that names the file
            await db.fetch(_REMOVE, session, blob, owner)
            await db.fetch(_UNUSED, blob)
            await db.fetch(_CHANGED, session)


async def unsure(at: Reading, _query: UnsureFiles) -> bool:
    """Return whether there are files that `sweep` may remove."""
    return bool(await at.db.value("SELECT EXISTS (SELECT FROM warren.attachments WHERE holder IS NOT NULL)"))


async def share(db: Connection, original: int, fork: int) -> None:
    """Give a fork the files of its original."""
    await db.fetch(_SHARE, fork, original)


async def drop(db: Connection, session: int) -> None:
    """Remove the files of a session that no other session has."""
    await db.fetch(_LOCK, session)
    await db.fetch(_LEFT, session)
    await db.fetch(_DROP, session)


async def find(at: Reading, query: StoredAttachment) -> Attachment | None:
    """Return the file of that hash that a session has."""
    rows = await at.db.fetch(_FIND, escaped(query.session_id), query.tenant, query.sha256)
    if not rows:
        return None
    ((media_type, name, size),) = rows
    return Attachment(media_type, query.sha256, size, None if name is None else unescaped(name))


async def read(at: Reading, query: AttachmentBytes) -> bytes | None:
    """Return some of the bytes of a file; None if the session does not have it."""
    part = query.start + 1, query.size
    found = await at.db.value(_READ, escaped(query.session_id), query.tenant, query.sha256, *part)
    return None if found is None else b64decode(found)
