"""`warren webhooks`: addresses to which what happens in sessions is posted."""

from typing import Any, Final

import click

from warren.calls.base import MAX_PAGE, made
from warren.calls.facade import SessionService
from warren.calls.webhooks import (
    DeliveriesRequest,
    ResendRequest,
    WebhookChange,
    WebhookDeletion,
    WebhookRequest,
    WebhooksRequest,
)
from warren.conversation.webhooks import (
    POST_STATES,
    WEBHOOK_EVENTS,
    WebhookDelivery,
    WebhookDeliveryPage,
    WebhookPage,
    WebhookView,
)
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.ids import id_ending, resolve
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.option import of_field
from warren.transport.cli.settings.options import Options, label_option, reached_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.terminal.tables import moment, note_damaged, show_rows

COLUMNS: Final = ("webhook", "state", "pending", "dead", "session", "url", "problem")
DELIVERY_COLUMNS: Final = ("delivery", "state", "type", "session", "attempts", "status", "next", "problem")
_event: Final = click.option(
    "--event",
    type=click.Choice(WEBHOOK_EVENTS),
    multiple=True,
    help="An event that it is told of; repeatable. Unset is all of them.",
)


@click.group(cls=CommandGroup)
def webhooks() -> None:
    """Post what happens in sessions to addresses, and look after what was posted.

    A process that serves the store posts: `warren serve`, or any other one with the store open for its clients.
    """


@command(
    "warren webhooks list",
    "warren webhooks list --output json | jq -r '.webhooks[].url'",
    name="list",
    of=webhooks,
)
@click.option("--session", type=text_of, metavar="ID", help="Only those that are told of this session alone.")
@of_field(WebhooksRequest, "offset", variable=False, default=0, show_default=True)
@of_field(WebhooksRequest, "limit", variable=False, default=50, show_default=True)
@reached_options
def webhooks_list(session: str | None, offset: int, limit: int, options: Options) -> None:
    """List the webhooks, the oldest first.

    Piped, each is a line of fields between tabs: webhook, state, pending, dead, session, url, problem.
    """

    async def work() -> WebhookPage:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = None if session is None else await resolve(service, session)
            return await service.perform(made(WebhooksRequest, session_id=found, offset=offset, limit=limit))

    page = execute(work, options)
    show_result(options, page, _show, page)


@command(
    "warren webhooks create https://example.org/hooks",
    "warren webhooks create https://example.org/hooks --event turn.failed --label team=plants",
    "warren webhooks create https://example.org/hooks --session last",
    name="create",
    of=webhooks,
    note=ID_HELP,
)
@click.argument("url", type=text_of)
@_event
@click.option("--session", type=text_of, metavar="ID", help="The one session of which it is told.")
@label_option
@of_field(WebhookRequest, "paused", is_flag=True, variable=False)
@click.option("--key", type=text_of, metavar="KEY", help="Run again with one key, it makes one webhook.")
@reached_options
def webhooks_create(
    url: str,
    *,
    event: tuple[str, ...],
    session: str | None,
    paused: bool,
    key: str | None,
    options: Options,
) -> None:
    """Make a webhook: what happens in sessions is posted to URL.

    Prints its id and its secret, which is shown this once. With --label it is told of the sessions with all these
    labels, else of all sessions.
    """
    labels = dict(options.label) or None

    async def work() -> WebhookView:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = None if session is None else await resolve(service, session)
            given: dict[str, Any] = {"events": event or None, "session_id": found, "labels": labels}
            return await service.perform(made(WebhookRequest, url, **given, paused=paused, idempotency_key=key))

    view = execute(work, options)
    show_result(options, view, _made, view)


@command(
    "warren webhooks change 01a2 --pause",
    "warren webhooks change 01a2 --resume --url https://example.org/others",
    "warren webhooks change 01a2 --rotate-secret",
    name="change",
    of=webhooks,
)
@click.argument("webhook", type=text_of)
@of_field(WebhookChange, "url", metavar="URL", variable=False)
@_event
@label_option
@click.option("--pause/--resume", default=None, help="Whether it is told of nothing, until it is resumed.")
@of_field(WebhookChange, "rotate_secret", is_flag=True, variable=False)
@reached_options
def webhooks_change(
    webhook: str,
    *,
    url: str | None,
    event: tuple[str, ...],
    pause: bool | None,
    rotate_secret: bool,
    options: Options,
) -> None:
    """Change a webhook; what is not named stays as it is. WEBHOOK is its id, or the end of it."""
    given: dict[str, Any] = {
        "url": url,
        "events": event or None,
        "labels": dict(options.label) or None,
        "paused": pause,
    }

    async def work() -> WebhookView:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = await _found(service, webhook)
            return await service.perform(made(WebhookChange, found, rotate_secret=rotate_secret, **given))

    view = execute(work, options)
    show_result(options, view, _made, view)


