"""Webhooks and their deliveries, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import apsw

from warren.conversation.webhooks import (
    KEPT_DEAD,
    KEPT_DELIVERED,
    KEPT_PENDING,
    OF_WEBHOOK,
    Candidate,
    Post,
    Webhook,
    choose,
)
from warren.storage.noticing import Notice
from warren.storage.operations import (
    Commit,
    DropWebhook,
    EndAttempt,
    PutWebhook,
    Resend,
    TakeDeliveries,
    TakenDeliveries,
    TidyDeliveries,
)
from warren.storage.queries import DeliveryList, NextDelivery, PendingDeliveries, WebhookList, WebhookRow
from warren.storage.refusals import no_webhook, too_many_webhooks
from warren.storage.results import Rows
from warren.storage.rows import (
    POST,
    TOO_MANY,
    WEBHOOK,
    corrupt,
    due_in,
    microseconds,
    post_in,
    post_to_row,
    shown,
    webhook_in,
    webhook_to_row,
)
from warren.storage.sqlite import audit, owned
from warren.storage.sqlite.bulk import execute_rows
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.reading import Reading

_WEBHOOK: Final = raw(WEBHOOK)
_DELIVERY: Final = raw(", ".join(f"d.{each.strip()}" for each in POST.split(",")))
_NUMBER: Final = "SELECT iif(typeof(hooks) = 'integer', hooks, NULL) FROM cluster"
_NEW_NUMBER: Final = "UPDATE cluster SET hooks = ?"
_NUMBERED: Final = "INSERT INTO cluster (hooks) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM cluster)"
_LISTENING: Final = f"SELECT {_WEBHOOK} FROM webhooks WHERE paused = 0"
_CREATED: Final = f"SELECT {_WEBHOOK} FROM webhooks WHERE tenant = ? AND creation = ?"
_COUNT: Final = "SELECT count(*) FROM webhooks WHERE tenant = ?"
_ADD: Final = f"INSERT INTO webhooks ({WEBHOOK}, session) VALUES (?,?,?,?,?,?,?,?)"
_CHANGE: Final = """
    UPDATE webhooks SET paused = ?3, failing = ?4, problem = ?5, body = ?6, session = ?7 WHERE id = ?1 AND tenant = ?2
    RETURNING key
"""
_TABLE: Final = owned.Table(_CREATED, _COUNT, _ADD, _CHANGE, webhook_to_row, webhook_in, no_webhook, too_many_webhooks)
_DROP: Final = "DELETE FROM webhooks WHERE id = ? AND tenant = ? RETURNING key"
_DROP_DELIVERIES: Final = "DELETE FROM deliveries WHERE webhook = ?"
_ADD_DELIVERIES: Final = f"INSERT INTO deliveries (session, {POST}) VALUES {{rows}}"
_TOLD: Final = "SELECT 1 FROM waits WHERE session = ? AND reason = ? AND wait_id = ? AND since = ?"
_HOLDERS: Final = "SELECT DISTINCT holder FROM deliveries WHERE due <= ? AND holder IS NOT NULL"
_DUE: Final = f"""
    SELECT d.key, {raw("d.id, d.webhook, w.tenant")}, w.failing IS NOT NULL
    FROM webhooks w CROSS JOIN deliveries d ON d.key IN (
        SELECT key FROM deliveries WHERE webhook = w.id AND due <= ?1
            AND (holder IS NULL OR holder NOT IN (SELECT value FROM json_each(?2)))
        ORDER BY due LIMIT {OF_WEBHOOK + 1})
    WHERE w.paused = 0 AND d.tenant = w.tenant ORDER BY d.due
"""
_TAKE: Final = "UPDATE deliveries SET holder = ? WHERE key = ?"
_TAKEN: Final = f"""
    SELECT {_DELIVERY}, {raw("session_id")} FROM deliveries d LEFT JOIN sessions s ON s.key = d.session WHERE d.key = ?
"""
_SET_ASIDE: Final = "UPDATE deliveries SET state = 'dead', due = NULL, holder = NULL, problem = ? WHERE key = ?"
_DAMAGED: Final = "UPDATE webhooks SET paused = 1, problem = ? WHERE id = ?"
_AFTER: Final = """
    SELECT min((SELECT min(due) FROM deliveries WHERE webhook = w.id AND due > ?)) FROM webhooks w WHERE paused = 0
"""
_NEXT: Final = """
    SELECT min((SELECT min(due) FROM deliveries WHERE webhook = w.id AND due IS NOT NULL)) FROM webhooks w
    WHERE paused = 0
"""
_ATTEMPTED: Final = """
    UPDATE deliveries SET state = ?3, due = ?4, attempts = ?5, attempted_at = ?6, status = ?7, problem = ?8, body = ?9,
        holder = NULL
    WHERE id = ?1 AND webhook = ?2 AND holder = ?10
