"""Schedules: prompts that are due at times of their own, to a session or to a new one each time. No I/O."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs

from warren.base.durations import seconds_of
from warren.base.fields import CAN_CONFLICT, FieldValueError, is_moment, is_text, optional
from warren.base.tenant_limits import NO_LIMITS, TokenLimits
from warren.base.values import frozen, value
from warren.conversation.options import SessionTemplate
from warren.conversation.views import DamagedRow

Misfire = Literal["once", "skip", "all"]
MISFIRES: Final[tuple[Misfire, ...]] = get_args(Misfire)
Overlap = Literal["queue", "skip"]
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
RunState = Literal["fired", "skipped", "missed", "failed"]
RUN_STATES: Final[tuple[RunState, ...]] = get_args(RunState)
ScheduleState = Literal["active", "paused", "ended"]
GRACE: Final = timedelta(seconds=60)
"""The time by which a run may be late and still not count as missed."""
LEAST: Final = 1.0
"""Seconds at least from one run to the next."""
MOST: Final = 10 * 366 * 86_400.0
"""Seconds at most from one run to the next."""
KEPT_RUNS: Final = 20
"""Runs that are kept of a schedule, the newest ones."""
_MICROSECOND: Final = timedelta(microseconds=1)


def is_span(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse texts that are no time from one run to the next; None passes."""
    if value is None:
        return
    seconds = seconds_of(value) if isinstance(value, str) else None
    if seconds is None:
        raise FieldValueError(attribute.name, "must be a time span, such as 30s, 15m, 1h30m or 7d")
    if not LEAST <= seconds <= MOST:
        raise FieldValueError(attribute.name, "must be from 1s to 3660d")


