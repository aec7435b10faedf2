"""Checks of the files of messages in a store in a database, and their repairs."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import AsyncIterator
from typing import Final

from warren.conversation import codec
from warren.conversation.messages import files_of
from warren.reports.reports import Finding
from warren.storage.maintenance.attached import REFERENCE, Lost, about_lost
from warren.storage.maintenance.checks import DIFFERENT, EMPTY, UNUSED
from warren.storage.postgres.driver import Connection, escaped, unescaped
from warren.storage.rows import DELETED

PAGE: Final = 500
_UNUSED: Final = UNUSED["postgres"]
_EMPTY: Final = EMPTY["postgres"]
# Locked before: a process that attaches one of them at this moment keeps it.
_LOCK_UNUSED: Final = f"BEGIN; SELECT FROM warren.blobs WHERE {_UNUSED} ORDER BY key FOR UPDATE"
_MESSAGES: Final = f"""
    SELECT m.session, m.position, s.session_id, m.body FROM warren.messages m
    JOIN warren.sessions s ON s.key = m.session
    WHERE (m.session, m.position) > ($1::int8, $2::int8) AND strpos(m.body, '{REFERENCE}') > 0 AND state <> {DELETED}
    ORDER BY m.session, m.position LIMIT {PAGE}
"""
_HAS: Final = """
    SELECT b.key, EXISTS (SELECT FROM warren.attachments a WHERE a.session = s.key AND a.blob = b.key)
    FROM warren.blobs b JOIN warren.sessions s ON s.tenant = b.tenant WHERE s.key = $1::int8 AND b.sha256 = $2
"""
_GIVE_BACK: Final = """
    INSERT INTO warren.attachments (session, blob, media_type, name)
    SELECT $1::int8, key, $3, $4 FROM warren.blobs WHERE key = $2::int8 FOR UPDATE ON CONFLICT DO NOTHING
"""
_DIFFERENT: Final = """
    SELECT DISTINCT s.session_id FROM warren.blobs b JOIN warren.attachments a ON a.blob = b.key
    JOIN warren.sessions s ON s.key = a.session WHERE encode(sha256(b.body), 'hex') <> b.sha256 ORDER BY 1
"""


async def examine_files(db: Connection, *, full: bool) -> AsyncIterator[Finding]:
    """Yield the findings about files; with `full` the server compares their bytes. Raises as `fetch`."""
    for finding in about_lost([each async for each in _lost_files(db)]):
        yield finding
    if full:
        for finding in DIFFERENT.of_sessions([unescaped(name) for (name,) in await db.fetch(_DIFFERENT)]):
            yield finding


async def _lost_files(db: Connection) -> AsyncIterator[Lost]:
    after, seen = (-1, -1), set[tuple[int, str]]()
    while rows := await db.fetch(_MESSAGES, *after):
        for session, _, session_id, body in rows:
            try:
                files = files_of(codec.decode_message(unescaped(body)))
            except ValueError:  # a full examination tells of such a row
                continue
            for file in files:
                place = (session, file.sha256 or "")
                if file.sha256 is None or place in seen:
                    continue
                seen.add(place)
                found = await db.fetch(_HAS, *place)
                if not found or not found[0][1]:
                    yield Lost(session, unescaped(session_id), file, found[0][0] if found else None)
        after = rows[-1][:2]


async def fix_files(db: Connection) -> AsyncIterator[str]:
    """Make the repairs that are safe; yield sentences about them. Raises as `fetch`."""
    empty = await db.script(f"DELETE FROM warren.attachments WHERE {_EMPTY}")
    if empty:
        yield f"removed {empty} rows of attachments that had no bytes"
    lost = [each async for each in _lost_files(db) if each.blob is not None]
    for each in lost:
        name = None if each.file.name is None else escaped(each.file.name)
        await db.fetch(_GIVE_BACK, each.session, each.blob, each.file.media_type, name)
    if lost:
        yield f"gave sessions {len(lost)} files back that their messages name"
    async with db.transaction(_LOCK_UNUSED):
        unused = await db.script(f"DELETE FROM warren.blobs WHERE {_UNUSED}")
    if unused:
        yield f"removed {unused} rows of blobs that belonged to no session"
