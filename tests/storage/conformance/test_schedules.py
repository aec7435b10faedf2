"""Schedules in each home: taken when they are due, once for each time, with what became of their runs."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conformance.homes import DONE, Home, done
from tests.storage.samples import NOW, turn
from warren.base.errors import CapacityExceededError, InvalidParamsError, SessionNotFoundError
from warren.conversation.inputs import Input
from warren.conversation.schedules import KEPT_RUNS, Run, Schedule, Timing
from warren.storage.operations import (
    UNKNOWN,
    Advance,
    Archive,
    Delete,
    DropSchedule,
    EndInputs,
    Enqueue,
    InputOutcome,
    PutSchedule,
    TakeDue,
)
from warren.storage.queries import NextDue, ScheduleList, ScheduleRow
from warren.storage.rows import key_of
from warren.storage.store import Store

LIMIT = 3
PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2120, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def schedule(number: int = 0, **changes: Any) -> Schedule:
    """Return a schedule that is due a few minutes after `PAST`."""
    timing = Timing(every="1m", start=PAST)
    made = Schedule(
        f"schedule-{number}", "default", "ann", NOW, "water the plants\0", timing, due=PAST + number * MINUTE
    )
    return made.changed(**changes)


async def put(store: Store, *schedules: Schedule) -> None:
    """Store schedules."""
    for each in schedules:
        assert await done(store, PutSchedule(each, LIMIT)) == each


async def listed(store: Store, **query: Any) -> list[tuple[Schedule, list[tuple[Run, bytes | None]]]]:
    """Return the schedules of the tenant, with their runs."""
    return [(each, list(runs)) for each, runs in await store.read(ScheduleList("default", **query))]


async def test_a_schedule_is_stored_and_listed(home: Home, tmp_path: Path) -> None:
    """It comes back as it was, to its tenant alone, and in the order in which they were made."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        one, two = schedule(session_id="a", key="k"), schedule(1, due=None, paused=True, problem="odd\0")
        other = schedule(2, tenant="other")
        await put(store, one, two, other)
        assert await store.read(ScheduleRow("default", "schedule-0")) == one
        assert await store.read(ScheduleRow("default", "schedule-2")) is None
        assert await listed(store) == [(one, []), (two, [])]
        assert await listed(store, limit=1, offset=1) == [(two, [])]
        assert await listed(store, session_id="a") == [(one, [])]
        assert await listed(store, schedule_id="schedule-1") == [(two, [])]
        assert await done(store, PutSchedule(schedule(3, key="k"), LIMIT)) == one
        assert await store.read(NextDue()) == PAST


async def test_a_schedule_is_refused(home: Home, tmp_path: Path) -> None:
    """One for a session that is not there, one of too many, and a change of one that is not there."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, turn("old"))
        await done(store, Archive("old"))
        for unknown in ("b", "old"):
            with pytest.raises(SessionNotFoundError):
                await put(store, schedule(session_id=unknown))
        with pytest.raises(SessionNotFoundError):
            await put(store, schedule(session_id="a", tenant="other"))
        for changed in (schedule(), schedule(tenant="other")):
            with pytest.raises(InvalidParamsError, match="no schedule"):
                await done(store, PutSchedule(changed, LIMIT, replaces=True))
        await put(store, *map(schedule, range(LIMIT)))
        with pytest.raises(CapacityExceededError) as refused:
            await put(store, schedule(LIMIT))
        assert (refused.value.cause, refused.value.retryable) == ("tenant_schedules", False)
        changed = schedule(1, prompt="other", due=FUTURE)
        assert await done(store, PutSchedule(changed, LIMIT, replaces=True)) == changed
        assert await store.read(ScheduleRow("default", "schedule-1")) == changed


async def test_what_is_due_is_taken_in_order_until_it_advances(home: Home, tmp_path: Path) -> None:
    """The same process gets it again; once advanced, it is due at its next time, and the run is kept."""
    async with home(tmp_path) as store:
        await put(store, schedule(2), schedule(0), schedule(1, due=FUTURE))
        assert [each.schedule.due for each in (await done(store, TakeDue(9))).due] == [PAST, PAST + 2 * MINUTE]
        assert [each.schedule.due for each in (await done(store, TakeDue(1))).due] == [PAST]
        assert [each.schedule.due for each in (await done(store, TakeDue(1, ("schedule-0",)))).due] == [
            PAST + 2 * MINUTE
        ]
        run = Run(PAST, "missed", NOW)
        await done(store, Advance("schedule-0", run, FUTURE))
        await done(store, Advance("schedule-0", Run(PAST, "fired", NOW), None))  # it is late: another process did it
        assert [each.schedule.schedule_id for each in (await done(store, TakeDue(9))).due] == ["schedule-2"]
        assert await listed(store, schedule_id="schedule-0") == [(schedule(due=FUTURE), [(run, None)])]
        await done(
            store, Advance("schedule-2", Run(PAST + 2 * MINUTE, "failed", NOW, problem="x\0"), None, "no\0 more")
        )
        (ended,) = await listed(store, schedule_id="schedule-2")
        assert (ended[0].due, ended[0].problem, ended[0].state) == (None, "no\0 more", "ended")
        assert await store.read(NextDue()) == FUTURE


async def test_a_run_that_has_fired_is_kept_though_its_schedule_was_changed(home: Home, tmp_path: Path) -> None:
    """Its prompt is there, also if the schedule got another time before the run was noted; nothing else is kept."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await put(store, schedule(session_id="a"))
        await done(store, PutSchedule(schedule(session_id="a", due=FUTURE), LIMIT, replaces=True))
        fired = Run(PAST, "fired", NOW, "a")
        await done(store, Advance("schedule-0", fired, None, "no more"))
        await done(store, Advance("schedule-0", Run(PAST, "failed", NOW, "a"), None))
        await done(store, Advance("schedule-0", Run(PAST + MINUTE, "missed", NOW), None))
        await done(store, Advance("schedule-9", fired, None))
        assert await listed(store) == [(schedule(session_id="a", due=FUTURE), [(fired, None)])]