def is_zone(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that are no name of a time zone."""
    is_text(_instance, attribute, value)
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FieldValueError(attribute.name, "must be the name of a time zone, such as Europe/Berlin") from None


def is_cron(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse texts that are no cron expression; None passes."""
    if value is None:
        return
    is_text(_instance, attribute, value)
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - few programs have one

    try:
        CronSim(value, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as exc:
        problem = f"must be a cron expression, such as '30 9 * * mon-fri': {str(exc)[:1].lower()}{str(exc)[1:]}"
        raise FieldValueError(attribute.name, problem) from None


@frozen(kw_only=True)
class Timing:
    """The times at which a schedule is due: one of `at`, `every` and `cron`.

    Attributes:
        at: the one time.
        every: the time from one run to the next, such as 30s, 15m or 1h30m; the first run is at `start`, or else that
            long after the schedule was made.
        cron: a cron expression of five fields, or of six with the seconds first.
        zone: the time zone of the cron expression. A run in an hour that a change of the clocks leaves out comes at the
            end of that hour, and one in an hour that comes twice comes once, unless the expression has each hour.
        start: no run is before it.
        end: no run is after it.
    """

    at: datetime | None = attrs.field(default=None, validator=optional(is_moment), metadata=CAN_CONFLICT)
    every: str | None = attrs.field(default=None, validator=is_span, metadata=CAN_CONFLICT)
    cron: str | None = attrs.field(default=None, validator=is_cron, metadata=CAN_CONFLICT)
    zone: str = attrs.field(default="UTC", validator=is_zone, metadata=CAN_CONFLICT)
    start: datetime | None = attrs.field(default=None, validator=optional(is_moment), metadata=CAN_CONFLICT)
    end: datetime | None = attrs.field(default=None, validator=optional(is_moment), metadata=CAN_CONFLICT)

    def __attrs_post_init__(self) -> None:
        """Refuse none of the kinds of times, or two of them. Raises FieldValueError."""
        kinds = [name for name in ("at", "every", "cron") if getattr(self, name) is not None]
        if not kinds:
            raise FieldValueError("at", "is needed, or `every` or `cron`")
        if len(kinds) > 1:
            raise FieldValueError(kinds[1], f"does not go with `{kinds[0]}`")
        if self.zone != "UTC" and self.cron is None:
            raise FieldValueError("zone", "goes with `cron`")
        for name in ("start", "end"):
            if self.at is not None and getattr(self, name) is not None:
                raise FieldValueError(name, "does not go with `at`")
        if self.start is not None and self.end is not None and self.end < self.start:
            raise FieldValueError("end", "must not be before `start`")

    def next_after(self, moment: datetime, made: datetime) -> datetime | None:
        """Return the first time after a moment (UTC); None if there is none.

        Args:
            moment: the moment.
            made: the time at which the schedule was made.
        """
        if self.at is not None:
            found: datetime | None = self.at if self.at > moment else None
        elif self.every is not None:
            found = self._on_grid(moment, made)
        else:
            found = self._by_cron(moment if self.start is None else max(moment, self.start - _MICROSECOND))
        if found is None or (self.end is not None and found > self.end):
            return None
        return found.astimezone(UTC)

    def _on_grid(self, moment: datetime, made: datetime) -> datetime:
        step = timedelta(seconds=seconds_of(self.every or "") or LEAST)
        first = made + step if self.start is None else self.start
        if moment < first:
            return first
        return first + ((moment - first) // step + 1) * step

    def _by_cron(self, moment: datetime) -> datetime | None:
        from cronsim import CronSim  # noqa: PLC0415 - few programs have one

        return next(CronSim(self.cron or "", moment.astimezone(ZoneInfo(self.zone))), None)


@value
class Run:
    """One time at which a schedule was due.

    Attributes:
        due: the time (UTC).
        state: `fired`: the prompt is in the inbox of its session. `skipped`: the run before had not ended. `missed`: no
            process was there, and the schedule leaves such runs out. `failed`: the prompt was refused.
        session_id: the session that got the prompt.
        at: the time at which it was dealt with (UTC): of one that has fired, the time at which the prompt was stored.
        problem: the reason why it failed.
    """

    due: datetime
    state: RunState
    at: datetime
    session_id: str | None = None
    problem: str | None = None


@value
class Schedule:
    """A prompt with the times at which it is due.

    Attributes:
        schedule_id: the id.
        tenant: the tenant that it belongs to.
        owner: the name of the principal that made it.
        limits: the limits of that principal: its turns are held against them.
        created_at: the time at which it was made (UTC).
        prompt: the prompt.
        timing: the times.
        session_id: the session that gets the prompt; None makes a new one each time.
        new_session: the options of new sessions.
        misfire: what happens to runs that are more than `GRACE` late.
        overlap: what happens to a run while the one before has not ended.
        paused: whether it is due at no time, until it is changed.
        due: the time of the next run (UTC); None for none.
        key: the idempotency key under which it was made.
        problem: the reason why it has ended, if it is another one than its times.
    """

    schedule_id: str
    tenant: str
    owner: str
    created_at: datetime
    prompt: str
    timing: Timing
    limits: TokenLimits = NO_LIMITS
    session_id: str | None = None
    new_session: SessionTemplate | None = None
    misfire: Misfire = "once"
    overlap: Overlap = "queue"
    paused: bool = False
    due: datetime | None = None
    key: str | None = None
    problem: str | None = None

    @property
    def state(self) -> ScheduleState:
        """Its state."""
        return "paused" if self.paused else "ended" if self.due is None else "active"

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first time after a moment at which it is due; None if it is paused, and if there is none."""
        return None if self.paused else self.timing.next_after(moment, self.created_at)

    def changed(self, **changes: Any) -> "Schedule":
        """Return a copy with other values of the named fields."""
        return attrs.evolve(self, **changes)


@value
class Firing:
    """What becomes of a run that is due.

    Attributes:
        fires: whether it happens; if not, it was missed.
        following: the time of the run after it; None for none.
    """

    fires: bool
    following: datetime | None


def firing_of(schedule: Schedule, due: datetime, now: datetime) -> Firing:
    """Return what becomes of a run at a time that may be late. Of several missed runs `once` makes one."""
    missed_to = now - GRACE
    if due >= missed_to or schedule.misfire == "all":
        return Firing(True, schedule.next_after(due))
    return Firing(schedule.misfire == "once", schedule.next_after(missed_to))


@value
class RunView:
    """A run as callers see it.

    Attributes:
        due: the time at which it was due (UTC).
        state: `fired`, `skipped`, `missed` or `failed`; of one that fired `ended` says more.
        session_id: the session that got the prompt.
        at: the time at which it was dealt with (UTC).
        problem: the reason why it failed, or the error of its turn.
        ended: whether its turn has ended; null if that is not known any more.
    """

    due: datetime
    state: RunState
    at: datetime
    session_id: str | None = None
    problem: str | None = None
    ended: bool | None = False


@value
class ScheduleView:
    """A schedule as callers see it.

    Attributes:
        schedule_id: the id.
        state: `active`, `paused` or `ended`.
        prompt: the prompt.
        session_id: the session that gets it; null for a new one each time.
        new_session: the options of new sessions.
        at: its one time.
        every: the time from one run to the next.
        cron: its cron expression.
        zone: the time zone of that.
        start: no run is before it.
        end: no run is after it.
        misfire: what happens to runs that are missed.
        overlap: what happens to a run while the one before has not ended.
        next_at: the time of the next run (UTC); null for none.
        created_at: the time at which it was made (UTC).
        owner: the name of the principal that made it.
        problem: the reason why it has ended, if it is another one than its times.
        runs: its newest runs, the newest first.
    """

    schedule_id: str
    state: ScheduleState
    prompt: str
    session_id: str | None
    new_session: SessionTemplate | None
    at: datetime | None
    every: str | None
    cron: str | None
    zone: str
    start: datetime | None
    end: datetime | None
    misfire: Misfire
    overlap: Overlap
    next_at: datetime | None
    created_at: datetime
    owner: str
    problem: str | None
    runs: tuple[RunView, ...] = ()


@value
class SchedulePage:
    """A page of schedules.

    Attributes:
        schedules: the page.
        damaged: damaged rows of the page; they are missing in `schedules`.
    """

    schedules: tuple[ScheduleView, ...]
    damaged: tuple[DamagedRow, ...] = ()
