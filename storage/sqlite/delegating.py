"""Sessions that work for other sessions, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections.abc import Sequence
from typing import Any, Final

import apsw

from warren.base.errors import WarrenError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.records import SessionRecord
from warren.conversation.views import ChildCount
from warren.storage.lending import lend
from warren.storage.operations import FIRST, Delegate
from warren.storage.parents import Parent
from warren.storage.queries import Children
from warren.storage.rows import (
    COLUMNS,
    OPEN,
    agent_of,
    microseconds,
    record_to_row,
    row_to_record,
    sound_waits,
)
from warren.storage.sqlite import audit, inbox, waits
from warren.storage.sqlite.bulk import execute_rows
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.operations import LAST_CHANGE, RECORD_OF
from warren.storage.sqlite.reading import Reading

_PARENTS: Final = "SELECT session_id, key, state FROM sessions WHERE session_id IN (SELECT value FROM json_each(?))"
_FOUND: Final = """
    SELECT EXISTS (SELECT 1 FROM sessions WHERE session_id = column1), EXISTS (
        SELECT 1 FROM waits
        WHERE session = column2 AND wait_id = column3 AND reason = 'child' AND waits.state = 'waiting')
    FROM (VALUES {rows})
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
# Few have so many at all: else each of a thousand children would have all those before it counted.
_MANY: Final = "SELECT 1 FROM sessions WHERE delegated_by = ? LIMIT 1 OFFSET ?"
_CHILD: Final = (*COLUMNS.split(","), "delegated_by", "agent", "holder", "epoch", "change")
_ADD: Final = f"INSERT INTO sessions ({','.join(_CHILD)}) VALUES {{rows}} RETURNING session_id, key"
_ADD_MESSAGES: Final = "INSERT INTO messages (session, position, created_at, body) VALUES {rows}"
_ADD_PROMPTS: Final = "INSERT INTO inbox (session, id, key, starts, body) VALUES {rows} RETURNING session, number"


def delegate_all(operations: Sequence[Delegate], db: apsw.Connection, holder: Holder) -> list[Any]:
    """Add the rows of different children, none of which is a parent of another one.

    Returns the result or the refusal of each.
    """
    parents = _parents({each.place.session_id for each in operations}, operations, db)
    found = _found(operations, parents, db)
    outcomes: list[Any] = [None] * len(operations)
    added: list[tuple[int, SessionRecord]] = []
    for at, (operation, (there, waiting)) in enumerate(zip(operations, found, strict=True)):
        if there:
            continue
        parent = parents.get(operation.place.session_id) or Parent()
        try:
            parent.check(operation, waiting=waiting)
            record = _lent(operation, parent.key, db) if operation.lends else operation.record
        except WarrenError as exc:
            outcomes[at] = exc
        else:
            added.append((at, record))
            parent.at_work += 1
    if added:
        numbers = _add([(operations[at], record) for at, record in added], db, holder)
        for (at, _), number in zip(added, numbers, strict=True):
            outcomes[at] = number
        audit.add(db, (operations[at].audit for at, _ in added))
    return outcomes


def _parents(names: set[str], operations: Sequence[Delegate], db: apsw.Connection) -> dict[str, Parent]:
    """Return the parents; of those with more than a few children, how many of these are at work."""
    rows: list[Any] = db.execute(_PARENTS, (json.dumps(list(names)),)).fetchall()
    parents = {name: Parent(key, state) for name, key, state in rows}
    few = min(each.limit for each in operations) - len(operations)
    for name, parent in parents.items():
        if few < 0 or db.execute(_MANY, (name, few)).get:
            parent.at_work = db.execute(_AT_WORK, (name,)).get
    return parents


def _found(operations: Sequence[Delegate], parents: dict[str, Parent], db: apsw.Connection) -> list[Any]:
    """Return of each child whether it is there, and whether a call of its parent waits for it."""
    values: list[Any] = []
    for each in operations:
        parent = parents.get(each.place.session_id)
        values += each.session_id, None if parent is None else parent.key, each.place.call_id
    return execute_rows(db, _FOUND, 3, values)


def _lent(operation: Delegate, parent: int, db: apsw.Connection) -> SessionRecord:
    """Return the record of a child with its part of the budget of its parent, which gets a notice of that."""
    record = row_to_record(db.execute(RECORD_OF, (parent,)).get)
    inputs = inbox.waiting(db, operation.place.session_id)
    record, notice = lend(operation, record, inputs, sound_waits(waits.open_of(db, parent)))
    inbox.send(db, (notice,))
    return record


def _add(children: Sequence[tuple[Delegate, SessionRecord]], db: apsw.Connection, holder: Holder) -> list[int]:
    """Add the rows of children, each with its record; return the numbers of their prompts."""
    sessions, messages, prompts = list[Any](), list[Any](), list[Any]()
    for change, (operation, record) in enumerate(children, db.execute(LAST_CHANGE).get + 1):
        sessions += (
            *record_to_row(record),
            operation.place.session_id,
            agent_of(record),
            holder.key,
            FIRST.epoch,
            change,
        )
    keys = dict(execute_rows(db, _ADD, len(_CHILD), sessions))
    for operation, _ in children:
        key, prompt = keys[operation.session_id], operation.prompt
        for row in operation.messages:
            messages += key, row.position, microseconds(row.created_at), row.body.decode()
        prompts += key, prompt.input_id, prompt.key, 1, codec.encode(prompt).decode()
    execute_rows(db, _ADD_MESSAGES, 4, messages)
    numbers = dict(execute_rows(db, _ADD_PROMPTS, 5, prompts))
    return [numbers[keys[operation.session_id]] for operation, _ in children]


def count(at: Reading, query: Children) -> ChildCount:
    """Return the number of children."""
    return ChildCount(*at.db.execute(_COUNTS, (query.session_id,)).get)
