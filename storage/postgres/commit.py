"""The ends of turns as one statement: all that a group stores costs one round trip and one flush."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from warren.base.errors import WarrenError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.log_rows import row_of
from warren.reports.ledger import COUNTS
from warren.storage.auditing import COLUMNS as ENTRY
from warren.storage.ledger import COLUMNS as COLUMNS_OF_LEDGER
from warren.storage.ledger import KEY, sums_of, values_of
from warren.storage.noticing import Hooks
from warren.storage.operations import MAX_OUTCOMES, Commit
from warren.storage.postgres import audit, waits, webhooks
from warren.storage.postgres.driver import Connection, Value, array, escaped, unescaped
from warren.storage.postgres.lease import rival
from warren.storage.refusals import built_on_sand, key_used, name_taken, not_found, taken_over
from warren.storage.rows import (
    CALL,
    COLUMNS,
    DELETED,
    OPEN,
    WAIT,
    agent_of,
    call_to_row,
    microseconds,
    record_to_row,
)

Place = tuple[int, int, int, int]
"""The place of a group: its number, the key of its holder, the generation of the connection, and the number that the
store has before it."""
MOST: Final = 200
"""Turns of one statement: the literals of more would keep the event loop waiting."""
SESSION: Final = (
    *("text", "int8", "int8", "int2", "text", "int8", "int8", "int8", "int8", "int8", "text", "text", "text"),
    *("text", "text", "text", "int8", "text", "text", "text", "int8", "int8", "int8"),
)
_NAMES: Final = f"{COLUMNS}, marks, peer, agent, epoch, base_count, base_seq"
MESSAGE: Final = ("text", "int8", "int8", "text")
_EVENT: Final = ("text", "int8", "int8", "int8", "text", "text")
_MOVE: Final = ("text", "int8", "int8", "int8", "int8", "int8", "text", "int8")
_CREATION: Final = ("text", "text", "text")
_SETTLED: Final = ("text", "int8", "text")
_CHARGE: Final = ("text", "int8", "text", "text", *("int8" for _ in COUNTS), "numeric")
_TABLES: Final = (SESSION, MESSAGE, _EVENT, _MOVE, _CREATION, _SETTLED, _CHARGE)
_ENTRY: Final = (audit.TYPES,)
_OF_TURNS: Final = (
    ("text",),
    ("text", "int8", "text", "text", "text"),
    ("text", "text", "text", "text", "int8", "int8", "text"),
)
"""The sessions whose tool calls go, tool calls with a new state, and what they wait for."""
_NOTICES: Final = (webhooks.TYPES,)
_ADDED: Final = (*COUNTS, "priced")


def arguments_of(number: int, *tables: Sequence[str]) -> list[str]:
    """Return the arguments of `unnest` for each table of values: `number` is the first parameter."""
    arguments = []
    for table in tables:
        arguments.append(", ".join(f"${number + at}::{kind}[]" for at, kind in enumerate(table)))
        number += len(table)
    return arguments


_SESSIONS, _MESSAGES, _EVENTS, _MOVES, _CREATIONS, _SETTLEMENTS, _CHARGES = arguments_of(6, *_TABLES)
# `gate` fences the connection: one that was replaced after a fault writes nothing any more, and none does to a store
# that has gone back behind the group before this one. It keeps its row locked to the end of the transaction, so that
# the next connection learns for good whether this group is committed. It lets nothing through either if the
# webhooks are others than those that the process knows: it would miss what one of them is to be told of.
# The WHERE of `saved` fences the session: a tombstone, and a session under another lease, are left alone, and then its
# id does not come back. So is one that lacks what the turn follows, and none is made then. An archived session stays
# archived. Labels and a title that is there are kept: they may have changed during the turn.
STATEMENT: Final = f"""
WITH gate AS (
    UPDATE warren.writers SET groups = $1::int8
    WHERE holder = $2::int AND generation = $3::int8 AND groups = $4::int8
        AND (SELECT hooks FROM warren.meta) IS NOT DISTINCT FROM $5::int8 RETURNING holder
), saved AS (
    INSERT INTO warren.sessions ({COLUMNS}, marks, peer, agent, epoch, holder)
    SELECT {COLUMNS}, marks::text[], peer, agent, epoch, gate.holder FROM unnest({_SESSIONS}) AS given({_NAMES}), gate
    WHERE base_count IS NULL OR EXISTS (
        SELECT FROM warren.sessions s
        WHERE s.session_id = given.session_id AND s.message_count = base_count AND s.last_seq = base_seq)
    ON CONFLICT (session_id) DO UPDATE SET
        updated_at = excluded.updated_at, state = greatest(sessions.state, excluded.state), model = excluded.model,
        turns = excluded.turns, steps = excluded.steps, message_count = excluded.message_count,
        last_seq = excluded.last_seq, head = excluded.head, title = coalesce(sessions.title, excluded.title),
        details = excluded.details, turn = excluded.turn, wakes = excluded.wakes,
        peer = coalesce(sessions.peer, excluded.peer), agent = excluded.agent
    WHERE sessions.state <> {DELETED} AND sessions.holder = excluded.holder AND sessions.epoch = excluded.epoch
    RETURNING key AS session, session_id, tenant
), added_messages AS (
    INSERT INTO warren.messages (session, position, created_at, body)
    SELECT session, position, at, body FROM unnest({_MESSAGES}) AS given(session_id, position, at, body)
    JOIN saved USING (session_id)
), added_events AS (
    INSERT INTO warren.events (session, seq, first_seq, timestamp, body, cuts)
    SELECT session, seq, first_seq, at, body, cuts
    FROM unnest({_EVENTS}) AS given(session_id, seq, first_seq, at, body, cuts) JOIN saved USING (session_id)
), moved AS (
    INSERT INTO warren.compactions
        (session, step, created_at, head, messages_before, messages_after, summary, summary_tokens)
    SELECT session, step, at, head, before, after, summary, tokens
    FROM unnest({_MOVES}) AS given(session_id, step, at, head, before, after, summary, tokens)
    JOIN saved USING (session_id)
), created AS (
    INSERT INTO warren.creations (tenant, key, session, params)
    SELECT tenant, given.key, session, params FROM unnest({_CREATIONS}) AS given(session_id, key, params)
    JOIN saved USING (session_id)
), settled AS (
    SELECT session, number, outcome FROM unnest({_SETTLEMENTS}) AS given(session_id, number, outcome)
    JOIN saved USING (session_id)
), dropped AS (
    DELETE FROM warren.inbox i USING settled s WHERE i.session = s.session AND i.number = s.number AND i.key IS NULL
), ended AS (
    UPDATE warren.inbox i SET outcome = s.outcome FROM settled s
    WHERE i.session = s.session AND i.number = s.number AND i.key IS NOT NULL
), forgotten AS (
    DELETE FROM warren.inbox i USING (SELECT DISTINCT session FROM settled) s
    WHERE i.session = s.session AND i.outcome IS NOT NULL AND i.key IS DISTINCT FROM '{FIRST_PROMPT}'
        AND i.number <= (
            SELECT number FROM warren.inbox o WHERE o.session = s.session AND o.outcome IS NOT NULL
            ORDER BY number DESC LIMIT 1 OFFSET {MAX_OUTCOMES})
        AND NOT EXISTS (SELECT FROM settled now WHERE now.session = i.session AND now.number = i.number)
), charged AS (
    INSERT INTO warren.usage AS u ({KEY}, {COLUMNS_OF_LEDGER})
    SELECT tenant, hour, payer, model, gate.holder, {", ".join(f"sum({each})" for each in _ADDED)}
    FROM unnest({_CHARGES}) AS given(session_id, hour, payer, model, {COLUMNS_OF_LEDGER})
    JOIN saved USING (session_id), gate
    GROUP BY tenant, hour, payer, model, gate.holder
    ON CONFLICT ({KEY}) DO UPDATE SET {", ".join(f"{each} = u.{each} + excluded.{each}" for each in _ADDED)}
) SELECT (SELECT count(*) FROM gate), (SELECT array_to_json(array_agg(session_id)) FROM saved),
    (SELECT hooks IS NOT DISTINCT FROM $5::int8 FROM warren.meta)
