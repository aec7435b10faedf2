"""Webhooks and their deliveries, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import secrets
from datetime import datetime
from typing import Final

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
from warren.storage import operations as ops
from warren.storage.noticing import Hooks, Notice
from warren.storage.postgres import audit, owned
from warren.storage.postgres.driver import Connection, Row, Value, escaped, unescaped
from warren.storage.postgres.lease import Holder, alive
from warren.storage.postgres.reading import Reading
from warren.storage.postgres.waits import NOW
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

_WEBHOOK: Final = ", ".join(f"w.{each}" for each in WEBHOOK.split(", "))
_DELIVERY: Final = ", ".join(f"d.{each}" for each in POST.split(", "))
# One statement, which sees the number and the webhooks of one moment.
_LISTENING: Final = f"""
    SELECT hooks, {_WEBHOOK} FROM warren.meta LEFT JOIN warren.webhooks w ON w.paused = 0
"""
_NEW_NUMBER: Final = "UPDATE warren.meta SET hooks = $1::int8"
_CREATED: Final = f"SELECT {WEBHOOK} FROM warren.webhooks WHERE tenant = $1 AND creation = $2"
_COUNT: Final = "SELECT count(*) FROM warren.webhooks WHERE tenant = $1"
_ADD: Final = f"""
    INSERT INTO warren.webhooks ({WEBHOOK}, session) VALUES ($1, $2, $3, $4::int, $5::int8, $6, $7, $8::int8)
    ON CONFLICT (tenant, creation) WHERE creation IS NOT NULL DO NOTHING RETURNING key
"""
_CHANGE: Final = """
    UPDATE warren.webhooks SET paused = $3::int, failing = $4::int8, problem = $5, body = $6, session = $7::int8
    WHERE id = $1 AND tenant = $2 RETURNING key
"""
_DROP: Final = """
    WITH gone AS (DELETE FROM warren.webhooks WHERE id = $1 AND tenant = $2 RETURNING id),
        deliveries AS (DELETE FROM warren.deliveries WHERE webhook IN (SELECT id FROM gone))
    SELECT id FROM gone
"""
_DROP_OF: Final = """
    WITH gone AS (DELETE FROM warren.webhooks WHERE session = $1::int8 RETURNING id),
        deliveries AS (DELETE FROM warren.deliveries WHERE session = $1::int8 OR webhook IN (SELECT id FROM gone))
    SELECT id FROM gone
"""
TYPES: Final = (
    *("text", "text", "text", "text", "text", "int8", "text", "int8", "int8", "int8", "int8", "text", "text"),
    *("text", "text", "int8"),
)
"""The types of the values of a notice: the session, `POST`, and what tells the wait that it is about."""
_NAMES: Final = f"session_id, {POST}, wait_reason, wait_id, wait_since"
_ADDED: Final = ", ".join(f"given.{each}" if each != "due" else NOW for each in POST.split(", "))
NOTED: Final = f"""
noted AS (
    INSERT INTO warren.deliveries (session, {POST})
    SELECT saved.session, {_ADDED} FROM unnest({{notices}}) AS given({_NAMES})
    JOIN saved ON saved.session_id = given.session_id
    WHERE wait_id IS NULL OR NOT EXISTS (
        SELECT FROM warren.waits w WHERE w.session = saved.session AND w.reason = wait_reason
            AND w.wait_id = given.wait_id AND w.since = wait_since)
)"""
"""The part of a statement of commits that writes their notices."""
_TAKE: Final = f"""
    WITH others AS MATERIALIZED (
        SELECT h.key FROM warren.holders h WHERE h.key IS DISTINCT FROM $1::int AND {alive("$1::int")}
    )
    SELECT d.key, d.id, w.id, w.tenant, w.failing IS NOT NULL
    FROM warren.webhooks w CROSS JOIN LATERAL (
        SELECT p.key, p.id, p.due FROM warren.deliveries p WHERE p.webhook = w.id AND p.tenant = w.tenant
            AND p.due <= {NOW} AND NOT EXISTS (SELECT FROM others WHERE others.key = p.holder)
        ORDER BY p.due LIMIT {OF_WEBHOOK + 1}
    ) d WHERE w.paused = 0 ORDER BY d.due
