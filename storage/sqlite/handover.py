"""Requests between processes that share a store: handing sessions over, and noticing each other's changes."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from typing import Any, Final

import apsw

from warren.storage.operations import DeclineHandover, RequestHandover
from warren.storage.queries import HandoverAnswer, StoreNews
from warren.storage.refusals import not_found
from warren.storage.results import News
from warren.storage.rows import DELETED, live_seq, readable_inputs, shown
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.inbox import last_number
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.operations import ANSWERED
from warren.storage.sqlite.reading import Reading

_HOLDING: Final = f"SELECT key, {raw('holder')} FROM sessions WHERE session_id = ? AND state <> {DELETED}"
_REQUEST: Final = "INSERT OR REPLACE INTO requests (session, holder) VALUES (?, ?)"
_ANSWER: Final = f"""
    SELECT {raw("sessions.holder, requests.holder")} FROM sessions LEFT JOIN requests ON requests.session = sessions.key
    WHERE session_id = ?
"""
# A request names the holder that it was meant for: one that came for an earlier holder is void.
_WANTED: Final = f"""
    SELECT {raw("session_id")} FROM requests JOIN sessions ON sessions.key = requests.session
    WHERE requests.holder = ?1 AND sessions.holder = ?1
"""
_ARRIVED: Final = f"""
    SELECT inbox.number, {raw("inbox.body, session_id")} FROM inbox JOIN sessions ON sessions.key = inbox.session
    WHERE inbox.number > ? AND outcome IS NULL AND sessions.holder = ? ORDER BY inbox.number
"""
_WATCHED: Final = f"""
    SELECT session_id, {raw("last_seq, state")} FROM sessions WHERE session_id IN (SELECT value FROM json_each(?))
"""


def request(operation: RequestHandover, db: apsw.Connection, holder: Holder) -> bool:
    """Add the row of a request."""
    found = db.execute(_HOLDING, (operation.session_id,)).get
    if found is None:
        raise not_found(operation.session_id)
    key, owner = found
    if owner in (None, holder.key) or holder.rival(db, owner) is None:
        return False
    db.execute(_REQUEST, (key, owner))
    return True


def decline(operation: DeclineHandover, db: apsw.Connection, _holder: Holder) -> None:
    """Remove the row of a request."""
    db.execute(ANSWERED, (operation.session_id,))


def handed_over(at: Reading, query: HandoverAnswer) -> bool | None:
    """Return whether a session that was asked for is free now; None as long as there is no answer."""
    owner, asked = at.db.execute(_ANSWER, (query.session_id,)).get or (None, None)
    if owner in (None, at.me.key):
        return True
    return None if asked == owner else False


def news(at: Reading, query: StoreNews) -> News:
    """Return the news for this process: inputs above a number, and the state of the watched sessions."""
    db, me, watched = at.db, at.me.key, list(query.watched)
    inbox_to = last_number(db)  # read before the inputs: an input that comes in between is found again by the next call
    rows: list[Any] = db.execute(_WATCHED, (json.dumps(watched),)).fetchall() if watched else []
    return News(
        [shown(row[0]) for row in db.execute(_WANTED, (me,))],
        readable_inputs(db.execute(_ARRIVED, (query.inbox_after, me)).fetchall()),
        inbox_to,
        {session_id: live_seq(last_seq, state) for session_id, last_seq, state in rows if state != DELETED},
    )