"""
# Of groups that create sessions, and of those with tool calls of open turns; all others do without their parameters.
_AUDITED: Final = """
audited AS (
    INSERT INTO warren.audit ({names}) SELECT {columns}
    FROM unnest({entries}) AS given({names}) JOIN saved ON saved.session_id = given.session_id
)"""
# All parts of a statement see the same rows, so none changes a row that another one removes.
_CALLED: Final = """
settling AS (
    SELECT session FROM unnest({settling}) AS given(session_id) JOIN saved USING (session_id)
), states AS (
    SELECT session, {names} FROM unnest({calls}) AS given(session_id, {names}) JOIN saved USING (session_id)
), cleared AS (
    DELETE FROM warren.calls c USING settling s WHERE c.session = s.session
        AND NOT EXISTS (SELECT FROM states n WHERE n.session = c.session AND n.place = c.place)
), called AS (
    INSERT INTO warren.calls (session, {names}) SELECT session, {names} FROM states
    ON CONFLICT (session, place) DO UPDATE SET call_id = excluded.call_id, state = excluded.state, body = excluded.body
), waits AS (
    SELECT session, tenant, {wait} FROM unnest({waits}) AS given(session_id, {wait}) JOIN saved USING (session_id)
), over AS (
    UPDATE warren.waits w SET state = 'settled' FROM settling s
    WHERE w.session = s.session AND w.state <> 'settled' AND w.reason <> 'background' AND NOT EXISTS (
        SELECT FROM waits n WHERE n.session = w.session AND n.wait_id = w.wait_id AND n.reason = w.reason)
), waited AS (
    INSERT INTO warren.waits (session, tenant, {wait}) SELECT session, tenant, {wait} FROM waits
    ON CONFLICT (session, wait_id, reason) DO UPDATE SET
        state = excluded.state, since = excluded.since, until = excluded.until, body = excluded.body
)"""


@cache
def _statement(*, creates: bool, calls: bool, notices: bool) -> str:
    """Return the statement of a group that creates sessions, changes tool calls of open turns, or has notices."""
    parts = list[str]()
    of_turns, noted = _OF_TURNS if calls else (), _NOTICES if notices else ()
    more = arguments_of(6, *_TABLES, *(_ENTRY if creates else ()), *of_turns, *noted)[len(_TABLES) :]
    if notices:
        parts.append(webhooks.NOTED.format(notices=more.pop()))
    if creates:
        columns = ", ".join(f"given.{each.strip()}" for each in ENTRY.split(","))
        parts.append(_AUDITED.format(names=ENTRY, columns=columns, entries=more[0]))
    if calls:
        parts.append(_CALLED.format(names=CALL, settling=more[-3], calls=more[-2], wait=WAIT, waits=more[-1]))
    end = "\n) SELECT (SELECT count(*)"
    return STATEMENT.replace(end, f"\n), {', '.join(parts)} SELECT (SELECT count(*)")


_STATE: Final = f"""
    SELECT state, {rival("s.holder", "$2::int")}, holder IS NOT DISTINCT FROM $2::int AND epoch = $3::int8,
        message_count, last_seq
    FROM warren.sessions s WHERE session_id = $1
