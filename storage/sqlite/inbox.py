"""The inboxes of the sessions of a store. Each row is one input; the commit of the turn that took it removes it."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections.abc import Iterable
from typing import Any, Final

import apsw

from warren.base.errors import StoreError
from warren.base.values import frozen
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.inputs import Input, Numbered, looking
from warren.storage.operations import MAX_OUTCOMES, InputOutcome, Sent
from warren.storage.queries import PeerNamed, WaitingNotices, WaitingSessions, WasTold
from warren.storage.results import Rows
from warren.storage.rows import ARCHIVED, MAX_NUMBER, OPEN, decoded, encode_notice, shown, text_in
from warren.storage.sqlite.bulk import execute_rows
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.reading import Reading

_DROP: Final = "DELETE FROM inbox WHERE key IS NULL AND (number, session) IN (VALUES {rows})"
_END: Final = """
    UPDATE inbox SET outcome = column3 FROM (VALUES {rows}) WHERE number = column1 AND session = column2
    RETURNING session
"""
_MANY: Final = f"""
    SELECT session FROM inbox WHERE key IS NOT NULL AND session IN (VALUES {{rows}})
    GROUP BY session HAVING count(*) > {MAX_OUTCOMES}
"""
_FORGET: Final = """
    DELETE FROM inbox WHERE session = ?1 AND outcome IS NOT NULL AND number <=
        (SELECT number FROM inbox WHERE session = ?1 AND outcome IS NOT NULL ORDER BY number DESC LIMIT 1 OFFSET ?2)
        AND key IS NOT ?3
"""
_WAITING: Final = f"""
    SELECT number, {raw("body")} FROM inbox WHERE outcome IS NULL AND session =
        (SELECT key FROM sessions WHERE session_id = ?) ORDER BY number
"""
_NOTICES: Final = f"""
    SELECT {raw("session_id")}, number, {raw("body")} FROM sessions CROSS JOIN inbox ON session = sessions.key
    WHERE session_id IN (SELECT value FROM json_each(?)) AND outcome IS NULL
        AND (notice OR inbox.key = '{FIRST_PROMPT}') ORDER BY number
"""
_DAMAGED: Final = f"""
    SELECT inbox.number, {raw("body, session_id, holder")} FROM inbox JOIN sessions ON sessions.key = inbox.session
    WHERE outcome IS NULL AND state = {OPEN}
"""
_SET_ASIDE: Final = """
    UPDATE inbox SET outcome = '', body = iif(typeof(body) = 'text', body, '{}') WHERE number = ?
"""
# For a notice the session itself looks for what it has missed, for the prompt of a child its parent does.
_LOOK: Final = f"""
    INSERT INTO inbox (session, id, starts, notice, body)
    SELECT looks.key, ?2, 0, 1, ?3 FROM inbox JOIN sessions ON sessions.key = inbox.session
    JOIN sessions AS looks ON looks.session_id = iif(inbox.notice, sessions.session_id, sessions.delegated_by)
    WHERE inbox.number = ?1 AND (inbox.notice OR inbox.key = '{FIRST_PROMPT}') AND looks.state = {OPEN}
"""
_LOOK_ALL: Final = f"""
    INSERT INTO inbox (session, id, starts, notice, body)
    SELECT looks.key, ?2, 0, 1, ?3 FROM sessions
    JOIN sessions AS looks ON looks.session_id IN (sessions.session_id, sessions.delegated_by)
    WHERE sessions.key = ?1 AND looks.state = {OPEN} AND looks.turn IS NOT NULL
