"""The times of schedules: once, on a grid, and by cron in a time zone whose clocks change."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from warren.base.fields import FieldValueError
from warren.conversation.schedules import GRACE, Misfire, Schedule, Timing, firing_of

MADE = datetime(2027, 3, 1, 12, tzinfo=UTC)
BERLIN = "Europe/Berlin"


def times(timing: Timing, count: int, after: datetime = MADE) -> list[str]:
    """Return the first times after a moment, by the clock of the zone."""
    found, moment = list[str](), after
    while len(found) < count and (due := timing.next_after(moment, MADE)) is not None:
        assert due > moment
        assert due.tzinfo is UTC
        found.append(f"{due:%m-%d %H:%M:%S}")
        moment = due
    return found


def test_once() -> None:
    """It is due at its time, and never again."""
    timing = Timing(at=datetime(2027, 3, 2, tzinfo=UTC))
    assert times(timing, 3) == ["03-02 00:00:00"]
    assert timing.next_after(datetime(2027, 3, 2, tzinfo=UTC), MADE) is None


def test_on_a_grid() -> None:
    """The grid begins when the schedule is made, or at its start; it does not drift with those who come late."""
    assert times(Timing(every="90s"), 2) == ["03-01 12:01:30", "03-01 12:03:00"]
    start = datetime(2027, 3, 1, 12, 0, 10, tzinfo=UTC)
    timing = Timing(every="1m", start=start, end=start + timedelta(minutes=2))
    assert times(timing, 9) == ["03-01 12:00:10", "03-01 12:01:10", "03-01 12:02:10"]
    assert times(timing, 1, start + timedelta(seconds=59.5)) == ["03-01 12:01:10"]


def test_by_cron_over_the_changes_of_summer_time() -> None:
    """A time that the change leaves out comes at its end; one that comes twice comes once; leap days come."""
    night = Timing(cron="30 2 * * *", zone=BERLIN)
    spring = datetime(2027, 3, 26, 12, tzinfo=UTC)
    assert times(night, 3, spring) == ["03-27 01:30:00", "03-28 01:00:00", "03-29 00:30:00"]
    autumn = datetime(2027, 10, 29, 12, tzinfo=UTC)
    assert times(night, 3, autumn) == ["10-30 00:30:00", "10-31 00:30:00", "11-01 01:30:00"]
    hourly = Timing(cron="0 * * * *", zone=BERLIN)
    assert times(hourly, 3, datetime(2027, 10, 30, 23, 30, tzinfo=UTC)) == [
        "10-31 00:00:00",
        "10-31 01:00:00",
        "10-31 02:00:00",
    ]
    leap = Timing(cron="0 0 29 2 *")
    assert [leap.next_after(MADE, MADE)] == [datetime(2028, 2, 29, tzinfo=UTC)]
    start = datetime(2027, 3, 2, 9, 30, tzinfo=UTC)
    assert times(Timing(cron="30 9 * * *", start=start), 1) == ["03-02 09:30:00"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "at"),
        ({"every": "1m", "cron": "* * * * *"}, "cron"),
        ({"at": MADE, "every": "1m"}, "every"),
        ({"at": datetime(2027, 1, 1)}, "at"),  # noqa: DTZ001 - the time without a zone is what is refused
        ({"every": "soon"}, "every"),
        ({"every": "0.5s"}, "every"),
        ({"every": "5000d"}, "every"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"cron": "* * * * *", "zone": "Mars/Olympus"}, "zone"),
        ({"cron": "* * * * *", "zone": "../../etc/passwd"}, "zone"),
        ({"cron": "* * * * *", "zone": "Europe"}, "zone"),
        ({"every": "1m", "zone": BERLIN}, "zone"),
        ({"at": MADE, "end": MADE}, "end"),
        ({"every": "1m", "start": MADE, "end": MADE - GRACE}, "end"),
    ],
)
def test_bad_times_are_refused(given: dict[str, Any], field: str) -> None:
    """The error names the field."""
    with pytest.raises(FieldValueError) as refused:
        Timing(**given)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("misfire", "late", "fires", "next_minute"),
    [
        ("once", 0, True, 1),
        ("once", 1, True, 1),
        ("once", 5, True, 5),
        ("skip", 1, True, 1),
        ("skip", 5, False, 5),
        ("all", 5, True, 1),
    ],
)
def test_runs_that_were_missed(misfire: Misfire, late: int, fires: bool, next_minute: int) -> None:  # noqa: FBT001
    """A run may be a minute late; of those that are later all, one or none happens."""
    due = MADE + timedelta(minutes=1)
    schedule = Schedule("s", "default", "ann", MADE, "go", Timing(every="1m"), misfire=misfire, due=due)
    firing = firing_of(schedule, due, due + timedelta(minutes=late))
    assert (firing.fires, firing.following) == (fires, due + timedelta(minutes=next_minute))
    paused = firing_of(schedule.changed(paused=True), due, due)
    assert paused.following is None
