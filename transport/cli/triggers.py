"""`warren triggers`: prompts that come when a signed call comes."""

from typing import Any, Final

import click

from warren.calls.base import MAX_PAGE, made
from warren.calls.facade import SessionService
from warren.calls.triggers import TriggerChange, TriggerDeletion, TriggerRequest, TriggersRequest
from warren.conversation.options import SessionTemplate
from warren.conversation.triggers import DeliveryView, TriggerPage, TriggerView
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.ids import id_ending, resolve
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.option import F, of_field
from warren.transport.cli.settings.options import Options, label_option, reached_options
from warren.transport.cli.settings.values import text_of
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams, read_prompt
from warren.transport.cli.terminal.tables import note_damaged, show_rows

COLUMNS: Final = ("trigger", "state", "scheme", "last", "session", "prompt")


def _secret_option(function: F) -> F:
    """Add the option of the secret."""
    help_ = "The secret of the calls: the first line of a file, or of the standard input (-)."
    return click.option("--secret-file", type=click.File(encoding="utf-8"), metavar="FILE", help=help_)(function)


@click.group(cls=CommandGroup)
def triggers() -> None:
    """Make prompts that come when a signed call comes, and look after them.

    A server takes the calls, at /triggers/ID: `warren serve`.
    """


@command(
    "warren triggers list",
    "warren triggers list --output json | jq '.triggers[].deliveries'",
    name="list",
    of=triggers,
)
@click.option("--session", type=text_of, metavar="ID", help="Only those whose prompts this session gets.")
@of_field(TriggersRequest, "offset", variable=False, default=0, show_default=True)
@of_field(TriggersRequest, "limit", variable=False, default=50, show_default=True)
@reached_options
def triggers_list(session: str | None, offset: int, limit: int, options: Options) -> None:
    """List the triggers, the oldest first, each with what became of its newest delivery.

    Piped, each is a line of fields between tabs: trigger, state, scheme, last, session, prompt.
    """

    async def work() -> TriggerPage:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = None if session is None else await resolve(service, session)
            return await service.perform(made(TriggersRequest, session_id=found, offset=offset, limit=limit))

    page = execute(work, options)
    show_result(options, page, _show, page)


@command(
    "warren triggers create 'Look at {body.issue.url}' --scheme github --secret-file - < secret.txt",
    "warren triggers create 'This has happened: {body}' --session last",
    name="create",
    of=triggers,
    note=ID_HELP,
)
@click.argument("prompt", type=text_of, required=False)
@click.option(
    "--session", type=text_of, metavar="ID", help="The session that gets the prompt; unset makes a new one each time."
)
@of_field(TriggerRequest, "scheme", default=None, show_default=False, variable=False)
@_secret_option
@of_field(TriggerRequest, "overlap", default=None, show_default=False, variable=False)
@of_field(TriggerRequest, "paused", is_flag=True, variable=False)
@click.option("--key", type=text_of, metavar="KEY", help="Run again with one key, it makes one trigger.")
@of_field(SessionTemplate, "agent", "--agent", "new_agent", metavar="NAME", variable=False)
@of_field(SessionTemplate, "model", "--model", "new_model", variable=False)
@of_field(SessionTemplate, "provider", "--provider", "new_provider", variable=False)
@of_field(SessionTemplate, "system_prompt", "--system", "new_system", metavar="TEXT", variable=False)
@of_field(SessionTemplate, "title", "--title", "new_title", metavar="TEXT", variable=False)
@label_option
@reached_options
def triggers_create(
    prompt: str | None,
    session: str | None,
    *,
    scheme: str | None,
    secret_file: Any,
    overlap: str | None,
    key: str | None,
    new_agent: str | None,
    new_model: str | None,
    new_provider: str | None,
    new_system: str | None,
    new_title: str | None,
    paused: bool,
    options: Options,
) -> None:
    """Make a trigger, and print its id and its secret.

    PROMPT comes whenever a signed call comes to /triggers/ID.
    {body} in PROMPT becomes the body of the call, {body.a.b} a member of its JSON, {event} the event that GitHub and
    GitLab name. --agent, --model, --provider, --system, --title and --label are those of new sessions.
    """
    secret = _secret(secret_file)
    text, labels = read_prompt(prompt), dict(options.label) or None
    new: dict[str, Any] = _given(
        agent=new_agent,
        model=new_model,
        provider=new_provider,
        system_prompt=new_system,
        title=new_title,
        labels=labels,
    )
    template = made(SessionTemplate, **new) if new else None
    rest = _given(scheme=scheme, overlap=overlap, secret=secret)

    async def work() -> TriggerView:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = None if session is None else await resolve(service, session)
            wanted = made(
                TriggerRequest,
                text,
                session_id=found,
                new_session=template,
                paused=paused,
                idempotency_key=key,
                **rest,
            )
            return await service.perform(wanted)

    view = execute(work, options)
    show_result(options, view, _made, view)


