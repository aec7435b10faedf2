"""The handlers of calls about webhooks."""

from typing import Any, Final

from warren.actors.calls.local import Local
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.ids import new_session_id
from warren.base.signatures import new_secret
from warren.calls.webhooks import (
    DeliveriesRequest,
    ResendRequest,
    WebhookChange,
    WebhookDeletion,
    WebhookRequest,
    WebhooksRequest,
)
from warren.conversation.webhooks import (
    OVERLAP,
    WEBHOOK_EVENTS,
    Post,
    Webhook,
    WebhookDelivery,
    WebhookDeliveryPage,
    WebhookPage,
    WebhookView,
)
from warren.storage.operations import DropWebhook, PutWebhook, Resend
from warren.storage.queries import DeliveryList, WebhookList, WebhookRow
from warren.storage.refusals import no_webhook


async def create(local: Local, call: WebhookRequest) -> WebhookView:
    """Make a webhook."""
    principal, storage = local.principal, local.supervisor.shared.storage
    local.supervisor.check_open()
    _check_address(local, call.url)
    webhook = Webhook(
        webhook_id=new_session_id(),
        tenant=principal.tenant,
        owner=principal.name,
        created_at=storage.now(),
        url=call.url,
        secret=call.secret or new_secret(),
        events=tuple(call.events or WEBHOOK_EVENTS),
        session_id=call.session_id,
        labels=call.labels or {},
        paused=call.paused,
        key=call.idempotency_key,
    )
    stored = await _put(local, webhook, replaces=False)
    return _view(stored, secret=stored.secret)


async def change(local: Local, call: WebhookChange) -> WebhookView:
    """Change a webhook."""
    local.supervisor.check_open()
    found = await _found(local, call.webhook_id)
    if call.url is not None:
        _check_address(local, call.url)
    if call.labels is not None and found.session_id is not None:
        raise FieldValueError("labels", "do not go with the one session of the webhook").refusal()
    given = {name: getattr(call, name) for name in ("url", "labels", "paused")}
    changed = found.changed(**{name: value for name, value in given.items() if value is not None})
    if call.events is not None:
        changed = changed.changed(events=tuple(call.events))
    if call.paused is False:
        changed = changed.changed(problem=None, failing_since=None)
    if call.rotate_secret:
        until = local.supervisor.shared.storage.now() + OVERLAP
        changed = changed.changed(secret=call.secret or new_secret(), old_secret=found.secret, old_until=until)
    stored = await _put(local, changed, replaces=True)
    page = await listed(local, WebhookList(stored.tenant, webhook_id=stored.webhook_id))
    if not page.webhooks:  # it was removed meanwhile
        raise no_webhook(call.webhook_id)
    if not call.rotate_secret:
        return page.webhooks[0]
    (view,) = page.webhooks
    return _view(stored, view.pending, view.dead, secret=stored.secret)


def _check_address(local: Local, url: str) -> None:
    """Raise InvalidParamsError if nothing may be posted to an address, as far as that can be told without a look-up."""
    from warren.actors.tools.posting import address_problem  # noqa: PLC0415 - few programs make a webhook

    problem = address_problem(url, local.supervisor.shared.config.limits.webhook_allow)
    if problem is not None:
        raise FieldValueError("url", problem).refusal()


async def _found(local: Local, webhook_id: str) -> Webhook:
    found = await local.read(WebhookRow(local.principal.tenant, webhook_id))
    if found is None:
        raise no_webhook(webhook_id)
    return found


async def _put(local: Local, webhook: Webhook, *, replaces: bool) -> Webhook:
    shared = local.supervisor.shared
    entry = local.entry("webhook", webhook.session_id, webhook=webhook.webhook_id)
    stored = await shared.storage.write(PutWebhook(webhook, shared.config.limits.webhooks, replaces, entry))
    local.supervisor.deliveries.set(shared.storage.now())  # those that have waited for it to go on
    return stored


async def delete(local: Local, call: WebhookDeletion) -> None:
    """Remove a webhook."""
    local.supervisor.check_open()
    entry = local.entry("unwebhook", webhook=call.webhook_id)
    operation = DropWebhook(local.principal.tenant, call.webhook_id, entry)
    if not await local.supervisor.shared.storage.write(operation):
        raise no_webhook(call.webhook_id)


async def page(local: Local, call: WebhooksRequest) -> WebhookPage:
    """Return a page of the webhooks."""
    local.supervisor.check_open()
    return await listed(local, WebhookList(local.principal.tenant, call.session_id, None, call.limit, call.offset))


async def listed(local: Local, query: WebhookList) -> WebhookPage:
    """Return webhooks as their callers see them."""
    rows = await local.read(query)
    return WebhookPage(tuple([_view(*row) for row in rows]), tuple(rows.damaged))


async def deliveries(local: Local, call: DeliveriesRequest) -> WebhookDeliveryPage:
    """Return a page of the deliveries of a webhook."""
    local.supervisor.check_open()
    await _found(local, call.webhook_id)
    query = DeliveryList(local.principal.tenant, call.webhook_id, call.state, call.limit, call.offset)
    rows = await local.read(query)
    return WebhookDeliveryPage(tuple([_delivery(each) for each in rows]), tuple(rows.damaged))


async def resend(local: Local, call: ResendRequest) -> int:
    """Let dead deliveries be due now."""
    local.supervisor.check_open()
    await _found(local, call.webhook_id)
    storage = local.supervisor.shared.storage
    found = await storage.write(Resend(local.principal.tenant, call.webhook_id, call.delivery_id))
    if not found and call.delivery_id is not None:
        problem = f"no dead delivery of the webhook is {call.delivery_id!r}"
        raise InvalidParamsError.at("$.delivery_id", problem)
    local.note(local.entry("webhook", webhook=call.webhook_id))
    local.supervisor.deliveries.set(storage.now())
    return found


def _view(webhook: Webhook, pending: int = 0, dead: int = 0, *, secret: str | None = None) -> WebhookView:
    return WebhookView(
        webhook_id=webhook.webhook_id,
        state="paused" if webhook.paused else "active",
        url=webhook.url,
        events=webhook.events,
        session_id=webhook.session_id,
        labels=webhook.labels,
        created_at=webhook.created_at,
        owner=webhook.owner,
        pending=pending,
        dead=dead,
        failing_since=webhook.failing_since,
        problem=webhook.problem,
        secret=secret,
    )


def _delivery(each: Post) -> WebhookDelivery:
    return WebhookDelivery(
        delivery_id=each.delivery_id,
        webhook_id=each.webhook_id,
        session_id=each.session_id,
        type=each.type,
        created_at=each.created_at,
        state=each.state,
        attempts=each.attempts,
        attempted_at=each.attempted_at,
        status=each.status,
        problem=each.problem,
        next_at=each.due,
    )


HANDLERS: Final[dict[type, Any]] = {
    WebhookRequest: create,
    WebhookChange: change,
    WebhookDeletion: delete,
    WebhooksRequest: page,
    DeliveriesRequest: deliveries,
    ResendRequest: resend,
}
