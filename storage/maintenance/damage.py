"""Rows that cannot be read: a scan for them, and their removal into a file, so that their sessions go on."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import apsw

from warren.base.ids import new_session_id
from warren.base.principals import TENANT
from warren.base.values import frozen
from warren.conversation import codec, log_rows
from warren.conversation.attachments import SHA256
from warren.conversation.records import EventRow
from warren.storage import auditing, ledger, rows
from warren.storage.membership import Status
from warren.storage.sqlite.audit import removable
from warren.storage.sqlite.columns import BEGINS_TURN, NEXT_CHANGE, raw
from warren.storage.sqlite.database import version_of
from warren.storage.sqlite.file import SESSION_STORE
from warren.storage.sqlite.inbox import look
from warren.storage.standins import NO_SUMMARY, stand_in

FILE: Final = "set-aside.jsonl"
"""The file beside the store that gets the rows that were set aside."""
WITH_TURNS: Final = 13
"""The first version of the schema with open turns."""
WITH_WAITS: Final = 14
"""The first version of the schema in which a turn can wait without a task."""
WITH_CHILDREN: Final = 17
WITH_AGENTS: Final = 18
"""The first version of the schema with sessions that work for others."""
NO_TENANT: Final = "lost-and-found"
"""The tenant that a session gets if nobody can tell whose it was: none that has callers."""


@frozen
class BadRow:
    """A row that cannot be read.

    Attributes:
        table: the table.
        rowid: the row's number in it.
        session: the key of its session, None if it has none.
        session_id: its session's id, for people.
        holder: the key of the process that holds the session.
        problem: the reason why it cannot be read.
    """

    table: str
    rowid: int
    session: int | None
    session_id: str | None
    holder: int | None
    problem: str


@frozen
class _Table:
    """How the rows of a table are read.

    Attributes:
        columns: SQL for the columns that `check` gets.
        check: raises ValueError or StoreError for a row that cannot be read.
        source: the rows; each belongs to the session of its column `session`.
    """

    columns: str
    check: Callable[[tuple[Any, ...]], object]
    source: str


def _check_session(row: tuple[Any, ...]) -> None:
    *record, holder, epoch, change, messages_from, events_after, peer, delegated_by, agent = row
    found = rows.row_to_record(tuple(record))
    if not TENANT.fullmatch(found.tenant):
        raise ValueError("tenant is no name of a tenant")
    *_, turn, wakes = record
    rows.turn_in(turn, found.message_count)
    if wakes is not None:
        rows.time_in(wakes, "wakes")
        if turn is None:
            raise ValueError("wakes is there without an open turn")
    if holder is not None:
        rows.number_in(holder, "holder")
    for name, value in (("epoch", epoch), ("change", change), ("events_after", events_after)):
        rows.number_in(value, name)
    rows.number_in(messages_from, "messages_from")
    if peer is not None:
        rows.text_in(peer, "peer")
    if delegated_by is not None:
        rows.text_in(delegated_by, "delegated_by")
    if agent is not None:
        rows.text_in(agent, "agent")


def _check_message(row: tuple[Any, ...]) -> None:
    rows.number_in(row[0], "position")
    rows.message(row)


def _check_event(row: tuple[Any, ...]) -> None:
    rows.number_in(row[0], "seq")
    log_rows.read(rows.event(row))


def _check_input(row: tuple[Any, ...]) -> None:
    """Check all but the body of an input that waits, which its session passes over by itself."""
    said_id, key, starts, notice, outcome, not_before = row
    rows.text_in(said_id, "id")
    rows.number_in(starts, "starts")
    rows.number_in(notice, "notice")
    if not_before is not None:
        rows.time_in(not_before, "not_before")
    if key is not None:
        rows.text_in(key, "key")
    if outcome is not None:
        codec.decode_stored(dict[str, Any], rows.bytes_in(outcome, "outcome") or b"{}")


def _check_wait(row: tuple[Any, ...]) -> None:
    tenant, *wait = row
    if not TENANT.fullmatch(rows.text_in(tenant, "tenant")):
        raise ValueError("tenant is no name of a tenant")
    rows.wait_in(tuple(wait))


def _check_holder(row: tuple[Any, ...]) -> None:
    rows.text_in(row[0], "name")
    rows.number_in(row[1], "expires_at")
    rows.number_in(row[2], "key")
    if row[3] is not None:
        codec.decode_stored(Status, rows.bytes_in(row[3], "status"))
    rows.number_in(row[4], "leaves")


def _check_usage(row: tuple[Any, ...]) -> None:
    tenant, hour, payer, model, holder, *figures = row
    if not TENANT.fullmatch(rows.text_in(tenant, "tenant")):
        raise ValueError("tenant is no name of a tenant")
    rows.time_in(hour, "hour")
    rows.text_in(payer, "payer")
    rows.text_in(model, "model")
    rows.number_in(holder, "holder")
    ledger.figures_in(figures)


def _check_schedule(row: tuple[Any, ...]) -> None:
    session, holder, *schedule = row
    for name, number in (("session", session), ("holder", holder)):
        if number is not None:
            rows.number_in(number, name)
    rows.schedule_in(tuple(schedule))


def _check_run(row: tuple[Any, ...]) -> None:
    session, schedule, tenant, due, body = row
    rows.number_in(schedule, "schedule")
    if session is not None:
        rows.number_in(session, "session")
    if not TENANT.fullmatch(rows.text_in(tenant, "tenant")):
        raise ValueError("tenant is no name of a tenant")
    rows.run_in(due, body)


def _check_trigger(row: tuple[Any, ...]) -> None:
    session, *trigger = row
    if session is not None:
        rows.number_in(session, "session")
    rows.trigger_in(tuple(trigger))


def _check_delivery(row: tuple[Any, ...]) -> None:
    session, trigger, tenant, *delivery = row
    rows.number_in(trigger, "trigger_key")
    if session is not None:
        rows.number_in(session, "session")
    if not TENANT.fullmatch(rows.text_in(tenant, "tenant")):
        raise ValueError("tenant is no name of a tenant")
    rows.delivery_in(tuple(delivery))


def _check_webhook(row: tuple[Any, ...]) -> None:
    session, *webhook = row
    if session is not None:
        rows.number_in(session, "session")
    if not TENANT.fullmatch(rows.webhook_in(tuple(webhook)).tenant):
        raise ValueError("tenant is no name of a tenant")


def _check_post(row: tuple[Any, ...]) -> None:
    holder, *delivery = row
    if holder is not None:
        rows.number_in(holder, "holder")
    if not TENANT.fullmatch(rows.post_in(tuple(delivery), b"").tenant):
        raise ValueError("tenant is no name of a tenant")


def _check_agent(row: tuple[Any, ...]) -> None:
    if not TENANT.fullmatch(rows.agent_in(row).tenant):
        raise ValueError("tenant is no name of a tenant")


def _check_blob(row: tuple[Any, ...]) -> None:
    tenant, hashed, kind = row
    if not TENANT.fullmatch(rows.text_in(tenant, "tenant")):
        raise ValueError("tenant is no name of a tenant")
    if not SHA256.fullmatch(rows.text_in(hashed, "sha256")):
        raise ValueError("sha256 is no hash")
    if kind != "blob":
        raise ValueError("body is not bytes")


_OF_SESSION: Final = "holder, epoch, change, messages_from, events_after, peer, delegated_by, agent"
_BELONGS: Final = f"FROM {{}} WHERE session IN (SELECT key FROM sessions WHERE state <> {rows.DELETED})"
_BESIDE: Final = "FROM (SELECT {}, NULL AS session FROM {})"
_TABLES: Final[Mapping[str, _Table]] = {
    "messages": _Table(raw("position, created_at, body"), _check_message, _BELONGS.format("messages")),
    "events": _Table(raw("seq, first_seq, timestamp, body, cuts"), _check_event, _BELONGS.format("events")),
    "compactions": _Table(raw(rows.COMPACTION), rows.compaction, _BELONGS.format("compactions")),
    "inbox": _Table(raw("id, key, starts, notice, outcome, not_before"), _check_input, _BELONGS.format("inbox")),
    "calls": _Table(raw(rows.CALL), rows.call_in, _BELONGS.format("calls")),
    "waits": _Table(raw(f"tenant, {rows.WAIT}"), _check_wait, _BELONGS.format("waits")),
    "schedules": _Table(raw(f"session, holder, {rows.SCHEDULE}"), _check_schedule, "FROM schedules"),
    "schedule_runs": _Table(raw("session, schedule, tenant, due, body"), _check_run, "FROM schedule_runs"),
    "triggers": _Table(raw(f"session, {rows.TRIGGER}"), _check_trigger, "FROM triggers"),
    "trigger_deliveries": _Table(
        raw(f"session, trigger_key, tenant, {rows.DELIVERY}"), _check_delivery, "FROM trigger_deliveries"
    ),
    "webhooks": _Table(raw(f"session, {rows.WEBHOOK}"), _check_webhook, "FROM webhooks"),
    "deliveries": _Table(raw(f"holder, {rows.POST}"), _check_post, _BELONGS.format("deliveries")),
    "agents": _Table(raw(rows.AGENT), _check_agent, _BESIDE.format("*", "agents")),
    "holders": _Table(raw("name, expires_at, key, status, leaves"), _check_holder, _BESIDE.format("*", "holders")),
    "usage": _Table(raw(f"{ledger.KEY}, {ledger.COLUMNS}"), _check_usage, _BESIDE.format("rowid, *", "usage")),
    "blobs": _Table(f"{raw('tenant, sha256')}, typeof(body)", _check_blob, _BESIDE.format("*", "blobs")),
    "audit": _Table(raw(f"number, {auditing.COLUMNS}"), auditing.entry_of, _BESIDE.format("*", "audit")),
    "sessions": _Table(
        raw(f"{rows.COLUMNS}, {_OF_SESSION}"),
        _check_session,
        f"FROM (SELECT *, key AS session FROM sessions) WHERE state IS NOT {rows.DELETED}",
    ),
}
"""In the order in which they are set aside: a session's row is made anew from its other rows."""
_OF_TURN: Final = "SELECT state IS NOT 'settled' AND reason IS NOT 'background' FROM waits WHERE key = ?"
_ROWIDS: Final = {
    "inbox": "number",
    "holders": "key",
    "audit": "number",
    "blobs": "key",
    "sessions": "key",
    "waits": "key",
    "schedules": "key",
    "triggers": "key",
    "webhooks": "key",
    "deliveries": "key",
    "agents": "key",
}


