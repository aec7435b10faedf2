"""Calls about schedules: prompts that are due at times of their own."""

from datetime import datetime
from typing import Any, ClassVar

import attrs

from warren.base.fields import (
    CAN_CONFLICT,
    AtMost,
    Between,
    FieldValueError,
    InstanceOf,
    OneOf,
    is_flag,
    is_moment,
    is_text,
    is_whole,
    not_blank,
    optional,
)
from warren.base.values import frozen
from warren.calls.answers import Deleted
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts
from warren.conversation.options import MAX_KEY, SessionTemplate
from warren.conversation.schedules import (
    MISFIRES,
    OVERLAPS,
    Misfire,
    Overlap,
    SchedulePage,
    ScheduleView,
    Timing,
    is_cron,
    is_span,
    is_zone,
)


@frozen
class ScheduleRequest(Timing, Call[ScheduleView]):
    """A schedule to make: one of `at`, `every` and `cron` says when it is due.

    Attributes:
        prompt: the prompt.
        session_id: the session that gets it, as a queued prompt; null makes a new session each time.
        new_session: the options of new sessions.
        misfire: of runs that are more than a minute late, as no process was there, `once` makes one, `skip` none, and
            `all` each of them.
        overlap: while the run before has not ended, `queue` lets the prompt wait in its session, and `skip` leaves the
            run out. Each new session gets its own prompt at once.
        paused: whether it is due at no time until it is changed.
        idempotency_key: of your own: a request that is sent again under the same key makes no second schedule, and has
            the first one as its result.
    """

    facts: ClassVar[Facts] = Facts(
        name="schedule/create",
        doc="Make a schedule: a prompt that is due once or again and again, for a session or a new one each time.",
        scope="session:write",
        audited="schedule",
    )
    prompt: str = attrs.field(validator=[is_text, not_blank])
    session_id: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True, metadata=CAN_CONFLICT)
    new_session: SessionTemplate | None = attrs.field(
        default=None, validator=InstanceOf(SessionTemplate), kw_only=True, metadata=CAN_CONFLICT
    )
    misfire: Misfire = attrs.field(default="once", validator=OneOf(MISFIRES), kw_only=True)
    overlap: Overlap = attrs.field(default="queue", validator=OneOf(OVERLAPS), kw_only=True)
    paused: bool = attrs.field(default=False, validator=is_flag, kw_only=True)
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options of new sessions for a session that is there. Raises FieldValueError."""
        super().__attrs_post_init__()
        if self.session_id is not None and self.new_session is not None:
            raise FieldValueError("new_session", "does not go with `session_id`")

    @property
    def timing(self) -> Timing:
        """The times at which it is due."""
        return timing_of(self)


@frozen
class ScheduleChange(Call[ScheduleView]):
    """A change of a schedule; what is null stays as it is.

    Attributes:
        schedule_id: the schedule.
        prompt: the new prompt.
        at: the one time; with `every` or `cron` it replaces all that was said of the times.
        every: the time from one run to the next.
        cron: a cron expression.
        zone: the time zone of that.
        start: no run is before it.
        end: no run is after it.
        misfire: what happens to runs that are missed.
        overlap: what happens to a run while the one before has not ended.
        paused: whether it is due at no time.
    """

    facts: ClassVar[Facts] = Facts(
        name="schedule/change",
        doc="Change a schedule, pause it, or let it go on.",
        scope="session:write",
        repeatable=True,
        audited="schedule",
    )
    schedule_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)
    prompt: str | None = attrs.field(default=None, validator=optional(is_text, not_blank), kw_only=True)
    at: datetime | None = attrs.field(default=None, validator=optional(is_moment), kw_only=True, metadata=CAN_CONFLICT)
    every: str | None = attrs.field(default=None, validator=is_span, kw_only=True, metadata=CAN_CONFLICT)
    cron: str | None = attrs.field(default=None, validator=is_cron, kw_only=True, metadata=CAN_CONFLICT)
    zone: str | None = attrs.field(default=None, validator=optional(is_zone), kw_only=True, metadata=CAN_CONFLICT)
    start: datetime | None = attrs.field(
        default=None, validator=optional(is_moment), kw_only=True, metadata=CAN_CONFLICT
    )
    end: datetime | None = attrs.field(default=None, validator=optional(is_moment), kw_only=True, metadata=CAN_CONFLICT)
    misfire: Misfire | None = attrs.field(default=None, validator=optional(OneOf(MISFIRES)), kw_only=True)
    overlap: Overlap | None = attrs.field(default=None, validator=optional(OneOf(OVERLAPS)), kw_only=True)
    paused: bool | None = attrs.field(default=None, validator=optional(is_flag), kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse a part of times without the rest. Raises FieldValueError."""
        if self.at is None and self.every is None and self.cron is None:
            for name in ("zone", "start", "end"):
                if getattr(self, name) is not None:
                    raise FieldValueError(name, "goes with `at`, `every` or `cron`")
        else:
            timing_of(self)

    @property
    def timing(self) -> Timing | None:
        """The new times; None if they stay."""
        return None if self.at is None and self.every is None and self.cron is None else timing_of(self)


def timing_of(call: Any) -> Timing:
    """Return the times of a call. Raises FieldValueError."""
    return Timing(at=call.at, every=call.every, cron=call.cron, zone=call.zone or "UTC", start=call.start, end=call.end)


@frozen
class ScheduleDeletion(Call[None]):
    """A schedule to remove. A prompt of it that waits already is not taken back.

    Attributes:
        schedule_id: the schedule.
    """

    facts: ClassVar[Facts] = Facts(
        name="schedule/delete",
        doc="Remove a schedule.",
        scope="session:write",
        repeatable=True,
        audited="unschedule",
        wraps=Deleted,
    )
    schedule_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)


@frozen(kw_only=True)
class SchedulesRequest(Call[SchedulePage]):
    """A page of the schedules.

    Attributes:
        session_id: return only those whose prompts this session gets.
        offset: number of schedules to skip.
        limit: the most schedules to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="schedule/list",
        doc="List the schedules with their newest runs, the oldest schedule first.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    session_id: str | None = attrs.field(default=None, validator=optional(is_text))
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])