"""
# Another process may have taken it since, or have ended an attempt.
_TAKEN: Final = f"""
    UPDATE warren.deliveries d SET holder = $2::int WHERE key = $1::int8 AND due <= {NOW} AND (
        holder IS NULL OR holder = $2::int OR NOT EXISTS (
            SELECT FROM warren.holders h WHERE h.key = d.holder AND {alive("$2::int")}))
    RETURNING {_DELIVERY}, (SELECT session_id FROM warren.sessions s WHERE s.key = d.session)
"""
_SET_ASIDE: Final = """
    UPDATE warren.deliveries SET state = 'dead', due = NULL, holder = NULL, problem = $2 WHERE key = $1::int8
"""
_AFTER: Final = f"""
    SELECT min(d.due) FROM warren.webhooks w CROSS JOIN LATERAL (
        SELECT due FROM warren.deliveries p WHERE p.webhook = w.id AND p.due > {NOW} ORDER BY due LIMIT 1
    ) d WHERE w.paused = 0
"""
_NEXT: Final = """
    SELECT min(d.due) FROM warren.webhooks w CROSS JOIN LATERAL (
        SELECT due FROM warren.deliveries p WHERE p.webhook = w.id AND p.due IS NOT NULL ORDER BY due LIMIT 1
    ) d WHERE w.paused = 0
"""
_ATTEMPTED: Final = """
    UPDATE warren.deliveries SET state = $3, due = $4::int8, attempts = $5::int8, attempted_at = $6::int8,
        status = $7::int8, problem = $8, body = $9, holder = NULL
    WHERE id = $1 AND webhook = $2 AND holder = $10::int
"""
_FAILING: Final = """
    UPDATE warren.webhooks SET failing = $2::int8 WHERE id = $1 AND (failing IS NULL) = ($2::int8 IS NOT NULL)
"""
_PAUSE: Final = "UPDATE warren.webhooks SET paused = 1, problem = $2 WHERE id = $1 AND paused = 0"
_RESEND: Final = f"""
    UPDATE warren.deliveries SET state = 'pending', due = {NOW}, attempts = 0, holder = NULL
    WHERE webhook = $1 AND tenant = $2 AND state = 'dead' AND body <> '' AND ($3::text IS NULL OR id = $3)
    RETURNING key
"""
_ORPHANS: Final = (
    "DELETE FROM warren.deliveries d WHERE NOT EXISTS (SELECT FROM warren.webhooks w WHERE w.id = d.webhook)"
)
_STATES: Final = "SELECT webhook, state, count(*) FROM warren.deliveries GROUP BY webhook, state"
_OVERFLOW: Final = """
    UPDATE warren.deliveries SET state = 'dead', due = NULL, problem = $2 WHERE webhook = $1 AND state = 'pending'
        AND holder IS NULL AND key > (SELECT key FROM warren.deliveries
            WHERE webhook = $1 AND state = 'pending' ORDER BY key LIMIT 1 OFFSET $3::int8)
    RETURNING key
"""
_FORGET: Final = """
    DELETE FROM warren.deliveries WHERE webhook = $1 AND state = $2 AND key <= (SELECT key FROM warren.deliveries
        WHERE webhook = $1 AND state = $2 ORDER BY key DESC LIMIT 1 OFFSET $3::int8)
"""
_ROW: Final = f"SELECT {WEBHOOK} FROM warren.webhooks WHERE id = $1 AND tenant = $2"
_LIST: Final = f"""
    SELECT {_WEBHOOK},
        (SELECT count(*) FROM warren.deliveries d WHERE d.webhook = w.id AND d.state = 'pending'),
        (SELECT count(*) FROM warren.deliveries d WHERE d.webhook = w.id AND d.state = 'dead')
    FROM warren.webhooks w WHERE tenant = $1 AND ($2::text IS NULL OR id = $2)
        AND ($3::text IS NULL OR session = (SELECT s.key FROM warren.sessions s WHERE session_id = $3))
    ORDER BY key LIMIT $4::int8 OFFSET $5::int8