def scan(db: apsw.Connection) -> Iterator[BadRow]:
    """Yield the rows that cannot be read; reads every row of the store. Raises apsw.Error."""
    for name, table in _TABLES.items():
        rowid = _ROWIDS.get(name, "rowid")
        for key, session, *row in db.execute(f"SELECT {rowid}, {raw('session')}, {table.columns} {table.source}"):
            try:
                table.check(tuple(row))
            except Exception as exc:  # noqa: BLE001 - whatever a damaged value leads to, the row cannot be read
                yield _bad(db, name, key, session, str(exc))


_ADDED: Final[tuple[tuple[int, Mapping[str, str]], ...]] = (
    (2, {"holder": "NULL", "epoch": "0", "change": "0", "messages_from": "0", "events_after": "0"}),
    (3, {"peer": "NULL"}),
    (4, {"title": "NULL"}),
    (7, {"tenant": "'default'", "owner": "'local'"}),
    (WITH_TURNS, {"turn": "NULL"}),
    (WITH_WAITS, {"wakes": "NULL"}),
    (WITH_CHILDREN, {"delegated_by": "NULL"}),
    (WITH_AGENTS, {"agent": "NULL"}),
)
"""The columns of sessions that came with a version of the schema, and the values that older rows get."""


def sessions_in(db: apsw.Connection) -> str:
    """Return the source of the rows of sessions; a file of an older version, which is only read, lacks columns."""
    version = version_of(db, SESSION_STORE)
    missing = [f"{value} AS {name}" for since, columns in _ADDED for name, value in columns.items() if version < since]
    return f"(SELECT *, {', '.join(missing)} FROM sessions)" if missing else "sessions"