"""
_LAST: Final = f"SELECT {raw('seq')} FROM sqlite_sequence WHERE name = 'inbox'"
# In this order: else SQLite may go through all sessions, as it does not know how few of them are found.
_SESSIONS_THAT_WAIT: Final = f"""
    WITH found (session) AS (
        SELECT session FROM (
            SELECT session FROM inbox INDEXED BY inbox_begins WHERE outcome IS NULL AND starts AND not_before IS NULL
            UNION ALL SELECT session FROM inbox INDEXED BY inbox_begins
            WHERE outcome IS NULL AND starts AND not_before <= ?1
        ) CROSS JOIN sessions ON sessions.key = session WHERE NOT (turn IS NOT NULL AND coalesce(wakes, 0) > ?1)
        UNION SELECT key FROM sessions INDEXED BY sessions_wakes WHERE turn IS NOT NULL AND wakes IS NULL
        UNION SELECT key FROM sessions INDEXED BY sessions_wakes WHERE turn IS NOT NULL AND wakes <= ?1
        UNION SELECT session FROM waits WHERE waits.state <> 'settled' AND reason = 'background'
        UNION SELECT session FROM inbox INDEXED BY inbox_notices WHERE notice AND outcome IS NULL
    )
    SELECT {raw("session_id, tenant, holder")} FROM found CROSS JOIN sessions ON sessions.key = found.session
    WHERE state = {OPEN} OR (state = {ARCHIVED} AND EXISTS (
        SELECT 1 FROM inbox WHERE inbox.session = found.session AND notice AND outcome IS NULL))
    ORDER BY sessions.key
"""
# In this order: it is that of their numbers.
_SEND: Final = f"""
    INSERT INTO inbox (session, id, starts, notice, body)
    SELECT key, column2, 0, 1, column3 FROM (VALUES {{rows}}) CROSS JOIN sessions
    WHERE session_id = column1 AND state = {OPEN}
"""
_SEND_DOWN: Final = """
    INSERT INTO inbox (session, id, starts, notice, body)
    SELECT key, ?2, 0, 1, ?3 FROM sessions WHERE delegated_by = ?1 AND state <= ?4 ORDER BY key
"""
_KEY: Final = "SELECT key FROM sessions WHERE session_id = ?"
_FROM: Final = f"SELECT {raw('body')} FROM inbox WHERE session = ? AND id = ?"
_TOLD: Final = """
    SELECT 1 FROM messages WHERE session = ?1 AND json_valid(body) AND substr(body ->> '$.content', 1, ?3) = ?2
    ORDER BY position DESC LIMIT 1
