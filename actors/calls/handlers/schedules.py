"""The handlers of calls about schedules."""

from collections.abc import Sequence
from typing import Any, Final

from warren.actors.calls.local import Local
from warren.actors.session.ending import result_of
from warren.base.errors import CapacityExceededError, WarrenError
from warren.base.fields import FieldValueError
from warren.base.ids import new_session_id
from warren.calls.schedules import ScheduleChange, ScheduleDeletion, ScheduleRequest, SchedulesRequest
from warren.conversation.schedules import Run, RunView, Schedule, SchedulePage, ScheduleView
from warren.conversation.triggers import Delivery
from warren.storage.operations import UNKNOWN, DropSchedule, PutSchedule
from warren.storage.queries import ScheduleList, ScheduleRow
from warren.storage.refusals import no_schedule


async def create(local: Local, call: ScheduleRequest) -> ScheduleView:
    """Make a schedule."""
    shared, principal = local.supervisor.shared, local.principal
    local.supervisor.check_open()
    if call.new_session is not None:
        call.new_session.check_kinds(shared.categories)
    now = shared.storage.now()
    schedule = Schedule(
        schedule_id=new_session_id(),
        tenant=principal.tenant,
        owner=principal.name,
        created_at=now,
        prompt=call.prompt,
        timing=call.timing,
        limits=principal.limits,
        session_id=call.session_id,
        new_session=call.new_session,
        misfire=call.misfire,
        overlap=call.overlap,
        paused=call.paused,
        key=call.idempotency_key,
    )
    first = schedule.timing.next_after(now, now)
    if first is None:
        if (known := await _known(local, schedule)) is not None:
            return known
        name = next(name for name in ("at", "end", "cron") if getattr(call, name) is not None)
        raise FieldValueError(name, "leaves no time that is still to come").refusal()
    return await _put(local, schedule.changed(due=None if schedule.paused else first), replaces=False)


async def _known(local: Local, schedule: Schedule) -> ScheduleView | None:
    """Return the schedule that was made under the same key, if one was."""
    if schedule.key is None:
        return None
    try:
        stored = await local.supervisor.shared.storage.write(PutSchedule(schedule, limit=0))  # there is room for none
    except CapacityExceededError:
        return None
    return await _viewed(local, stored)


async def change(local: Local, call: ScheduleChange) -> ScheduleView:
    """Change a schedule."""
    local.supervisor.check_open()
    found = await local.read(ScheduleRow(local.principal.tenant, call.schedule_id))
    if found is None:
        raise no_schedule(call.schedule_id)
    given = {name: getattr(call, name) for name in ("prompt", "timing", "misfire", "overlap", "paused")}
    changed = found.changed(**{name: value for name, value in given.items() if value is not None}, problem=None)
    due = found.due if call.timing is None and found.due is not None else None
    if due is None or changed.paused:
        due = changed.next_after(local.supervisor.shared.storage.now())
    return await _put(local, changed.changed(due=due), replaces=True)


async def _put(local: Local, schedule: Schedule, *, replaces: bool) -> ScheduleView:
    shared = local.supervisor.shared
    entry = local.entry("schedule", schedule.session_id, schedule=schedule.schedule_id)
    limit = shared.config.limits.schedules
    stored = await shared.storage.write(PutSchedule(schedule, limit, replaces, entry))
    local.supervisor.alarm.set(stored.due)
    return await _viewed(local, stored)


async def _viewed(local: Local, schedule: Schedule) -> ScheduleView:
    page = await listed(local, ScheduleList(schedule.tenant, schedule_id=schedule.schedule_id))
    if not page.schedules:  # it was removed meanwhile
        raise no_schedule(schedule.schedule_id)
    return page.schedules[0]


async def delete(local: Local, call: ScheduleDeletion) -> None:
    """Remove a schedule."""
    local.supervisor.check_open()
    entry = local.entry("unschedule", schedule=call.schedule_id)
    operation = DropSchedule(local.principal.tenant, call.schedule_id, entry)
    if not await local.supervisor.shared.storage.write(operation):
        raise no_schedule(call.schedule_id)


async def page(local: Local, call: SchedulesRequest) -> SchedulePage:
    """Return a page of the schedules."""
    local.supervisor.check_open()
    tenant = local.principal.tenant
    return await listed(local, ScheduleList(tenant, call.session_id, limit=call.limit, offset=call.offset))


async def listed(local: Local, query: ScheduleList) -> SchedulePage:
    """Return schedules as their callers see them."""
    rows = await local.read(query)
    return SchedulePage(tuple([_view(schedule, runs) for schedule, runs in rows]), tuple(rows.damaged))


def _view(schedule: Schedule, runs: Sequence[tuple[Run, bytes | None]]) -> ScheduleView:
    timing = schedule.timing
    return ScheduleView(
        schedule_id=schedule.schedule_id,
        state=schedule.state,
        prompt=schedule.prompt,
        session_id=schedule.session_id,
        new_session=schedule.new_session,
        at=timing.at,
        every=timing.every,
        cron=timing.cron,
        zone=timing.zone,
        start=timing.start,
        end=timing.end,
        misfire=schedule.misfire,
        overlap=schedule.overlap,
        next_at=schedule.due,
        created_at=schedule.created_at,
        owner=schedule.owner,
        problem=schedule.problem,
        runs=tuple([_run(run, outcome) for run, outcome in runs]),
    )


def _run(run: Run, outcome: bytes | None) -> RunView:
    problem, ended = ended_with(run, outcome)
    return RunView(run.due, run.state, run.at, run.session_id, problem, ended)


def ended_with(sent: Run | Delivery, outcome: bytes | None) -> tuple[str | None, bool | None]:
    """Return the problem of a prompt that was sent, and whether its turn has ended; None if nobody knows any more."""
    problem, ended = sent.problem, True if sent.state != "fired" else None if outcome is None else outcome != UNKNOWN
    if outcome:
        try:
            result_of(outcome, sent.session_id or "")
        except WarrenError as exc:
            problem = exc.message
    return problem, ended


HANDLERS: Final[dict[type, Any]] = {
    ScheduleRequest: create,
    ScheduleChange: change,
    ScheduleDeletion: delete,
    SchedulesRequest: page,
}