def readable_session(db: apsw.Connection, key: int) -> str | None:
    """Return the id of a session with a readable row, None for a damaged row. Raises apsw.Error."""
    query = f"SELECT {_TABLES['sessions'].columns} FROM {sessions_in(db)} WHERE key = ?"
    row: Any = db.execute(query, (key,)).fetchone()
    try:
        _check_session(row)
        return rows.text_in(row[0], "session_id")
    except Exception:  # noqa: BLE001 - as in `scan`
        return None


def _bad(db: apsw.Connection, table: str, rowid: int, session: Any, problem: str) -> BadRow:
    owner: Any = db.execute(f"SELECT {raw('session_id, holder')} FROM sessions WHERE key = ?", (session,)).fetchone()
    session_id, holder = (None, None) if owner is None else owner
    return BadRow(table, rowid, session, None if owner is None else rows.shown(session_id), holder, problem)


def set_aside(db: apsw.Connection, folder: Path, row: BadRow) -> None:
    """Write a row to the file beside the store, and repair or remove the row; inside a transaction.

    A message has a stand-in, an event a marker, a summary a word that it is missing; a session's record is made of its
    other rows, as far as they tell. The bytes of a file get their hash and the tenant of their session. Without one of
    its tool calls, or what one waits for, nobody can go on with an open turn: all of them go. An input, a row of the
    ledger, an entry of the audit and that of a dead process have nothing in their place.

    Raises OSError and apsw.Error.
    """
    rowid = _ROWIDS.get(row.table, "rowid")
    where = f"session = {row.session}" if row.table == "calls" else f"{rowid} = {row.rowid}"
    of_turn = row.table == "calls" or (row.table == "waits" and bool(db.execute(_OF_TURN, (row.rowid,)).get))
    keep(db, folder, row.table, where, row.problem)
    if row.table == "messages":
        _replace_message(db, row)
    elif row.table == "events":
        _replace_event(db, row)
    elif row.table == "compactions":
        _replace_compaction(db, row)
    elif row.table == "sessions":
        _replace_session(db, row)
    elif row.table == "blobs":
        _replace_blob(db, row)
    else:
        with removable(db) if row.table == "audit" else nullcontext():
            db.execute(f"DELETE FROM {row.table} WHERE {where}")
    if row.table == "inbox" and row.session is not None:
        look(db, row.session)
    if of_turn:  # what it leaves of its calls and waits goes as that of any turn that is over
        db.execute(
            f"UPDATE sessions SET turn = NULL, wakes = NULL, change = {NEXT_CHANGE} WHERE key = ?", (row.session,)
        )


