"""`ToolRate`: a limit of the tool calls of a session in a minute."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import trio

from warren.agents.hooks import Asked, Denied, Go, HookedCall, Hooks, ToolOutcome
from warren.base.fields import FieldValueError

MINUTE: Final = 60.0


class ToolRate(Hooks):
    """Refuses tool calls of a session that has made too many within the last 60 seconds.

    A call that is refused does not count. The model gets the reason, with the seconds after which the next call may
    run. The process counts: a restart begins anew, and so does another node.

    Args:
        per_minute: the calls that a session may make in 60 seconds, all tools together; at least 1.
        tools: the names of the tools that count; None for all.

    Raises:
        ValueError: an argument is out of its range.
    """

    loop: Final = "trio"

    def __init__(self, per_minute: int, *, tools: Iterable[str] | None = None) -> None:
        if type(per_minute) is not int or per_minute < 1:
            raise FieldValueError("per_minute", "must be a whole number from 1 on")
        if isinstance(tools, str):
            raise FieldValueError("tools", "must be a list of names, not one text")
        self._most = per_minute
        self._tools = None if tools is None else frozenset(tools)
        self._calls = dict[str, deque[tuple[float, str]]]()  # by session, the one with the newest call at the end

    async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
        """Count the call, or refuse it."""
        counts = self._tools is None or call.name in self._tools
        if counts and call.given is None and not call.runs_again and (wait := self._count(call)) is not None:
            return call.deny(f"too many tool calls: at most {self._most} a minute; the next may run in {wait:.0f} s")
        return await go(call)

    def _count(self, call: HookedCall) -> float | None:
        """Count a call once; return the seconds until it may run if there are too many."""
        now = trio.current_time()
        self._forget(now - MINUTE)
        calls = self._calls.get(call.session_id, deque())
        while calls and calls[0][0] <= now - MINUTE:
            calls.popleft()
        if any(key == call.key for _, key in calls):  # it has waited, and its hooks are called again
            return None
        if len(calls) >= self._most:
            return max(1.0, calls[0][0] + MINUTE - now)
        calls.append((now, call.key))
        self._calls.pop(call.session_id, None)
        self._calls[call.session_id] = calls
        return None

    def _forget(self, before: float) -> None:
        """Forget the sessions without a newer call."""
        while self._calls and (oldest := next(iter(self._calls.items())))[1][-1][0] <= before:
            del self._calls[oldest[0]]