@command("warren webhooks delete 01a2", name="delete", of=webhooks)
@click.argument("webhook", type=text_of)
@reached_options
def webhooks_delete(webhook: str, options: Options) -> None:
    """Remove a webhook, with all that is still to be posted. WEBHOOK is its id, or the end of it."""

    async def work() -> str:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = await _found(service, webhook)
            await service.perform(made(WebhookDeletion, found))
            return found

    found = execute(work, options)
    show_text(options, {"deleted": True}, f"{found}: deleted\n")


@command(
    "warren webhooks deliveries 01a2",
    "warren webhooks deliveries 01a2 --state dead",
    name="deliveries",
    of=webhooks,
)
@click.argument("webhook", type=text_of)
@click.option("--state", type=click.Choice(POST_STATES), help="Only those in this state.")
@of_field(DeliveriesRequest, "offset", variable=False, default=0, show_default=True)
@of_field(DeliveriesRequest, "limit", variable=False, default=50, show_default=True)
@reached_options
def webhooks_deliveries(webhook: str, state: str | None, offset: int, limit: int, options: Options) -> None:
    """List what was posted to a webhook and what is still to be, the newest first.

    WEBHOOK is its id, or the end of it. Piped, each delivery is a line of fields between tabs: delivery, state, type,
    session, attempts, status, next, problem.
    """

    async def work() -> WebhookDeliveryPage:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = await _found(service, webhook)
            wanted: dict[str, Any] = {"state": state, "offset": offset, "limit": limit}
            return await service.perform(made(DeliveriesRequest, found, **wanted))

    page = execute(work, options)
    show_result(options, page, _show_deliveries, page)


@command(
    "warren webhooks resend 01a2",
    "warren webhooks resend 01a2 msg_5f0c",
    name="resend",
    of=webhooks,
)
@click.argument("webhook", type=text_of)
@click.argument("delivery", type=text_of, required=False)
@reached_options
def webhooks_resend(webhook: str, delivery: str | None, options: Options) -> None:
    """Attempt dead deliveries of a webhook again: the one with the id POST, or all of them.

    WEBHOOK is its id, or the end of it.
    """

    async def work() -> int:
        async with open_service(options, stored=True, takes_up=False) as service:
            return await service.perform(made(ResendRequest, await _found(service, webhook), delivery))

    count = execute(work, options)
    show_text(options, {"resent": count}, f"{count} to be attempted again\n")


async def _found(service: SessionService, name: str) -> str:
    """Return the id of a webhook that is named by the end of it. Raises InvalidParamsError if several fit, or none."""

    async def ids(offset: int) -> list[str | None]:
        page = await service.webhooks(offset=offset, limit=MAX_PAGE)
        return [each.webhook_id for each in page.webhooks] + [None] * len(page.damaged)

    return await id_ending(name, "webhook", ids)


def _made(streams: Streams, view: WebhookView) -> None:
    streams.note(view.state)
    streams.write(f"{view.webhook_id}\n" if view.secret is None else f"{view.webhook_id} {view.secret}\n")


def _show(streams: Streams, page: WebhookPage) -> None:
    note_damaged(streams, "webhook", page.damaged)
    show_rows(streams, COLUMNS, [_row(each) for each in page.webhooks], "there are no webhooks")


def _row(each: WebhookView) -> tuple[str, ...]:
    labels = " ".join(f"{name}={value}" for name, value in each.labels.items())
    failing = "" if each.failing_since is None else f"failing since {moment(each.failing_since)}"
    counts = str(each.pending), str(each.dead)
    return each.webhook_id, each.state, *counts, each.session_id or labels or "all", each.url, each.problem or failing


def _show_deliveries(streams: Streams, page: WebhookDeliveryPage) -> None:
    note_damaged(streams, "delivery", page.damaged)
    rows = [_delivery(each) for each in page.deliveries]
    show_rows(streams, DELIVERY_COLUMNS, rows, "there are no deliveries")


def _delivery(each: WebhookDelivery) -> tuple[str, ...]:
    status = "" if each.status is None else str(each.status)
    due = "" if each.next_at is None else moment(each.next_at)
    of = each.delivery_id, each.state, each.type, each.session_id
    return *of, str(each.attempts), status, due, each.problem or ""