def keep(db: apsw.Connection, folder: Path, table: str, where: str, problem: str) -> int:
    """Append rows to the file of those that were set aside; return how many are on the disk now.

    Raises OSError and apsw.Error.
    """
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    columns = ", ".join(f"typeof({name}), CAST({name} AS BLOB)" for name in names)
    lines = []
    for values in db.execute(f"SELECT {columns} FROM {table} WHERE {where}"):
        row = {name: _plain(*pair) for name, *pair in zip(names, values[::2], values[1::2], strict=True)}
        now = datetime.now(UTC)
        lines.append(codec.encode({"table": table, "set_aside": now, "problem": problem, "row": row}) + b"\n")
    if lines:
        descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
    return len(lines)


def _plain(kind: str, value: bytes | None) -> Any:
    """Return a column's value as JSON can hold it; bytes that are no text as `{"hex": …}`."""
    if value is None:
        return None
    if kind == "integer":
        return int(value)
    try:
        return value.decode() if kind != "blob" else {"hex": value.hex()}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _now() -> int:
    return rows.microseconds(datetime.now(UTC))


def _good(value: Any, most: int = rows.MAX_NUMBER) -> bool:
    return type(value) is int and 0 <= value <= most


def _good_time(value: Any) -> bool:
    try:
        return type(value) is int and bool(rows.moment(value))
    except OverflowError:
        return False


def _replace_message(db: apsw.Connection, row: BadRow) -> None:
    columns = raw("position, created_at")
    position, added = db.execute(f"SELECT {columns} FROM messages WHERE rowid = ?", (row.rowid,)).get
    db.execute("DELETE FROM messages WHERE rowid = ?", (row.rowid,))
    count = db.execute(f"SELECT {raw('message_count')} FROM sessions WHERE key = ?", (row.session,)).get
    # Its own place, or the one that it has left when its position was damaged.
    places = [position] if _good(position) else _missing(db, row.session, count if _good(count, 10**9) else 0)
    for place in places:
        values = (row.session, place, added if _good_time(added) else _now(), _stand_in(db, row.session, place))
        db.execute("INSERT OR IGNORE INTO messages (session, position, created_at, body) VALUES (?,?,?,?)", values)


