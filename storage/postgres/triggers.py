"""Triggers and their deliveries, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from typing import Final

from warren.conversation.triggers import KEPT_DELIVERIES, Delivery, Trigger
from warren.storage import operations as ops
from warren.storage.postgres import audit, owned
from warren.storage.postgres.driver import Connection, Row, Value, array, escaped, unescaped
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import Reading
from warren.storage.queries import DeliveryOf, TriggerList, TriggerRow
from warren.storage.refusals import no_trigger, too_many_triggers
from warren.storage.results import Rows
from warren.storage.rows import (
    DELIVERY,
    TRIGGER,
    bytes_in,
    corrupt,
    delivery_in,
    delivery_to_row,
    shown,
    trigger_in,
    trigger_to_row,
)

_CREATED: Final = f"SELECT {TRIGGER} FROM warren.triggers WHERE tenant = $1 AND creation = $2"
_COUNT: Final = "SELECT count(*) FROM warren.triggers WHERE tenant = $1"
_ADD: Final = f"""
    INSERT INTO warren.triggers ({TRIGGER}, session) VALUES ($1, $2, $3, $4, $5, $6, $7::int8)
    ON CONFLICT (tenant, creation) WHERE creation IS NOT NULL DO NOTHING RETURNING key
"""
_CHANGE: Final = """
    UPDATE warren.triggers SET problem = $3, secret = $4, body = $5, session = $6::int8 WHERE id = $1 AND tenant = $2
    RETURNING key
"""
_DROP: Final = """
    WITH gone AS (DELETE FROM warren.triggers WHERE id = $1 AND tenant = $2 RETURNING key),
        deliveries AS (DELETE FROM warren.trigger_deliveries WHERE trigger_key IN (SELECT key FROM gone))
    SELECT key FROM gone
"""
DROP_OF: Final = """
    triggers AS (DELETE FROM warren.triggers WHERE session = $1::int8 RETURNING key),
    deliveries AS (DELETE FROM warren.trigger_deliveries WHERE trigger_key IN (SELECT key FROM triggers))
"""
"""Parts of a statement that removes the triggers of the session $1."""
# It locks the row of the trigger: of deliveries that come at once each sees those before it, and forgets the oldest.
_END: Final = """
    UPDATE warren.triggers SET problem = coalesce($2, problem) WHERE id = $1 RETURNING key, tenant
"""
_KEEP: Final = f"""
    INSERT INTO warren.trigger_deliveries AS d (trigger_key, tenant, {DELIVERY}, session)
    VALUES ($1::int8, $2, $3, $4::int8, $5, $6, (SELECT s.key FROM warren.sessions s WHERE session_id = $7))
    ON CONFLICT (trigger_key, delivery) DO UPDATE
    SET at = excluded.at, state = excluded.state, body = excluded.body, session = excluded.session
    WHERE d.state <> 'fired'
"""
_FORGET: Final = f"""
    DELETE FROM warren.trigger_deliveries WHERE trigger_key = $1::int8 AND delivery IN
        (SELECT delivery FROM warren.trigger_deliveries WHERE trigger_key = $1::int8
            ORDER BY at DESC, delivery OFFSET {KEPT_DELIVERIES})
"""
_ROW: Final = f"SELECT {TRIGGER} FROM warren.triggers WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)"
_TRIGGER: Final = ", ".join(f"t.{each}" for each in TRIGGER.split(", "))
_LIST: Final = f"""
    SELECT key, {_TRIGGER} FROM warren.triggers t WHERE tenant = $1 AND ($2::text IS NULL OR id = $2)
        AND ($3::text IS NULL OR session = (SELECT s.key FROM warren.sessions s WHERE session_id = $3))
    ORDER BY key LIMIT $4::int8 OFFSET $5::int8
"""
_PROMPTS: Final = """
    warren.trigger_deliveries d JOIN warren.triggers t ON t.key = d.trigger_key
    LEFT JOIN warren.inbox i ON i.session = d.session AND i.key = 'trigger/' || t.id || '/' || d.delivery
"""
_DELIVERIES: Final = f"""
    SELECT d.trigger_key, d.delivery, d.at, d.state, d.body,
        CASE WHEN i.number IS NOT NULL THEN coalesce(i.outcome, '') END
    FROM {_PROMPTS} WHERE d.trigger_key = ANY ($1::int8[]) ORDER BY d.at DESC, d.delivery
"""
_KNOWN: Final = f"""
    SELECT {DELIVERY} FROM warren.trigger_deliveries
    WHERE trigger_key = (SELECT key FROM warren.triggers WHERE id = $1 AND tenant = $2) AND delivery = $3