"""
_DELIVERIES: Final = f"""
    SELECT {_DELIVERY}, (SELECT session_id FROM warren.sessions s WHERE s.key = d.session)
    FROM warren.deliveries d WHERE d.webhook = $1 AND d.tenant = $2 AND ($3::text IS NULL OR d.state = $3)
    ORDER BY d.key DESC LIMIT $4::int8 OFFSET $5::int8
"""
_PENDING: Final = "SELECT count(*) FROM warren.deliveries WHERE state = 'pending'"


async def look(db: Connection, hooks: Hooks) -> None:
    """Know the webhooks as the store has them now."""
    rows = await db.fetch(_LISTENING)
    hooks.read(rows[0][0], [_plain(row) for _, *row in rows if row[0] is not None])


def values_of(session_id: str, notice: Notice) -> tuple[Value, ...]:
    """Return the values of a notice, in the order of `TYPES`."""
    wait = notice.wait
    about = (None, None, None) if wait is None else (wait.reason, escaped(wait.wait_id), microseconds(wait.since))
    return (escaped(session_id), *_values(notice.delivery), *about)


def _values(delivery: Post) -> tuple[Value, ...]:
    values = post_to_row(delivery)
    return tuple(escaped(each) if isinstance(each, str) else each for each in values)


async def _changed(db: Connection) -> None:
    """Have each process read the webhooks anew before its next commit."""
    await db.fetch(_NEW_NUMBER, secrets.randbits(62))


async def put(operation: ops.PutWebhook, db: Connection, _holder: Holder) -> Webhook:
    """Write the row of a webhook."""
    stored = await owned.put(operation, _TABLE, db)
    if stored is operation.thing:
        await _changed(db)
    return stored


async def drop(operation: ops.DropWebhook, db: Connection, _holder: Holder) -> bool:
    """Remove the rows of a webhook."""
    if not await db.fetch(_DROP, escaped(operation.webhook_id), operation.tenant):
        return False
    await _changed(db)
    await audit.add(db, (operation.audit,))
    return True


async def drop_of(db: Connection, session: int) -> None:
    """Remove the deliveries about a session, and the webhooks that are told of it alone."""
    if await db.fetch(_DROP_OF, session):
        await _changed(db)


async def take(operation: ops.TakeDeliveries, db: Connection, holder: Holder) -> ops.TakenDeliveries:
    """Note this process as the one that attempts deliveries that are due; a damaged one is dead."""
    rows = await db.fetch(_TAKE, holder.key)
    keys = {unescaped(each): key for key, each, *_ in rows}
    found = [Candidate(unescaped(each), unescaped(of), tenant, bool(failing)) for _, each, of, tenant, failing in rows]
    chosen, more = choose(found, operation.at_work)
    due: list[tuple[Post, Webhook]] = []
    webhooks: dict[str, Webhook | None] = {}
    for each in chosen:
        if each.webhook_id not in webhooks:
            webhooks[each.webhook_id] = await _webhook(db, each)
        webhook = webhooks[each.webhook_id]
        taken = await db.fetch(_TAKEN, keys[each.delivery_id], holder.key) if webhook is not None else []
        if not taken or webhook is None:
            continue
        try:
            due.append((_delivery(taken[0]), webhook))
        except ValueError as exc:
            await db.fetch(_SET_ASIDE, keys[each.delivery_id], escaped(f"it is damaged: {exc}"))
    return ops.TakenDeliveries(due, more, due_in(await db.value(_AFTER)))


async def _webhook(db: Connection, each: Candidate) -> Webhook | None:
    """Return the webhook of a delivery; None if it is damaged: it is paused then, and if it was removed."""
    rows = await db.fetch(_ROW, escaped(each.webhook_id), each.tenant)
    try:
        return webhook_in(_plain(rows[0])) if rows else None
    except ValueError as exc:
        await db.fetch(_PAUSE, escaped(each.webhook_id), escaped(f"it is damaged: {exc}"))
        await _changed(db)
        return None


async def end_attempt(operation: ops.EndAttempt, db: Connection, holder: Holder) -> None:
    """Write what became of an attempt, and let the webhook know whether its deliveries fail."""
    delivery_id, webhook, _, _, _, *rest = _values(operation.delivery)
    await db.fetch(_ATTEMPTED, delivery_id, webhook, *rest, holder.key)
    failing = operation.failed_at
    await db.fetch(_FAILING, webhook, None if failing is None else microseconds(failing))
    if operation.pauses is not None:
        await db.fetch(_PAUSE, webhook, escaped(operation.pauses))
        await _changed(db)


async def resend(operation: ops.Resend, db: Connection, _holder: Holder) -> int:
    """Let dead deliveries be due now."""
    one = None if operation.delivery_id is None else escaped(operation.delivery_id)
    return len(await db.fetch(_RESEND, escaped(operation.webhook_id), operation.tenant, one))


async def tidy(_operation: ops.TidyDeliveries, db: Connection, _holder: Holder) -> int:
    """Hold each webhook to the deliveries that it may have."""
    await db.fetch(_ORPHANS)
    dead = 0
    for webhook, state, count in await db.fetch(_STATES):
        if state == "pending" and count > KEPT_PENDING:
            dead += len(await db.fetch(_OVERFLOW, webhook, TOO_MANY, KEPT_PENDING - 1))
        for which, kept in (("dead", KEPT_DEAD), ("delivered", KEPT_DELIVERED)):
            if state == which and count > kept:
                await db.fetch(_FORGET, webhook, which, kept)
    return dead


async def row(at: Reading, query: WebhookRow) -> Webhook | None:
    """Return a webhook. Raises StoreError(cause="corrupt")."""
    rows = await at.db.fetch(_ROW, escaped(query.webhook_id), query.tenant)
    try:
        return webhook_in(_plain(rows[0])) if rows else None
    except ValueError as exc:
        raise corrupt(f"webhook {query.webhook_id}", exc) from exc


async def page(at: Reading, query: WebhookList) -> Rows[tuple[Webhook, int, int]]:
    """Return webhooks of a tenant with the counts of their deliveries."""
    ids = [None if each is None else escaped(each) for each in (query.webhook_id, query.session_id)]
    rows = await at.db.fetch(_LIST, query.tenant, *ids, query.limit, query.offset)
    return Rows(rows, _listed, lambda row: f"webhook {shown(row[0])}")


async def deliveries(at: Reading, query: DeliveryList) -> Rows[Post]:
    """Return deliveries of a webhook."""
    values = escaped(query.webhook_id), query.tenant, query.state, query.limit, query.offset
    return Rows(await at.db.fetch(_DELIVERIES, *values), _delivery, lambda row: f"delivery {shown(row[0])}")


async def next_due(at: Reading, _query: NextDelivery) -> datetime | None:
    """Return the earliest time at which a delivery is due."""
    return due_in(await at.db.value(_NEXT))


async def pending(at: Reading, _query: PendingDeliveries) -> int:
    """Return how many deliveries wait for an attempt."""
    found: int = await at.db.value(_PENDING)
    return found


def _listed(row: Row) -> tuple[Webhook, int, int]:
    *webhook, waiting, dead = row
    return webhook_in(_plain(webhook)), waiting, dead


def _delivery(row: Row) -> Post:
    *values, session_id = _plain(row)
    return post_in(tuple(values), session_id)


def _plain(row: "Row | list[object]") -> Row:
    return tuple(unescaped(each) if isinstance(each, str) else each for each in row)


def _row_of(webhook: Webhook) -> tuple[Value, ...]:
    return tuple([escaped(each) if isinstance(each, str) else each for each in webhook_to_row(webhook)])


def _of_row(row: Row) -> Webhook:
    return webhook_in(_plain(row))


_TABLE: Final = owned.Table(_CREATED, _COUNT, _ADD, _CHANGE, _row_of, _of_row, no_webhook, too_many_webhooks)