def _missing(db: apsw.Connection, session: int | None, count: int) -> list[int]:
    first = db.execute(f"SELECT {raw('messages_from')} FROM sessions WHERE key = ?", (session,)).get
    there = {at for (at,) in db.execute(f"SELECT {raw('position')} FROM messages WHERE session = ?", (session,))}
    wanted = {0, *range(first if _good(first, count) else 0, count)} if count else set()
    return sorted(wanted - there)


def _stand_in(db: apsw.Connection, session: int | None, position: int) -> str:
    def neighbour(at: int) -> bytes | None:
        query = f"SELECT {raw('position, created_at, body')} FROM messages WHERE session = ? AND position = ?"
        found: Any = db.execute(query, (session, at)).fetchone()
        try:
            return None if found is None else rows.message(found).body
        except ValueError:
            return None

    return codec.encode(stand_in(neighbour(position - 1), neighbour(position + 1))).decode()


def _replace_event(db: apsw.Connection, row: BadRow) -> None:
    columns = raw("seq, first_seq, timestamp")
    seq, first_seq, at = db.execute(f"SELECT {columns} FROM events WHERE rowid = ?", (row.rowid,)).get
    if not _good(seq):
        db.execute("DELETE FROM events WHERE rowid = ?", (row.rowid,))
        return
    first = first_seq if _good(first_seq, seq) else seq
    body = codec.encode(log_rows.unreadable(EventRow(first, seq, rows.moment(0), b""))).decode()
    change = "UPDATE events SET first_seq = ?, timestamp = ?, body = ?, cuts = NULL WHERE rowid = ?"
    db.execute(change, (seq, at if _good_time(at) else _now(), body, row.rowid))


def _replace_compaction(db: apsw.Connection, row: BadRow) -> None:
    found = db.execute(f"SELECT {raw(rows.COMPACTION)} FROM compactions WHERE rowid = ?", (row.rowid,)).get
    step, at, head, before, after, summary, tokens = found
    try:
        text = rows.text_in(summary, "summary")
    except ValueError:
        text = NO_SUMMARY
    if not _good(head):
        head = db.execute(f"SELECT {raw('head')} FROM sessions WHERE key = ?", (row.session,)).get
    numbers = [value if _good(value) else 0 for value in (step, head, before, after, tokens)]
    step, head, before, after, tokens = numbers
    names = ", ".join(f"{name.strip()} = ?" for name in rows.COMPACTION.split(","))
    values = (step, at if _good_time(at) else _now(), head, before, after, text, tokens, row.rowid)
    db.execute(f"UPDATE compactions SET {names} WHERE rowid = ?", values)


_ANEW: Final[Mapping[str, str]] = {
    "state": str(rows.OPEN),
    "model": "'unknown'",
    "tenant": f"coalesce((SELECT creations.tenant FROM creations WHERE session = sessions.key), '{NO_TENANT}')",
    "owner": "'unknown'",
    "turns": f"(SELECT count(*) FROM messages WHERE session = key AND {BEGINS_TURN})",
    "steps": "(SELECT coalesce(max(step), 0) FROM compactions WHERE session = key)",
    "message_count": "(SELECT coalesce(max(position) + 1, 0) FROM messages WHERE session = key)",
    "last_seq": f"(SELECT coalesce(max(seq), 0) + {rows.SEQ_STRIDE} FROM events WHERE session = key)",
    "head": "coalesce((SELECT compactions.head FROM compactions WHERE session = key"
    " ORDER BY compactions.rowid DESC LIMIT 1), 0)",
    "labels": "'{}'",
    "details": "'{}'",
    "title": "NULL",
    "turn": "NULL",
    "wakes": "NULL",
    "holder": "NULL",
    "epoch": "1",
    "change": NEXT_CHANGE,
    "messages_from": "(SELECT iif(min(position) > 1, min(position), 0) FROM messages"
    f" WHERE session = key AND position > 0 AND NOT {rows.INSTRUCTS})",
    "events_after": "(SELECT coalesce(min(first_seq) - 1, 0) FROM events WHERE session = key)",
}
"""SQL that restores a damaged column from the session's other rows; other columns get their defaults."""
_COUNTS: Final = ("turns", "steps", "message_count", "last_seq", "head", "epoch", "change", "messages_from")


