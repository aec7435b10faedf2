"""`warren schedules`: prompts that are due at times of their own."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from warren.calls.base import MAX_PAGE, made
from warren.calls.facade import SessionService
from warren.calls.schedules import ScheduleChange, ScheduleDeletion, ScheduleRequest, SchedulesRequest
from warren.conversation.options import SessionTemplate
from warren.conversation.schedules import RunView, SchedulePage, ScheduleView
from warren.transport.cli.command import ID_HELP, command
from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.ids import id_ending, resolve
from warren.transport.cli.runtime import execute, open_service
from warren.transport.cli.settings.option import F, group, of_field
from warren.transport.cli.settings.options import Options, label_option, reached_options
from warren.transport.cli.settings.values import due_of, text_of
from warren.transport.cli.terminal.results import show_result, show_text
from warren.transport.cli.terminal.streams import Streams, read_prompt
from warren.transport.cli.terminal.tables import moment, note_damaged, show_rows

COLUMNS: Final = ("schedule", "state", "next", "times", "last", "session", "prompt")


@click.group(cls=CommandGroup)
def schedules() -> None:
    """Make prompts that are due at times of their own, and look after them.

    A process that serves the store sends them: `warren serve`, or any other one with the store open for its clients.
    """


def _times(cls: type) -> Callable[[F], F]:
    """Return the options of the times of a schedule."""
    return group(
        of_field(cls, "at", type=due_of, metavar="TIME", variable=False),
        of_field(cls, "every", metavar="SPAN", variable=False),
        of_field(cls, "cron", metavar="EXPR", variable=False),
        of_field(cls, "zone", default=None, show_default=False, variable=False),
        of_field(cls, "start", type=due_of, metavar="TIME", variable=False),
        of_field(cls, "end", type=due_of, metavar="TIME", variable=False),
        of_field(cls, "misfire", default=None, show_default=False, variable=False),
        of_field(cls, "overlap", default=None, show_default=False, variable=False),
    )


@command(
    "warren schedules list",
    "warren schedules list --output json | jq -r '.schedules[].prompt'",
    name="list",
    of=schedules,
)
@click.option("--session", type=text_of, metavar="ID", help="Only those whose prompts this session gets.")
@of_field(SchedulesRequest, "offset", variable=False, default=0, show_default=True)
@of_field(SchedulesRequest, "limit", variable=False, default=50, show_default=True)
@reached_options
def schedules_list(session: str | None, offset: int, limit: int, options: Options) -> None:
    """List the schedules, the oldest first, each with what became of its newest run.

    Piped, each is a line of fields between tabs: schedule, state, next, times, last, session, prompt.
    """

    async def work() -> SchedulePage:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = None if session is None else await resolve(service, session)
            return await service.perform(made(SchedulesRequest, session_id=found, offset=offset, limit=limit))

    page = execute(work, options)
    show_result(options, page, _show, page)


@command(
    "warren schedules create 'Water the plants.' --session last --every 12h",
    "warren schedules create 'What is new?' --cron '30 9 * * mon-fri' --zone Europe/Berlin --model echo",
    "warren schedules create 'Look at the build.' --session 4f9c --at 10m",
    name="create",
    of=schedules,
    note=ID_HELP,
)
@click.argument("prompt", type=text_of, required=False)
@click.option(
    "--session", type=text_of, metavar="ID", help="The session that gets the prompt; unset makes a new one each time."
)
@_times(ScheduleRequest)
@of_field(ScheduleRequest, "paused", is_flag=True, variable=False)
@click.option("--key", type=text_of, metavar="KEY", help="Run again with one key, it makes one schedule.")
@of_field(SessionTemplate, "agent", "--agent", "new_agent", metavar="NAME", variable=False)
@of_field(SessionTemplate, "model", "--model", "new_model", variable=False)
@of_field(SessionTemplate, "provider", "--provider", "new_provider", variable=False)
@of_field(SessionTemplate, "system_prompt", "--system", "new_system", metavar="TEXT", variable=False)
@of_field(SessionTemplate, "title", "--title", "new_title", metavar="TEXT", variable=False)
@label_option
@reached_options
def schedules_create(
    prompt: str | None,
    session: str | None,
    *,
    at: datetime | None,
    every: str | None,
    cron: str | None,
    zone: str | None,
    start: datetime | None,
    end: datetime | None,
    misfire: str | None,
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
    """Make a schedule, and print its id: PROMPT is due once, every so often, or by a cron expression.

    --agent, --model, --provider, --system, --title and --label are those of new sessions. TIME is a time from now, as
    10m, or a day or a time, in UTC without another zone.
    """
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
    times = _given(at=at, every=every, cron=cron, zone=zone, start=start, end=end, misfire=misfire, overlap=overlap)

    async def work() -> ScheduleView:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = None if session is None else await resolve(service, session)
            wanted = made(
                ScheduleRequest,
                text,
                session_id=found,
                new_session=template,
                paused=paused,
                idempotency_key=key,
                **times,
            )
            return await service.perform(wanted)

    view = execute(work, options)
    show_result(options, view, _made, view)


@command(
    "warren schedules change 01a2 --pause",
    "warren schedules change 01a2 --resume --every 1h",
    name="change",
    of=schedules,
)
@click.argument("schedule", type=text_of)
@of_field(ScheduleChange, "prompt", metavar="TEXT", variable=False)
@_times(ScheduleChange)
@click.option("--pause/--resume", default=None, help="Whether it is due at no time, until it is resumed.")
@reached_options
def schedules_change(
    schedule: str,
    *,
    prompt: str | None,
    at: datetime | None,
    every: str | None,
    cron: str | None,
    zone: str | None,
    start: datetime | None,
    end: datetime | None,
    misfire: str | None,
    overlap: str | None,
    pause: bool | None,
    options: Options,
) -> None:
    """Change a schedule; what is not named stays as it is. SCHEDULE is its id, or the end of it."""
    times = _given(at=at, every=every, cron=cron, zone=zone, start=start, end=end, misfire=misfire, overlap=overlap)
    changes = {**times, **_given(prompt=prompt, paused=pause)}

    async def work() -> ScheduleView:
        async with open_service(options, stored=True, takes_up=False) as service:
            return await service.perform(made(ScheduleChange, await _found(service, schedule), **changes))

    view = execute(work, options)
    show_result(options, view, _made, view)


@command("warren schedules delete 01a2", name="delete", of=schedules)
@click.argument("schedule", type=text_of)
@reached_options
def schedules_delete(schedule: str, options: Options) -> None:
    """Remove a schedule. A prompt of it that waits already stays. SCHEDULE is its id, or the end of it."""

    async def work() -> str:
        async with open_service(options, stored=True, takes_up=False) as service:
            found = await _found(service, schedule)
            await service.perform(made(ScheduleDeletion, found))
            return found

    found = execute(work, options)
    show_text(options, {"deleted": True}, f"{found}: deleted\n")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


async def _found(service: SessionService, name: str) -> str:
    """Return the id of a schedule that is named by the end of it. Raises InvalidParamsError if several fit, or none."""

    async def ids(offset: int) -> list[str | None]:
        page = await service.schedules(offset=offset, limit=MAX_PAGE)
        return [each.schedule_id for each in page.schedules] + [None] * len(page.damaged)

    return await id_ending(name, "schedule", ids)


def _made(streams: Streams, view: ScheduleView) -> None:
    due = "not due" if view.next_at is None else f"due at {moment(view.next_at)}"
    streams.note(f"{view.state}, {due}")
    streams.write(f"{view.schedule_id}\n")


def _show(streams: Streams, page: SchedulePage) -> None:
    note_damaged(streams, "schedule", page.damaged)
    show_rows(streams, COLUMNS, [_row(each) for each in page.schedules], "there are no schedules")


def _row(each: ScheduleView) -> tuple[str, ...]:
    zone = "" if each.zone == "UTC" else f" {each.zone}"
    times = each.every or (f"{each.cron}{zone}" if each.cron else "once")
    due = each.problem or "" if each.next_at is None else moment(each.next_at)
    last = _last(each.runs[0]) if each.runs else ""
    return each.schedule_id, each.state, due, times, last, each.session_id or "new", each.prompt


def _last(run: RunView) -> str:
    if run.state != "fired" or run.problem is not None:
        return f"{run.state}: {run.problem}" if run.problem else run.state
    return "ended" if run.ended else "not ended" if run.ended is False else "fired"