"""
_FAILING: Final = "UPDATE webhooks SET failing = ?2 WHERE id = ?1 AND (failing IS NULL) = (?2 IS NOT NULL)"
_PAUSE: Final = "UPDATE webhooks SET paused = 1, problem = ?2 WHERE id = ?1 AND paused = 0"
_RESEND: Final = """
    UPDATE deliveries SET state = 'pending', due = ?4, attempts = 0, holder = NULL
    WHERE webhook = ?1 AND tenant = ?2 AND state = 'dead' AND body <> '' AND (?3 IS NULL OR id = ?3) RETURNING key
"""
_STATES: Final = "SELECT webhook, state, count(*) FROM deliveries GROUP BY webhook, state"
_ORPHANS: Final = "DELETE FROM deliveries WHERE webhook NOT IN (SELECT id FROM webhooks)"
_OVERFLOW: Final = """
    UPDATE deliveries SET state = 'dead', due = NULL, problem = ?2 WHERE webhook = ?1 AND state = 'pending'
        AND holder IS NULL AND key > (
            SELECT key FROM deliveries WHERE webhook = ?1 AND state = 'pending' ORDER BY key LIMIT 1 OFFSET ?3)
    RETURNING key
"""
_FORGET: Final = """
    DELETE FROM deliveries WHERE webhook = ?1 AND state = ?2 AND key <= (
        SELECT key FROM deliveries WHERE webhook = ?1 AND state = ?2 ORDER BY key DESC LIMIT 1 OFFSET ?3)
"""
_ROW: Final = f"SELECT {_WEBHOOK} FROM webhooks WHERE id = ? AND tenant = ?"
_LIST: Final = f"""
    SELECT {_WEBHOOK}, (SELECT count(*) FROM deliveries d WHERE d.webhook = webhooks.id AND d.state = 'pending'),
        (SELECT count(*) FROM deliveries d WHERE d.webhook = webhooks.id AND d.state = 'dead')
    FROM webhooks WHERE tenant = ?1 AND (?2 IS NULL OR id = ?2) AND (?3 IS NULL OR session =
        (SELECT key FROM sessions WHERE session_id = ?3)) ORDER BY key LIMIT ?4 OFFSET ?5
"""
_DELIVERIES: Final = f"""
    SELECT {_DELIVERY}, {raw("session_id")} FROM deliveries d LEFT JOIN sessions s ON s.key = d.session
    WHERE d.webhook = ?1 AND d.tenant = ?2 AND (?3 IS NULL OR d.state = ?3) ORDER BY d.key DESC LIMIT ?4 OFFSET ?5