"""
# The prompt of a delivery has not ended while it waits, or while the turn runs that has taken it.
_BUSY: Final = f"""
    SELECT EXISTS (SELECT FROM {_PROMPTS} JOIN warren.sessions s ON s.key = d.session
        WHERE t.id = $1 AND t.tenant = $2 AND d.delivery <> $3 AND i.number IS NOT NULL
            AND (i.outcome IS NULL OR i.outcome = '' AND s.turn IS NOT NULL))
"""


async def put(operation: ops.PutTrigger, db: Connection, _holder: Holder) -> Trigger:
    """Write the row of a trigger."""
    return await owned.put(operation, _TABLE, db)


def _values(trigger: Trigger) -> tuple[Value, ...]:
    trigger_id, tenant, creation, problem, secret, body = trigger_to_row(trigger)
    texts = [None if each is None else escaped(each) for each in (creation, problem)]
    return escaped(trigger_id), tenant, *texts, escaped(secret), body


async def drop(operation: ops.DropTrigger, db: Connection, _holder: Holder) -> bool:
    """Remove the rows of a trigger."""
    if not await db.fetch(_DROP, escaped(operation.trigger_id), operation.tenant):
        return False
    await audit.add(db, (operation.audit,))
    return True


async def keep(operation: ops.KeepDelivery, db: Connection, _holder: Holder) -> None:
    """Write the row of a delivery, and drop the oldest ones."""
    problem = None if operation.problem is None else escaped(operation.problem)
    for key, tenant in await db.fetch(_END, escaped(operation.trigger_id), problem):
        delivery_id, moment, state, body = delivery_to_row(operation.delivery)
        session_id = None if operation.delivery.session_id is None else escaped(operation.delivery.session_id)
        await db.fetch(_KEEP, key, tenant, escaped(delivery_id), moment, state, body, session_id)
        await db.fetch(_FORGET, key)


async def row(at: Reading, query: TriggerRow) -> Trigger | None:
    """Return a trigger. Raises StoreError(cause="corrupt")."""
    rows = await at.db.fetch(_ROW, escaped(query.trigger_id), query.tenant)
    try:
        return trigger_in(_plain(rows[0])) if rows else None
    except ValueError as exc:
        raise corrupt(f"trigger {query.trigger_id}", exc) from exc


async def page(at: Reading, query: TriggerList) -> Rows[tuple[Trigger, Sequence[tuple[Delivery, bytes | None]]]]:
    """Return triggers of a tenant with their deliveries."""
    ids = [None if each is None else escaped(each) for each in (query.trigger_id, query.session_id)]
    rows = await at.db.fetch(_LIST, query.tenant, *ids, query.limit, query.offset)
    found: dict[object, list[Row]] = {}
    for key, *delivery in await at.db.fetch(_DELIVERIES, array([each[0] for each in rows])) if rows else ():
        found.setdefault(key, []).append(tuple(delivery))
    return Rows([(found.get(key, ()), _plain(tuple(row))) for key, *row in rows], _listed, _name)


async def delivery(at: Reading, query: DeliveryOf) -> tuple[Delivery | None, bool]:
    """Return a delivery, and whether the prompt of another one has not ended; a damaged one is not known."""
    values = escaped(query.trigger_id), query.tenant, escaped(query.delivery_id)
    rows, ((busy,),) = await at.db.fetch_each((_KNOWN, *values), (_BUSY, *values))
    try:
        return _delivery(rows[0]) if rows else None, busy
    except ValueError:
        return None, busy


def _listed(row: Row) -> tuple[Trigger, Sequence[tuple[Delivery, bytes | None]]]:
    deliveries, trigger = row
    return trigger_in(trigger), [
        (_delivery(tuple(delivery)), None if outcome is None else bytes_in(outcome, "outcome"))
        for *delivery, outcome in deliveries
    ]


def _delivery(row: Row) -> Delivery:
    delivery_id, *rest = row
    return delivery_in((unescaped(delivery_id), *rest))


def _plain(row: Row) -> Row:
    trigger_id, tenant, creation, problem, secret, body = row
    texts = [None if each is None else unescaped(each) for each in (creation, problem)]
    return unescaped(trigger_id), tenant, *texts, unescaped(secret), body


def _name(row: Row) -> str:
    return f"trigger {shown(row[1][0])}"


def _of_row(row: Row) -> Trigger:
    return trigger_in(_plain(row))


_TABLE: Final = owned.Table(_CREATED, _COUNT, _ADD, _CHANGE, _values, _of_row, no_trigger, too_many_triggers)
