"""The handlers of calls about triggers."""

from collections.abc import Sequence
from typing import Any, Final

from warren.actors.calls.handlers.schedules import ended_with
from warren.actors.calls.local import Local
from warren.base.fields import FieldValueError
from warren.base.ids import new_session_id
from warren.base.signatures import new_secret
from warren.calls.triggers import TriggerChange, TriggerDeletion, TriggerRequest, TriggersRequest, check
from warren.conversation.triggers import Delivery, DeliveryView, Trigger, TriggerPage, TriggerView
from warren.storage.operations import DropTrigger, PutTrigger
from warren.storage.queries import TriggerList, TriggerRow
from warren.storage.refusals import no_trigger


async def create(local: Local, call: TriggerRequest) -> TriggerView:
    """Make a trigger."""
    shared, principal = local.supervisor.shared, local.principal
    local.supervisor.check_open()
    if call.new_session is not None:
        call.new_session.check_kinds(shared.categories)
    trigger = Trigger(
        trigger_id=new_session_id(),
        tenant=principal.tenant,
        owner=principal.name,
        created_at=shared.storage.now(),
        prompt=call.prompt,
        secret=call.secret or new_secret(),
        scheme=call.scheme,
        limits=principal.limits,
        session_id=call.session_id,
        new_session=call.new_session,
        overlap=call.overlap,
        paused=call.paused,
        key=call.idempotency_key,
    )
    return await _put(local, trigger, replaces=False, shows=True)


async def change(local: Local, call: TriggerChange) -> TriggerView:
    """Change a trigger."""
    local.supervisor.check_open()
    found = await local.read(TriggerRow(local.principal.tenant, call.trigger_id))
    if found is None:
        raise no_trigger(call.trigger_id)
    if call.secret is not None:
        try:
            check(call.secret, found.scheme)
        except FieldValueError as exc:
            raise exc.refusal() from None
    secret = (call.secret or new_secret()) if call.rotate_secret else None
    given = {"prompt": call.prompt, "overlap": call.overlap, "paused": call.paused, "secret": secret}
    changed = found.changed(**{name: value for name, value in given.items() if value is not None}, problem=None)
    return await _put(local, changed, replaces=True, shows=secret is not None)


async def _put(local: Local, trigger: Trigger, *, replaces: bool, shows: bool) -> TriggerView:
    """Store a trigger, and return it as its caller sees it; `shows` tells whether with its secret."""
    shared = local.supervisor.shared
    entry = local.entry("trigger", trigger.session_id, trigger=trigger.trigger_id)
    stored = await shared.storage.write(PutTrigger(trigger, shared.config.limits.triggers, replaces, entry))
    rows = await local.read(TriggerList(stored.tenant, trigger_id=stored.trigger_id))
    if not rows:  # it was removed meanwhile
        raise no_trigger(stored.trigger_id)
    return _view(*rows[0], stored.secret if shows else None)


async def delete(local: Local, call: TriggerDeletion) -> None:
    """Remove a trigger."""
    local.supervisor.check_open()
    entry = local.entry("untrigger", trigger=call.trigger_id)
    if not await local.supervisor.shared.storage.write(DropTrigger(local.principal.tenant, call.trigger_id, entry)):
        raise no_trigger(call.trigger_id)


async def page(local: Local, call: TriggersRequest) -> TriggerPage:
    """Return a page of the triggers."""
    local.supervisor.check_open()
    rows = await local.read(TriggerList(local.principal.tenant, call.session_id, limit=call.limit, offset=call.offset))
    return TriggerPage(tuple([_view(trigger, deliveries) for trigger, deliveries in rows]), tuple(rows.damaged))


def _view(
    trigger: Trigger, deliveries: Sequence[tuple[Delivery, bytes | None]], secret: str | None = None
) -> TriggerView:
    return TriggerView(
        trigger_id=trigger.trigger_id,
        state=trigger.state,
        prompt=trigger.prompt,
        session_id=trigger.session_id,
        new_session=trigger.new_session,
        scheme=trigger.scheme,
        overlap=trigger.overlap,
        created_at=trigger.created_at,
        owner=trigger.owner,
        problem=trigger.problem,
        deliveries=tuple([_delivery(delivery, outcome) for delivery, outcome in deliveries]),
        secret=secret,
    )


def _delivery(delivery: Delivery, outcome: bytes | None) -> DeliveryView:
    problem, ended = ended_with(delivery, outcome)
    return DeliveryView(delivery.delivery_id, delivery.state, delivery.at, delivery.session_id, problem, ended)


HANDLERS: Final[dict[type, Any]] = {
    TriggerRequest: create,
    TriggerChange: change,
    TriggerDeletion: delete,
    TriggersRequest: page,
}