"""
_PENDING: Final = "SELECT count(*) FROM deliveries WHERE state = 'pending'"


def look(db: apsw.Connection, holder: Holder) -> None:
    """Know the webhooks as this transaction has them."""
    number = db.execute(_NUMBER).get
    if number != holder.hooks.number:
        holder.hooks.read(number, db.execute(_LISTENING).fetchall())


def note(db: apsw.Connection, holder: Holder, turns: Sequence[tuple[int, Commit]]) -> None:
    """Write the deliveries of commits that are stored, each with the key of its session; before their waits are."""
    now, values = int(holder.clock() * 1e6), list[Any]()
    for session, turn in turns:
        for notice in holder.hooks.notices(turn):
            if _is_new(db, session, notice):
                name, webhook, tenant, kind, at, state, _, *rest = post_to_row(notice.delivery)
                values += session, name, webhook, tenant, kind, at, state, now, *rest
    if values:
        execute_rows(db, _ADD_DELIVERIES, 13, values)
        holder.hooks.noted += 1


def _is_new(db: apsw.Connection, session: int, notice: Notice) -> bool:
    wait = notice.wait
    return wait is None or db.execute(_TOLD, (session, *wait.key, microseconds(wait.since))).get is None


def _changed(db: apsw.Connection) -> None:
    """Have each process read the webhooks anew before its next commit."""
    db.execute(_NUMBERED)
    db.execute(_NEW_NUMBER, (secrets.randbits(62),))


def put(operation: PutWebhook, db: apsw.Connection, _holder: Holder) -> Webhook:
    """Write the row of a webhook."""
    stored = owned.put(operation, _TABLE, db)
    if stored is operation.thing:
        _changed(db)
    return stored


def drop(operation: DropWebhook, db: apsw.Connection, _holder: Holder) -> bool:
    """Remove the rows of a webhook."""
    if db.execute(_DROP, (operation.webhook_id, operation.tenant)).get is None:
        return False
    db.execute(_DROP_DELIVERIES, (operation.webhook_id,))
    _changed(db)
    audit.add(db, (operation.audit,))
    return True


def drop_of(db: apsw.Connection, session: int) -> None:
    """Remove the deliveries about a session, and the webhooks that are told of it alone."""
    db.execute("DELETE FROM deliveries WHERE session = ?", (session,))
    gone = db.execute("DELETE FROM webhooks WHERE session = ? RETURNING id", (session,)).fetchall()
    for row in gone:
        db.execute(_DROP_DELIVERIES, row)
    if gone:
        _changed(db)


def take(operation: TakeDeliveries, db: apsw.Connection, holder: Holder) -> TakenDeliveries:
    """Note this process as the one that attempts deliveries that are due; a damaged one is dead."""
    now = int(holder.clock() * 1e6)
    owners: list[Any] = [owner for (owner,) in db.execute(_HOLDERS, (now,)).fetchall() if owner != holder.key]
    alive = [owner for owner in owners if holder.rival(db, owner) is not None]
    rows: list[Any] = db.execute(_DUE, (now, json.dumps(alive))).fetchall()
    keys = {shown(each): key for key, each, *_ in rows}
    found = [Candidate(shown(each), shown(of), shown(tenant), bool(failing)) for _, each, of, tenant, failing in rows]
    chosen, more = choose(found, operation.at_work)
    due: list[tuple[Post, Webhook]] = []
    webhooks: dict[str, Webhook | None] = {}
    for each in chosen:
        key = keys[each.delivery_id]
        if each.webhook_id not in webhooks:
            webhooks[each.webhook_id] = _webhook(db, each)
        webhook = webhooks[each.webhook_id]
        *values, session_id = _one(db, _TAKEN, key)
        try:
            delivery = post_in(tuple(values), session_id)
        except ValueError as exc:
            db.execute(_SET_ASIDE, (f"it is damaged: {exc}", key))
            continue
        if webhook is not None:
            db.execute(_TAKE, (holder.key, key))
            due.append((delivery, webhook))
    return TakenDeliveries(due, more, due_in(db.execute(_AFTER, (now,)).get))


def _webhook(db: apsw.Connection, each: Candidate) -> Webhook | None:
    """Return the webhook of a delivery; None if it is damaged: it is paused then."""
    try:
        return webhook_in(_one(db, _ROW, each.webhook_id, each.tenant))
    except ValueError as exc:
        db.execute(_DAMAGED, (f"it is damaged: {exc}", each.webhook_id))
        _changed(db)
        return None


def _one(db: apsw.Connection, sql: str, *values: Any) -> tuple[Any, ...]:
    found: Any = db.execute(sql, values).fetchone()
    return tuple(found)


def end_attempt(operation: EndAttempt, db: apsw.Connection, holder: Holder) -> None:
    """Write what became of an attempt, and let the webhook know whether its deliveries fail."""
    delivery_id, webhook, _, _, _, *rest = post_to_row(operation.delivery)
    db.execute(_ATTEMPTED, (delivery_id, webhook, *rest, holder.key))
    failing = operation.failed_at
    db.execute(_FAILING, (webhook, None if failing is None else microseconds(failing)))
    if operation.pauses is not None:
        db.execute(_PAUSE, (webhook, operation.pauses))
        _changed(db)


def resend(operation: Resend, db: apsw.Connection, holder: Holder) -> int:
    """Let dead deliveries be due now."""
    values = operation.webhook_id, operation.tenant, operation.delivery_id, int(holder.clock() * 1e6)
    return len(db.execute(_RESEND, values).fetchall())


def tidy(_operation: TidyDeliveries, db: apsw.Connection, _holder: Holder) -> int:
    """Hold each webhook to the deliveries that it may have."""
    db.execute(_ORPHANS)
    dead = 0
    found: list[Any] = db.execute(_STATES).fetchall()
    for webhook, state, count in found:
        if state == "pending" and count > KEPT_PENDING:
            dead += len(db.execute(_OVERFLOW, (webhook, TOO_MANY, KEPT_PENDING - 1)).fetchall())
        for which, kept in (("dead", KEPT_DEAD), ("delivered", KEPT_DELIVERED)):
            if state == which and count > kept:
                db.execute(_FORGET, (webhook, which, kept))
    return dead


def row(at: Reading, query: WebhookRow) -> Webhook | None:
    """Return a webhook. Raises StoreError(cause="corrupt")."""
    found: Any = at.db.execute(_ROW, (query.webhook_id, query.tenant)).fetchone()
    try:
        return None if found is None else webhook_in(found)
    except ValueError as exc:
        raise corrupt(f"webhook {query.webhook_id}", exc) from exc


def page(at: Reading, query: WebhookList) -> Rows[tuple[Webhook, int, int]]:
    """Return webhooks of a tenant with the counts of their deliveries."""
    values = query.tenant, query.webhook_id, query.session_id, query.limit, query.offset
    return Rows(at.db.execute(_LIST, values).fetchall(), _listed, lambda row: f"webhook {shown(row[0])}")


def deliveries(at: Reading, query: DeliveryList) -> Rows[Post]:
    """Return deliveries of a webhook."""
    values = query.webhook_id, query.tenant, query.state, query.limit, query.offset
    found: list[Any] = at.db.execute(_DELIVERIES, values).fetchall()
    return Rows(found, lambda row: post_in(row[:-1], row[-1]), lambda row: f"delivery {shown(row[0])}")


def next_due(at: Reading, _query: NextDelivery) -> datetime | None:
    """Return the earliest time at which a delivery is due."""
    return due_in(at.db.execute(_NEXT).get)


def pending(at: Reading, _query: PendingDeliveries) -> int:
    """Return how many deliveries wait for an attempt."""
    found: int = at.db.execute(_PENDING).get
    return found


def _listed(row: tuple[Any, ...]) -> tuple[Webhook, int, int]:
    *webhook, waiting, dead = row
    return webhook_in(tuple(webhook)), waiting, dead