"""
_KEY_USED: Final = "SELECT FROM warren.creations WHERE key = $1 AND tenant = $2"
_NAMESAKE: Final = f"""
    SELECT FROM warren.sessions WHERE peer = $1 AND tenant = $2 AND state = {OPEN}
        AND NOT EXISTS (SELECT FROM warren.sessions WHERE session_id = $3)
"""
_EVENT_THERE: Final = """
    SELECT FROM warren.events e JOIN warren.sessions s ON s.key = e.session
    WHERE session_id = $1 AND seq = $2::int8 AND timestamp = $3::int8 AND e.body = $4
"""


class SupersededError(Exception):
    """Another connection of this holder has taken over: this one may not write any more."""


async def commit_all(db: Connection, writer: Place, commits: Sequence[Commit], hooks: Hooks) -> set[str]:
    """Store the ends of turns of different sessions; return the ids of those that are stored. The others are fenced.

    Args:
        db: the connection that writes.
        writer: the place of the group.
        commits: the ends of turns, at most `MOST`.
        hooks: the webhooks that this process knows; if they have changed, they are read anew, and it tries again.

    Raises SupersededError, and as `Connection.fetch`: then nothing is stored.
    """
    entries = [audit.values_of(each.audit) for each in commits if each.audit is not None]
    calls = any(each.settles or each.calls or each.waits for each in commits)
    given = parameters(commits) + (audit.columns(entries) if entries else []) + (_of_turns(commits) if calls else [])
    while True:
        notices = _noticed(commits, hooks)
        special = entries or calls or notices
        statement = _statement(creates=bool(entries), calls=calls, notices=bool(notices)) if special else STATEMENT
        more = arrays((notices,), _NOTICES) if notices else []
        ((gate, saved, still),) = await db.fetch(statement, *writer, hooks.number, *given, *more)
        if gate:
            hooks.noted += bool(notices)
            return {unescaped(session_id) for session_id in saved or ()}
        if still:
            raise SupersededError
        await webhooks.look(db, hooks)


def _noticed(commits: Sequence[Commit], hooks: Hooks) -> list[tuple[Value | bytes, ...]]:
    """Return the rows of what commits tell webhooks of."""
    return [webhooks.values_of(each.session_id, notice) for each in commits for notice in hooks.notices(each)]


async def fenced(db: Connection, me: int, commit: Commit) -> WarrenError:
    """Return the error of the end of a turn that was fenced. Raises as `Connection.fetch`."""
    return await refusal(db, me, commit) or taken_over(commit.session_id, None)


def parameters(commits: Sequence[Commit]) -> list[Value]:
    """Return the arrays of the statement. The sessions are in order, so that two groups do not wait for each other."""
    tables: tuple[list[tuple[Value | bytes, ...]], ...] = tuple([] for _ in _TABLES)
    sessions, messages, events, moves, creations, outcomes, charges = tables
    for commit in sorted(commits, key=_session_id):
        record, entry, creation = commit.record, commit.compaction, commit.creation
        name = escaped(record.session_id)
        peer = record.options.peer
        row = [escaped(each) if isinstance(each, str) else each for each in record_to_row(record)]
        marks = array(marks_of(record.labels))
        base = commit.base or (None, None)
        sessions.append((*row, marks, None if peer is None else peer.name, agent_of(record), commit.lease.epoch, *base))
        for message in commit.messages:
            messages.append((name, message.position, microseconds(message.created_at), message.body))
        for each in map(row_of, commit.events):
            events.append((name, each.seq, each.first_seq, microseconds(each.timestamp), each.body, each.cuts))
        if entry is not None:
            counts = entry.head, entry.messages_before, entry.messages_after
            summary = escaped(entry.summary)
            moves.append((name, entry.step, microseconds(entry.created_at), *counts, summary, entry.summary_tokens))
        if creation is not None:
            creations.append((name, escaped(creation.key), codec.encode(creation.params)))
        outcomes.extend((name, number, commit.inputs.outcome) for number in commit.inputs.numbers)
        for (_, hour, payer, model), sums in sums_of((commit,)).items():
            charges.append((name, hour, escaped(payer), escaped(model), *values_of(sums)))
    return arrays(tables, _TABLES)


def _of_turns(commits: Sequence[Commit]) -> list[Value]:
    """Return the arrays of the tool calls of open turns, and of what they wait for."""
    settling = [(escaped(each.session_id),) for each in commits if each.settles]
    calls = [
        (escaped(each.session_id), place, escaped(call_id), state, body)
        for each in commits
        for place, call_id, state, body in map(call_to_row, each.calls)
    ]
    waiting = [(escaped(each.session_id), *waits.values_of(wait)) for each in commits for wait in each.waits]
    return arrays((settling, calls, waiting), _OF_TURNS)


def arrays(tables: Sequence[Sequence[tuple[Value | bytes, ...]]], kinds: Sequence[Sequence[str]]) -> list[Value]:
    """Return the columns of tables of values as arrays; `kinds` has the types of the columns of each table."""
    found: list[Value] = []
    for table, columns in zip(tables, kinds, strict=True):
        found += [array(column) for column in (zip(*table, strict=True) if table else ((),) * len(columns))]
    return found


def marks_of(labels: Any) -> list[str]:
    """Return labels as the texts by which sessions are found."""
    return [codec.encode(list(each)).decode() for each in labels.items()] if labels else []


def _session_id(commit: Commit) -> str:
    return commit.session_id


async def refusal(db: Connection, me: int, commit: Commit) -> WarrenError | None:
    """Return the reason why the end of a turn was not stored; None if nothing speaks against it.

    Raises as `Connection.fetch`.
    """
    session_id, peer, creation = commit.session_id, commit.record.options.peer, commit.creation
    if creation is not None and await db.fetch(_KEY_USED, escaped(creation.key), commit.record.tenant):
        return key_used()
    if peer is not None and await db.fetch(_NAMESAKE, peer.name, commit.record.tenant, escaped(session_id)):
        return name_taken(peer.name)
    rows = await db.fetch(_STATE, escaped(session_id), me, commit.lease.epoch)
    if not rows:
        return None if commit.base is None else not_found(session_id)
    ((state, holder, mine, *there),) = rows
    if state == DELETED:
        return not_found(session_id)
    if not mine:
        return taken_over(session_id, None if holder is None else unescaped(holder))
    return None if commit.base in (None, tuple(there)) else built_on_sand(session_id)


async def was_stored(db: Connection, me: int, commit: Commit) -> WarrenError | None:
    """Return None if a group that is committed has stored this end of a turn, else its refusal.

    If this process still has the lease, the session is as its newest commit has left it. Of a session that was taken
    over since, a row of the turn tells. Raises as `Connection.fetch`.
    """
    rows = await db.fetch(_STATE, escaped(commit.session_id), me, commit.lease.epoch)
    if rows and rows[0][2] and rows[0][0] != DELETED:
        stored = rows[0][3:] == (commit.record.message_count, commit.record.last_seq)
        return None if stored else built_on_sand(commit.session_id)
    if commit.events:
        last = row_of(commit.events[-1])
        values = last.seq, microseconds(last.timestamp), last.body.decode()
        if await db.fetch(_EVENT_THERE, escaped(commit.session_id), *values):
            return None
    return await fenced(db, me, commit)
