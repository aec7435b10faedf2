"""Sessions that work for other sessions, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from typing import Any, Final

from warren.base.errors import WarrenError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.records import SessionRecord
from warren.conversation.views import ChildCount
from warren.storage.lending import lend
from warren.storage.operations import FIRST, Delegate
from warren.storage.parents import Parent
from warren.storage.postgres import audit, inbox, waits
from warren.storage.postgres.commit import MESSAGE, SESSION, arguments_of, arrays, marks_of
from warren.storage.postgres.driver import Connection, Value, array, escaped
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import OF, Reading, record_of
from warren.storage.queries import Children
from warren.storage.rows import COLUMNS, OPEN, agent_of, microseconds, record_to_row, sound_waits

# The locks of `inbox.lock` keep the counts of the parents' children exact, and their turns from ending meanwhile.
_PARENTS: Final = "SELECT session_id, key, state FROM warren.sessions WHERE session_id = ANY ($1::text[])"
_RECORD: Final = f"SELECT {COLUMNS} FROM warren.sessions WHERE key = $1::int8"
_FOUND: Final = """
    SELECT EXISTS (SELECT FROM warren.sessions WHERE session_id = child), EXISTS (
        SELECT FROM warren.waits w JOIN warren.sessions p ON p.key = w.session
        WHERE p.session_id = parent AND w.wait_id = call AND w.reason = 'child' AND w.state = 'waiting')
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS given (child, parent, call, place) ORDER BY place
"""
# The prompt of a child has an outcome once its turn has ended; while it runs, that may be an empty one.
_WORKS: Final = f"""
    EXISTS (SELECT FROM warren.inbox i
        WHERE i.session = s.key AND i.key = '{FIRST_PROMPT}' AND coalesce(i.outcome, '') = '')
"""
_AT_WORK: Final = f"SELECT count(*) FROM warren.sessions s WHERE delegated_by = $1 AND state = {OPEN} AND {_WORKS}"
_COUNTS: Final = f"""
    SELECT {_WORKS} AS works, count(*) FROM warren.sessions s
    WHERE delegated_by = $1 AND state = {OPEN} AND {OF} GROUP BY works
"""
# Few have so many at all: else each of a thousand children would have all those before it counted.
_MANY: Final = "SELECT FROM warren.sessions WHERE delegated_by = $1 LIMIT 1 OFFSET $2::int8"
_CHILD: Final = (*SESSION[: len(COLUMNS.split(","))], "text", "text", "text")
_CHILDREN, _MESSAGES, _PROMPTS = arguments_of(3, _CHILD, MESSAGE, ("text", "text", "text", "text"))
_ADD: Final = f"""
WITH added AS (
    INSERT INTO warren.sessions ({COLUMNS}, marks, delegated_by, agent, holder, epoch)
    SELECT {COLUMNS}, marks::text[], delegated_by, agent, $1::int, $2::int8
    FROM unnest({_CHILDREN}) AS given({COLUMNS}, marks, delegated_by, agent) RETURNING key AS session, session_id
), added_messages AS (
    INSERT INTO warren.messages (session, position, created_at, body)
    SELECT session, position, at, body FROM unnest({_MESSAGES}) AS given(session_id, position, at, body)
    JOIN added USING (session_id)
), added_prompts AS (
    INSERT INTO warren.inbox (session, number, id, key, starts, body)
    SELECT session, nextval('warren.inputs'), id, key, true, body
    FROM unnest({_PROMPTS}) AS given(session_id, id, key, body) JOIN added USING (session_id)
    RETURNING session, number
)
SELECT session_id, number FROM added JOIN added_prompts USING (session)
"""


async def delegate_all(operations: Sequence[Delegate], db: Connection, holder: Holder) -> list[Any]:
    """Add the rows of children; return the result or the refusal of each. Raises as `Connection.fetch`."""
    names = [escaped(each.place.session_id) for each in operations]
    children = [escaped(each.session_id) for each in operations]
    if len(operations) > 1 and not set(names).isdisjoint(children):  # a parent that is itself made here
        return [(await delegate_all([each], db, holder))[0] for each in operations]
    calls = [escaped(each.place.call_id or "") for each in operations]
    parents = await _parents(sorted(set(names)), min(each.limit for each in operations) - len(operations), db)
    found = await db.fetch(_FOUND, array(children), array(names), array(calls))
    outcomes: list[Any] = [None] * len(operations)
    added: dict[str, tuple[int, str, SessionRecord]] = {}
    for at, (operation, (there, waiting)) in enumerate(zip(operations, found, strict=True)):
        if there or children[at] in added:
            continue
        parent = parents.get(names[at]) or Parent()
        try:
            parent.check(operation, waiting=waiting)
            record = await _lent(operation, parent.key, db) if operation.lends else operation.record
        except WarrenError as exc:
            outcomes[at] = exc
        else:
            added[children[at]] = at, names[at], record
            parent.at_work += 1
    if added:
        rows = _rows([(operations[at], parent, record) for at, parent, record in added.values()])
        for child, number in await db.fetch(_ADD, holder.key, FIRST.epoch, *rows):
            outcomes[added[child][0]] = number
        await audit.add(db, [operations[at].audit for at, *_ in added.values()])
    return outcomes


async def _parents(names: Sequence[str], few: int, db: Connection) -> dict[str, Parent]:
    """Return parents; of those with more than a few children, how many of these are at work."""
    parents = {name: Parent(key, state) for name, key, state in await db.fetch(_PARENTS, array(names))}
    for name, parent in parents.items():
        if few < 0 or await db.fetch(_MANY, name, few):
            parent.at_work = await db.value(_AT_WORK, name)
    return parents


async def _lent(operation: Delegate, parent: int, db: Connection) -> SessionRecord:
    """Return the record of a child with its part of the budget of its parent, which gets a notice of that."""
    (columns,) = await db.fetch(_RECORD, parent)
    inputs, open_ = await inbox.waiting(db, operation.place.session_id), await waits.open_of(db, parent)
    record, notice = lend(operation, record_of(columns), inputs, sound_waits(open_))
    await inbox.send(db, (notice,))
    return record


def _rows(children: Sequence[tuple[Delegate, str, SessionRecord]]) -> list[Value]:
    """Return the arrays of the rows of children: each with its parent, and with its record."""
    sessions, messages, prompts = list[Any](), list[Any](), list[Any]()
    for operation, parent, record in children:
        name, prompt = escaped(record.session_id), operation.prompt
        row = [escaped(each) if isinstance(each, str) else each for each in record_to_row(record)]
        sessions.append((*row, array(marks_of(record.labels)), parent, agent_of(record)))
        messages += [(name, each.position, microseconds(each.created_at), each.body) for each in operation.messages]
        prompts.append((name, escaped(prompt.input_id), prompt.key, codec.encode(prompt)))
    return arrays((sessions, messages, prompts), (_CHILD, MESSAGE, ("text",) * 4))


async def count(at: Reading, query: Children) -> ChildCount:
    """Return the number of children."""
    counts: dict[bool, int] = dict(await at.db.fetch(_COUNTS, escaped(query.session_id), query.tenant))
    return ChildCount(sum(counts.values()), counts.get(True, 0))