"""
_NAMED: Final = f"SELECT {raw('session_id')} FROM sessions WHERE tenant = ? AND peer = ? AND state = {OPEN}"


def store_outcomes(db: apsw.Connection, ended: Iterable[tuple[int, InputOutcome]]) -> None:
    """Store the outcomes of inputs of sessions. An input with a key is remembered for a while; the others are removed.

    Args:
        db: the connection.
        ended: the keys of the sessions, with their inputs.
    """
    found = [(number, key, inputs.outcome.decode()) for key, inputs in ended for number in inputs.numbers]
    if not found:
        return
    execute_rows(db, _DROP, 2, [each for number, key, _ in found for each in (number, key)])
    keyed = {key for (key,) in execute_rows(db, _END, 3, [each for row in found for each in row])}
    for (key,) in execute_rows(db, _MANY, 1, sorted(keyed)):
        db.execute(_FORGET, (key, MAX_OUTCOMES, FIRST_PROMPT))


def send(db: apsw.Connection, sends: Iterable[Sent]) -> None:
    """Put notices into the inboxes of open sessions."""
    rows = ((each.session_id, each.input.input_id, encode_notice(each.input).decode()) for each in sends)
    execute_rows(db, _SEND, 3, [each for row in rows for each in row])


def send_down(db: apsw.Connection, session_id: str, notice: Input) -> None:
    """Put a notice into the inboxes of the children of a session; one that deletes them also of archived ones."""
    state = ARCHIVED if notice.kind == "delete" else OPEN
    db.execute(_SEND_DOWN, (session_id, notice.input_id, codec.encode(notice).decode(), state))


def waiting(db: apsw.Connection, session_id: str) -> Rows[Numbered]:
    """Return the inputs that wait for a session, in order."""
    rows: list[Any] = db.execute(_WAITING, (session_id,)).fetchall()
    return Rows(rows, lambda row: Numbered(row[0], decoded(row[1], session_id)), lambda row: str(row[0]))


def notices(at: Reading, query: WaitingNotices) -> Rows[tuple[str, Numbered]]:
    """Return the notices and the first prompts that wait for some sessions, in order."""
    rows: list[Any] = at.db.execute(_NOTICES, (json.dumps(list(query.session_ids)),)).fetchall()
    return Rows(rows, _notice, lambda row: str(row[1]))


def _notice(row: tuple[Any, ...]) -> tuple[str, Numbered]:
    session_id, number, body = row
    of = text_in(session_id, "session_id")
    return of, Numbered(number, decoded(body, of))


@frozen
class Damaged:
    """An input that waits and cannot be read.

    Attributes:
        number: its number in the store.
        session_id: the session for which it waits.
        holder: the key of the process that has the session.
        problem: the reason why it cannot be read.
    """

    number: int
    session_id: str
    holder: int | None
    problem: str


def damaged(db: apsw.Connection, session_id: str | None = None) -> list[Damaged]:
    """Return the waiting inputs that cannot be read, of one session or of all."""
    only = "" if session_id is None else " AND session_id = ?"
    rows: list[Any] = db.execute(_DAMAGED + only, () if session_id is None else (session_id,)).fetchall()
    found = []
    for number, body, owner, holder in rows:
        try:
            decoded(body, shown(owner))
        except StoreError as exc:
            found.append(Damaged(number, shown(owner), holder, exc.message))
    return found


def set_aside(db: apsw.Connection, inputs: "list[Damaged]") -> None:
    """End the wait of inputs that cannot be read, so that they do not block the readable ones."""
    for each in inputs:
        db.execute(_LOOK, (each.number, (notice := looking()).input_id, codec.encode(notice).decode()))
        db.execute(_SET_ASIDE, (each.number,))


def look(db: apsw.Connection, session: int) -> None:
    """Have a session and its parent look how children have ended: nobody knows what an input has said that is gone."""
    notice = looking()
    db.execute(_LOOK_ALL, (session, notice.input_id, codec.encode(notice).decode()))


def last_number(db: apsw.Connection) -> int:
    """Return the highest number that any input of the store was given."""
    last = db.execute(_LAST).get
    return last if type(last) is int and 0 <= last <= MAX_NUMBER else 0


def sessions_that_wait(at: Reading, _query: WaitingSessions) -> dict[str, str]:
    """Return the sessions with work that no other living process has: see `WaitingSessions`."""
    me = at.me
    rows: list[Any] = at.db.execute(_SESSIONS_THAT_WAIT, (int(me.clock() * 1e6),)).fetchall()
    alive = {owner for *_, owner in rows if owner not in (None, me.key) and me.rival(at.db, owner) is not None}
    free = (row for row in rows if row[-1] not in alive)
    return dict(
        Rows(free, lambda row: (text_in(row[0], "session_id"), text_in(row[1], "tenant")), lambda row: shown(row[0]))
    )


def was_told(at: Reading, query: WasTold) -> bool:
    """Tell whether a peer's input waits for a session, or is in its conversation as a text that begins so.

    The search begins at the newest message, because the input has mostly just come.
    """
    key = at.db.execute(_KEY, (query.session_id,)).get
    waits: Any = at.db.execute(_FROM, (key, query.input_id)).fetchone()
    if waits is not None:
        found = decoded(waits[0], query.session_id)
        return found.source == query.source and found.text.startswith(query.beginning)
    return bool(at.db.execute(_TOLD, (key, query.beginning, len(query.beginning))).get)


def named(at: Reading, query: PeerNamed) -> str | None:
    """Return the session that has a name among its peers."""
    row: Any = at.db.execute(_NAMED, (query.tenant, query.name)).fetchone()
    return None if row is None else text_in(row[0], "session_id")