async def test_the_newest_runs_are_kept_with_their_ends(home: Home, tmp_path: Path) -> None:
    """A run is busy from the moment in which its prompt waits up to the end of the turn that takes it."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await put(store, schedule(session_id="a", overlap="skip"))
        dues = [PAST + number * MINUTE for number in range(KEPT_RUNS + 2)]
        for due, following in pairwise(dues):
            await done(store, Advance("schedule-0", Run(due, "fired", NOW, "a"), following))
        ((_, runs),) = await listed(store)
        assert [run.due for run, _ in runs] == dues[-2 : -KEPT_RUNS - 2 : -1]
        (found,) = (await done(store, TakeDue(1))).due
        assert not found.busy
        said = Input("id", "queue", "water", NOW, key_of("schedule-0", dues[-2]))
        numbered = (await done(store, Enqueue("a", said, 9))).numbered
        (found,) = (await done(store, TakeDue(1))).due
        assert found.busy
        ((_, runs),) = await listed(store)
        assert [outcome for _, outcome in runs[:2]] == [UNKNOWN, None]
        await done(store, EndInputs("a", InputOutcome((numbered.number,), UNKNOWN)))
        ((_, runs),) = await listed(store)
        assert runs[0][1] == UNKNOWN
        await done(store, EndInputs("a", InputOutcome((numbered.number,), DONE)))
        ((_, runs),) = await listed(store)
        assert [outcome for _, outcome in runs[:2]] == [DONE, None]
        (found,) = (await done(store, TakeDue(1))).due
        assert not found.busy


async def test_the_prompt_of_a_run_is_found_at_any_time(home: Home, tmp_path: Path) -> None:
    """Also at one that a number with a fraction holds only nearly: the key has the time as the store has it."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        due = datetime(2041, 1, 12, 10, 20, 6, 545551, tzinfo=UTC)
        await put(store, schedule(session_id="a", due=due))
        await done(store, Enqueue("a", Input("id", "queue", "water", NOW, key_of("schedule-0", due)), 9))
        await done(store, Advance("schedule-0", Run(due, "fired", NOW, "a"), None))
        ((_, runs),) = await listed(store)
        assert [outcome for _, outcome in runs] == [UNKNOWN]


async def test_a_schedule_goes(home: Home, tmp_path: Path) -> None:
    """By itself, for its tenant alone, and with its session."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await put(store, schedule(), schedule(1, session_id="a"), schedule(2))
        await done(store, Advance("schedule-1", Run(PAST + MINUTE, "fired", NOW, "a"), FUTURE))
        assert not await done(store, DropSchedule("other", "schedule-0"))
        assert await done(store, DropSchedule("default", "schedule-0"))
        assert not await done(store, DropSchedule("default", "schedule-0"))
        await done(store, Delete("a"))
        assert [each.schedule_id for each, _ in await listed(store)] == ["schedule-2"]
        assert len((await done(store, TakeDue(9))).due) == 1
