"""The tool by which a model puts a prompt for later into the inbox of its own session."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

import attrs

from warren.actors.resources.storage import Storage
from warren.actors.session.inboxes import Inboxes
from warren.actors.turn.background import Origin
from warren.base.durations import seconds_of
from warren.base.errors import WarrenError
from warren.base.ids import id_under
from warren.base.values import define
from warren.conversation.inputs import Input
from warren.conversation.records import SessionRecord
from warren.conversation.schedules import LEAST, MOST
from warren.models.tools import Tool, ToolError, current_call, tool
from warren.settings.tool_config import ToolsConfig

WAKE_ME: Final = "wake_me"
"""The tool by which a model is woken later."""
DESCRIPTION: Final = (
    "Be woken later with a note of your own, when this turn has ended. Say `after` or `at`. It comes once, as a prompt "
    "of this session, also if nobody is there."
)


@define(eq=False)
class Reminders:
    """Has sessions woken whose models ask for it. A reminder is a queued prompt that waits for its time."""

    _inboxes: Inboxes
    _storage: Storage
    _turn_of: Callable[[str], tuple[str, Origin]]  # the tenant of a session, and what is kept of its running turn
    _tool: Tool | None = None  # the same for all sessions, which share the settings of their turns

    def tools_of(self, record: SessionRecord, config: ToolsConfig | None) -> Mapping[str, Tool]:
        """Return the tool of a session's model; none unless the settings or the session's list of tools have it."""
        named = record.options.tools
        if not (config is not None and config.wake_me) and not (named is not None and WAKE_ME in named):
            return {}
        if self._tool is None:
            # Its schema takes time, and few runtimes have it.
            made = tool(name=WAKE_ME, description=DESCRIPTION, category="comms", restart="replay")(
                partial(_wake_me, None)
            )
            self._tool = attrs.evolve(made, call=partial(_wake_me, self))
        return {WAKE_ME: self._tool}

    async def remind(self, note: str, after: str | None, at: str | None) -> datetime:
        """Put the prompt of the running call into the inbox of its session, once; return its time.

        Raises ToolError if the arguments are bad, or the prompt is refused.
        """
        call, now = current_call(), self._storage.now()
        due, key = _due(after, at, now), f"{WAKE_ME}:{call.key}"
        tenant, origin = self._turn_of(call.session_id)
        said = Input(
            id_under(key),
            "queue",
            f"This is the reminder that you asked for with {WAKE_ME} at {_shown(now)}:\n\n{note}",
            now,
            key,
            WAKE_ME,
            options=origin.options,
            payer=origin.payer,
            hops=origin.hops,
            not_before=due,
        )
        try:
            put = await self._inboxes.put_or_find(call.session_id, said, self._inboxes.accounts_of(tenant))
        except WarrenError as exc:
            raise ToolError(f"no reminder: {exc.message}") from exc
        return put.numbered.input.not_before or due  # of a call that has run before, the time that it said then


def _due(after: str | None, at: str | None, now: datetime) -> datetime:
    """Return the time that the arguments name. Raises ToolError."""
    if (after is None) == (at is None):
        raise ToolError("after: give one of after and at")
    if after is not None:
        seconds = seconds_of(after)
        if seconds is None or not LEAST <= seconds <= MOST:
            raise ToolError("after: must be a time span from 1s to 3660d, such as 30s, 15m, 1h30m or 7d")
        return now + timedelta(seconds=seconds)
    try:
        due = datetime.fromisoformat(at or "").astimezone(UTC) if at and datetime.fromisoformat(at).tzinfo else None
    except (ValueError, OverflowError):
        due = None
    if due is None:
        raise ToolError("at: must be a time with a zone, such as 2027-03-01T09:30:00+01:00")
    if not now < due <= now + timedelta(seconds=MOST):
        raise ToolError(f"at: must be a time to come within ten years; it is {_shown(now)} now")
    return due


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


async def _wake_me(
    reminders: Any,
    *,
    note: Annotated[str, "what to do then, with all that you have to know for it"],
    after: Annotated[str | None, "a time span from now on, such as 30s, 15m, 1h30m or 7d"] = None,
    at: Annotated[str | None, "or a time with a zone, such as 2027-03-01T09:30:00+01:00"] = None,
) -> str:
    if not note.strip():
        raise ToolError("note: must not be blank")
    due: datetime = await reminders.remind(note, after, at)
    return f"You will be woken at {_shown(due)} with your note."
