"""Sessions that work for other sessions, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

import apsw

from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.views import ChildCount
from warren.storage.lending import lend
from warren.storage.operations import FIRST, Delegate
from warren.storage.queries import Children
from warren.storage.refusals import not_found, retired, too_many_children, waits_no_more
from warren.storage.rows import ARCHIVED, COLUMNS, OPEN, microseconds, record_to_row, row_to_record, sound_waits
from warren.storage.sqlite import audit, inbox, waits
from warren.storage.sqlite.columns import NEXT_CHANGE
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.operations import PLACES, RECORD_OF
from warren.storage.sqlite.reading import Reading

# Few have so many children at all: else each of a thousand would have all those before it counted.
_PARENT: Final = """
    SELECT state, EXISTS (SELECT 1 FROM sessions WHERE session_id = ?2), EXISTS (
        SELECT 1 FROM waits WHERE session = parent.key AND wait_id = ?3 AND reason = 'child' AND state = 'waiting'
    ), EXISTS (SELECT 1 FROM sessions WHERE delegated_by = ?1 LIMIT 1 OFFSET ?4)
    FROM (SELECT 1) LEFT JOIN sessions AS parent ON parent.session_id = ?1
"""
# The prompt of a child has an outcome once its turn has ended; while it runs, that may be an empty one.
_WORKS: Final = f"""
    EXISTS (SELECT 1 FROM inbox
        WHERE session = sessions.key AND inbox.key = '{FIRST_PROMPT}' AND coalesce(outcome, '') = '')
"""
_AT_WORK: Final = f"SELECT count(*) FROM sessions WHERE delegated_by = ? AND state = {OPEN} AND {_WORKS}"
_COUNTS: Final = f"""
    SELECT count(*), coalesce(sum({_WORKS}), 0) FROM sessions WHERE delegated_by = ? AND state = {OPEN}
"""
_ADD: Final = f"""
    INSERT INTO sessions ({COLUMNS}, delegated_by, holder, epoch, change) VALUES ({PLACES},?,?,?,{NEXT_CHANGE})
    RETURNING key
"""
_KEY: Final = "SELECT key FROM sessions WHERE session_id = ?"
_ADD_MESSAGE: Final = "INSERT INTO messages (session, position, created_at, body) VALUES (?,?,?,?)"
_ADD_PROMPT: Final = "INSERT INTO inbox (session, id, key, starts, body) VALUES (?,?,?,1,?) RETURNING number"


def delegate(operation: Delegate, db: apsw.Connection, holder: Holder) -> int | None:
    """Add the rows of a child."""
    record, prompt, place = operation.record, operation.prompt, operation.place
    asked = place.session_id, record.session_id, place.call_id, operation.limit - 1
    state, there, awaited, many = db.execute(_PARENT, asked).get
    if there:
        return None
    if state != OPEN:
        raise retired(place.session_id) if state == ARCHIVED else not_found(place.session_id)
    if operation.waits and not awaited:
        raise waits_no_more(place.session_id)
    if (many or operation.limit < 1) and db.execute(_AT_WORK, (place.session_id,)).get >= operation.limit:
        raise too_many_children(place.session_id, operation.limit)
    if operation.lends:
        key = db.execute(_KEY, (place.session_id,)).get
        parent = row_to_record(db.execute(RECORD_OF, (key,)).get)
        inputs = inbox.waiting(db, place.session_id)
        record, notice = lend(operation, parent, inputs, sound_waits(waits.open_of(db, key)))
        inbox.send(db, (notice,))
    child = db.execute(_ADD, (*record_to_row(record), place.session_id, holder.key, FIRST.epoch)).get
    for row in operation.messages:
        db.execute(_ADD_MESSAGE, (child, row.position, microseconds(row.created_at), row.body.decode()))
    number: int = db.execute(_ADD_PROMPT, (child, prompt.input_id, prompt.key, codec.encode(prompt).decode())).get
    audit.add(db, (operation.audit,))
    return number


def count(at: Reading, query: Children) -> ChildCount:
    """Return the number of children."""
    return ChildCount(*at.db.execute(_COUNTS, (query.session_id,)).get)