@command(
    "warren triggers change 01a2 --pause",
    "warren triggers change 01a2 --rotate-secret",
    name="change",
    of=triggers,
)
@click.argument("trigger", type=text_of)
@of_field(TriggerChange, "prompt", metavar="TEXT", variable=False)
@of_field(TriggerChange, "overlap", default=None, show_default=False, variable=False)
@click.option("--pause/--resume", default=None, help="Whether calls are turned away, until it is resumed.")
@_secret_option
@of_field(TriggerChange, "rotate_secret", is_flag=True, variable=False)
@reached_options
def triggers_change(
    trigger: str,
    *,
    prompt: str | None,
    overlap: str | None,
    pause: bool | None,
    secret_file: Any,
    rotate_secret: bool,
    options: Options,
) -> None:
    """Change a trigger; what is not named stays as it is. TRIGGER is its id, or the end of it."""
    changes = _given(prompt=prompt, overlap=overlap, paused=pause, secret=_secret(secret_file))

    async def work() -> TriggerView:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = await _found(service, trigger)
            return await service.perform(made(TriggerChange, found, rotate_secret=rotate_secret, **changes))

    view = execute(work, options)
    show_result(options, view, _made, view)


@command("warren triggers delete 01a2", name="delete", of=triggers)
@click.argument("trigger", type=text_of)
@reached_options
def triggers_delete(trigger: str, options: Options) -> None:
    """Remove a trigger. A prompt of it that waits already stays. TRIGGER is its id, or the end of it."""

    async def work() -> str:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = await _found(service, trigger)
            await service.perform(made(TriggerDeletion, found))
            return found

    found = execute(work, options)
    show_text(options, {"deleted": True}, f"{found}: deleted\n")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _secret(file: Any) -> str | None:
    return None if file is None else str(file.readline()).rstrip("\r\n")


async def _found(service: SessionService, name: str) -> str:
    """Return the id of a trigger that is named by the end of it. Raises InvalidParamsError if several fit, or none."""

    async def ids(offset: int) -> list[str | None]:
        page = await service.triggers(offset=offset, limit=MAX_PAGE)
        return [each.trigger_id for each in page.triggers] + [None] * len(page.damaged)

    return await id_ending(name, "trigger", ids)


def _made(streams: Streams, view: TriggerView) -> None:
    streams.note(f"{view.state}, takes {view.scheme} calls at /triggers/{view.trigger_id}")
    streams.write(f"{view.trigger_id}\n")
    if view.secret is not None:
        streams.write(f"{view.secret}\n")


def _show(streams: Streams, page: TriggerPage) -> None:
    note_damaged(streams, "trigger", page.damaged)
    show_rows(streams, COLUMNS, [_row(each) for each in page.triggers], "there are no triggers")


def _row(each: TriggerView) -> tuple[str, ...]:
    last = each.problem or (_last(each.deliveries[0]) if each.deliveries else "")
    return each.trigger_id, each.state, each.scheme, last, each.session_id or "new", each.prompt


def _last(delivery: DeliveryView) -> str:
    if delivery.state != "fired" or delivery.problem is not None:
        return f"{delivery.state}: {delivery.problem}" if delivery.problem else delivery.state
    return "ended" if delivery.ended else "not ended" if delivery.ended is False else "fired"
