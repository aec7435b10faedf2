"""Triggers and their deliveries, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Sequence
from typing import Any, Final

import apsw

from warren.conversation.triggers import KEPT_DELIVERIES, Delivery, Trigger
from warren.storage.operations import DropTrigger, KeepDelivery, PutTrigger
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
from warren.storage.sqlite import audit, owned
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.reading import Reading

_TRIGGER: Final = raw(TRIGGER)
_CREATED: Final = f"SELECT {_TRIGGER} FROM triggers WHERE tenant = ? AND creation = ?"
_COUNT: Final = "SELECT count(*) FROM triggers WHERE tenant = ?"
_ADD: Final = f"INSERT INTO triggers ({TRIGGER}, session) VALUES (?,?,?,?,?,?,?)"
_CHANGE: Final = """
    UPDATE triggers SET problem = ?3, secret = ?4, body = ?5, session = ?6 WHERE id = ?1 AND tenant = ?2 RETURNING key
"""
_TABLE: Final = owned.Table(_CREATED, _COUNT, _ADD, _CHANGE, trigger_to_row, trigger_in, no_trigger, too_many_triggers)
_DROP: Final = "DELETE FROM triggers WHERE id = ? AND tenant = ? RETURNING key"
_DROP_OF: Final = "DELETE FROM triggers WHERE session = ? RETURNING key"
_DROP_DELIVERIES: Final = "DELETE FROM trigger_deliveries WHERE trigger_key = ?"
_END: Final = "UPDATE triggers SET problem = coalesce(?2, problem) WHERE id = ?1 RETURNING key, tenant"
_KEEP: Final = f"""
    INSERT INTO trigger_deliveries (trigger_key, tenant, {DELIVERY}, session)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, (SELECT key FROM sessions WHERE session_id = ?7)) ON CONFLICT DO UPDATE
    SET at = excluded.at, state = excluded.state, body = excluded.body, session = excluded.session
    WHERE state IS NOT 'fired'
"""
_FORGET: Final = f"""
    DELETE FROM trigger_deliveries WHERE trigger_key = ?1 AND delivery IN
        (SELECT delivery FROM trigger_deliveries WHERE trigger_key = ?1
            ORDER BY at DESC, delivery LIMIT -1 OFFSET {KEPT_DELIVERIES})
"""
_ROW: Final = f"SELECT {_TRIGGER} FROM triggers WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)"
_LIST: Final = f"""
    SELECT key, {_TRIGGER} FROM triggers WHERE tenant = ?1 AND (?2 IS NULL OR id = ?2) AND (?3 IS NULL OR session =
        (SELECT key FROM sessions WHERE session_id = ?3)) ORDER BY key LIMIT ?4 OFFSET ?5
"""
_PROMPTS: Final = """
    trigger_deliveries d JOIN triggers t ON t.key = d.trigger_key
    LEFT JOIN inbox i ON i.session = d.session AND i.key = 'trigger/' || t.id || '/' || d.delivery
"""
_DELIVERIES: Final = f"""
    SELECT {raw("d.delivery, d.at, d.state, d.body")},
        iif(i.number IS NULL, NULL, CAST(coalesce(i.outcome, '') AS BLOB))
    FROM {_PROMPTS} WHERE d.trigger_key = ? ORDER BY d.at DESC, d.delivery
"""
_KNOWN: Final = f"""
    SELECT {raw(DELIVERY)} FROM trigger_deliveries
    WHERE trigger_key = (SELECT key FROM triggers WHERE id = ? AND tenant = ?) AND delivery = ?
"""
# The prompt of a delivery has not ended while it waits, or while the turn runs that has taken it.
_BUSY: Final = f"""
    SELECT 1 FROM {_PROMPTS} JOIN sessions s ON s.key = d.session
    WHERE t.id = ? AND t.tenant = ? AND d.delivery <> ? AND i.number IS NOT NULL
        AND (i.outcome IS NULL OR i.outcome = '' AND s.turn IS NOT NULL) LIMIT 1
"""


def put(operation: PutTrigger, db: apsw.Connection, _holder: Holder) -> Trigger:
    """Write the row of a trigger."""
    return owned.put(operation, _TABLE, db)


def drop(operation: DropTrigger, db: apsw.Connection, _holder: Holder) -> bool:
    """Remove the rows of a trigger."""
    key = db.execute(_DROP, (operation.trigger_id, operation.tenant)).get
    if key is None:
        return False
    db.execute(_DROP_DELIVERIES, (key,))
    audit.add(db, (operation.audit,))
    return True


def drop_of(db: apsw.Connection, session: int) -> None:
    """Remove the triggers of a session."""
    for (key,) in db.execute(_DROP_OF, (session,)).fetchall():
        db.execute(_DROP_DELIVERIES, (key,))


def keep(operation: KeepDelivery, db: apsw.Connection, _holder: Holder) -> None:
    """Write the row of a delivery, and drop the oldest ones."""
    found: Any = db.execute(_END, (operation.trigger_id, operation.problem)).fetchone()
    if found is not None:
        db.execute(_KEEP, (*found, *delivery_to_row(operation.delivery), operation.delivery.session_id))
        db.execute(_FORGET, (found[0],))


def row(at: Reading, query: TriggerRow) -> Trigger | None:
    """Return a trigger. Raises StoreError(cause="corrupt")."""
    found: Any = at.db.execute(_ROW, (query.trigger_id, query.tenant)).fetchone()
    try:
        return None if found is None else trigger_in(found)
    except ValueError as exc:
        raise corrupt(f"trigger {query.trigger_id}", exc) from exc


def page(at: Reading, query: TriggerList) -> Rows[tuple[Trigger, Sequence[tuple[Delivery, bytes | None]]]]:
    """Return triggers of a tenant with their deliveries."""
    values = query.tenant, query.trigger_id, query.session_id, query.limit, query.offset
    rows: list[Any] = at.db.execute(_LIST, values).fetchall()
    return Rows(
        [(key, tuple(row), at.db.execute(_DELIVERIES, (key,)).fetchall()) for key, *row in rows], _listed, _name
    )


def delivery(at: Reading, query: DeliveryOf) -> tuple[Delivery | None, bool]:
    """Return a delivery, and whether the prompt of another one has not ended; a damaged one is not known."""
    values = query.trigger_id, query.tenant, query.delivery_id
    found: Any = at.db.execute(_KNOWN, values).fetchone()
    busy = at.db.execute(_BUSY, values).get is not None
    try:
        return None if found is None else delivery_in(found), busy
    except ValueError:
        return None, busy


def _listed(row: tuple[Any, ...]) -> tuple[Trigger, Sequence[tuple[Delivery, bytes | None]]]:
    _, trigger, deliveries = row
    return trigger_in(trigger), [
        (delivery_in(tuple(delivery)), None if outcome is None else bytes_in(outcome, "outcome"))
        for *delivery, outcome in deliveries
    ]


def _name(row: tuple[Any, ...]) -> str:
    return f"trigger {shown(row[1][0])}"
