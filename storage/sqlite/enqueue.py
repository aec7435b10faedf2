"""The operations on inboxes with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

import apsw

from warren.conversation import codec
from warren.conversation.inputs import Numbered
from warren.storage.operations import Attach, EndInputs, Enqueue, Enqueued
from warren.storage.refusals import inbox_full, leased, not_found, retired, taken_over
from warren.storage.rows import DELETED, OPEN, decoded, microseconds, outcome_of
from warren.storage.sqlite.attachments import attach
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.inbox import send, store_outcomes
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.operations import has, holding, writable

_KNOWN: Final = f"SELECT number, {raw('body, outcome')} FROM inbox WHERE session = ? AND key = ?"
_ADD: Final = (
    "INSERT INTO inbox (session, id, key, starts, notice, body, not_before) VALUES (?,?,?,?,?,?,?) RETURNING number"
)
_COUNT: Final = "SELECT count(*) FROM inbox WHERE session = ? AND outcome IS NULL AND NOT notice"


def enqueue(operation: Enqueue, db: apsw.Connection, holder: Holder) -> Enqueued:
    """Add the row of an input."""
    session_id, input_ = operation.session_id, operation.input
    key, state, rival = holding(db, holder, session_id)
    if state != OPEN:
        raise not_found(session_id) if state == DELETED else retired(session_id)
    if rival is not None and not operation.anywhere:
        raise leased(session_id, rival)
    if operation.lease is not None and not has(db, holder, key, operation.lease):
        raise taken_over(session_id, rival)
    elsewhere = rival is not None
    known = db.execute(_KNOWN, (key, input_.key)).get if input_.key is not None else None
    if known is not None:
        number, body, outcome = known
        earlier = Numbered(number, decoded(body, session_id))
        ended = None if outcome is None else outcome_of(outcome, session_id)
        return Enqueued(earlier, False, ended, elsewhere)
    if db.execute(_COUNT, (key,)).get >= operation.limit:
        raise inbox_full(session_id, operation.limit)
    if operation.blobs:
        attach(Attach(session_id, operation.blobs), db, holder)
    body = codec.encode(input_).decode()
    due = None if input_.not_before is None else microseconds(input_.not_before)
    number = db.execute(_ADD, (key, input_.input_id, input_.key, input_.starts, input_.is_notice, body, due)).get
    return Enqueued(Numbered(number, input_), elsewhere=elsewhere)


def end_inputs(operation: EndInputs, db: apsw.Connection, holder: Holder) -> None:
    """Change the rows of inputs."""
    key, state = writable(db, holder, operation.session_id)
    if state == OPEN:
        if operation.lease is not None and not has(db, holder, key, operation.lease):
            raise taken_over(operation.session_id, None)
        store_outcomes(db, [(key, operation.inputs)])
        send(db, operation.sends)