def _replace_session(db: apsw.Connection, row: BadRow) -> None:
    names = [name.strip() for name in f"{rows.COLUMNS}, {_OF_SESSION}".split(",")]
    found = db.execute(f"SELECT {raw(', '.join(names))} FROM sessions WHERE key = ?", (row.rowid,)).get
    values = dict(zip(names, found, strict=True))
    bad = [name for name in (*_COUNTS, "events_after") if not _good(values[name])]
    bad += [name for name in ("labels", "details") if not _good_object(values, name)]
    bad += [] if _good_turn(values) else ["turn", "wakes"]
    bad += [] if values["wakes"] is None or (_good_time(values["wakes"]) and values["turn"] is not None) else ["wakes"]
    bad += ["state"] if values["state"] not in (0, 1) else []
    bad += ["holder"] if values["holder"] is not None and not _good(values["holder"]) else []
    bad += [name for name in ("model", "owner") if not _good_text(values[name])]
    if not (_good_text(values["tenant"]) and TENANT.fullmatch(rows.text_in(values["tenant"], ""))):
        bad.append("tenant")
    if values["title"] is not None and not _good_text(values["title"]):
        bad.append("title")
    changes = [f"{name} = {_ANEW[name]}" for name in bad]
    changes += [f"{name} = {_now()}" for name in ("created_at", "updated_at") if not _good_time(values[name])]
    changes += [] if _good_text(values["session_id"]) else [f"session_id = '{new_session_id()}'"]
    for name, index in (("delegated_by", "sessions_delegated"), ("agent", "sessions_of_agent")):
        if values[name] is not None and not _good_text(values[name]):
            db.execute(f"REINDEX {index}")  # a value of another type is not found there to be replaced
            db.execute(f"UPDATE sessions SET {name} = NULL WHERE key = ?", (row.rowid,))  # no other change is taken
    # One by one: a column may be restored from another one that was damaged.
    for change in changes:
        db.execute(f"UPDATE sessions SET {change} WHERE key = ?", (row.rowid,))
    db.execute(
        "DELETE FROM calls WHERE session = (SELECT key FROM sessions WHERE key = ? AND turn IS NULL)", (row.rowid,)
    )
    db.execute("UPDATE sessions SET peer = details ->> '$.peer.name' WHERE key = ?", (row.rowid,))
    parent = "details ->> '$.delegation.session_id'"
    agent = "details ->> '$.agent.name'"
    db.execute(f"UPDATE sessions SET delegated_by = {parent}, agent = {agent} WHERE key = ?", (row.rowid,))
    db.execute(
        "UPDATE waits SET tenant = (SELECT tenant FROM sessions WHERE key = ?1) WHERE session = ?1", (row.rowid,)
    )


_MEND_BLOB: Final = """
    UPDATE OR IGNORE blobs SET sha256 = ?2, tenant = (
        SELECT s.tenant FROM attachments a JOIN sessions s ON s.key = a.session WHERE a.blob = ?1
    ) WHERE key = ?1
"""


def _replace_blob(db: apsw.Connection, row: BadRow) -> None:
    query = "SELECT CASE typeof(body) WHEN 'blob' THEN body END FROM blobs WHERE key = ?"
    body: bytes | None = db.execute(query, (row.rowid,)).get
    if body is not None:
        db.execute(_MEND_BLOB, (row.rowid, sha256(body).hexdigest()))
        if db.changes():
            return
    db.execute("DELETE FROM attachments WHERE blob = ?", (row.rowid,))
    db.execute("DELETE FROM blobs WHERE key = ?", (row.rowid,))


def _good_turn(values: Mapping[str, Any]) -> bool:
    count = values["message_count"]
    try:
        rows.turn_in(values["turn"], count if _good(count) else rows.MAX_NUMBER)
    except ValueError:
        return False
    return True


def _good_text(value: Any) -> bool:
    try:
        return bool(rows.text_in(value, "")) or True
    except ValueError:
        return False


def _good_object(values: Mapping[str, Any], name: str) -> bool:
    """Tell whether a record can be read with this column, everything else being well."""
    sample = dict.fromkeys((each.strip() for each in rows.COLUMNS.split(",")), 0) | {
        "session_id": b"",
        "model": b"",
        "tenant": b"",
        "owner": b"",
        "turn": None,
        "wakes": None,
        "title": None,
        "labels": b"{}",
        "details": b"{}",
    }
    try:
        rows.row_to_record(tuple((sample | {name: values[name]}).values()))
    except Exception:  # noqa: BLE001 - as in `scan`
        return False
    return True
