"""The calls of an answer that a process has left: which of them had begun, and their results if nobody goes on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from warren.conversation import aliases, codec
from warren.conversation.events import Event, ToolApprovalResolved, ToolResultReceived
from warren.conversation.messages import AssistantMessage, ToolResult, ToolResultsMessage, ToolUseBlock
from warren.conversation.open_turn import KeptCall
from warren.conversation.transcript import Transcript
from warren.conversation.waits import DECIDED, Wait, WaitKey, WaitReason
from warren.models.tools import Tool

NOTHING_LEFT: Final[Mapping[str, KeptCall]] = {}
NO_WAITS: Final[Mapping[WaitKey, Wait]] = {}
NOT_COME: Final = "not known: the call has begun, and its result had not come when the turn ended"
GIVEN: Final[tuple[WaitReason, ...]] = ("client", "outside", "child", "peer")
"""The reasons to wait for a result."""
MAY_HAVE_RUN: Final = (
    "not known: the process ended while this call ran. The call may have taken effect in full, in part or not at all: "
    "find out before you make it again"
)


def named(tools: Mapping[str, Tool], name: str) -> Tool | None:
    """Return the tool with a name, which may be an older one of it; None if there is none."""
    return tools.get(name) or tools.get(aliases.TOOLS.get(name, ""))


def begun(calls: Mapping[str, KeptCall], waits: Mapping[WaitKey, Wait], wait: Wait) -> bool:
    """Return whether a call that a process has left has begun, and may get the result of a wait as its first one."""
    kept = calls.get(wait.wait_id)  # of which call of this id it is shows when the turn goes on
    return kept is not None and kept.state == "begun" and wait.key not in waits


def left_results(
    context: Transcript, left: Mapping[str, KeptCall], waits: Mapping[WaitKey, Wait], reason: str
) -> ToolResultsMessage | None:
    """Return the results of an answer whose calls a turn that ends has left; None if the newest message has no calls.

    Args:
        context: the context.
        left: the states of the calls, by id.
        waits: the waits of the calls.
        reason: the result of a call that has not begun.
    """
    calls = _newest_calls(context)
    if not calls:
        return None
    come = {wait.call_id: wait for wait in waits.values() if wait.reason in GIVEN}
    results = [_left_result(call, left.get(call.id), come.get(call.id), reason) for call in calls]
    return ToolResultsMessage(tuple(results))


def is_elsewhere(wait: Wait) -> bool:
    """Return whether the work of a call of a turn goes on elsewhere, where it is to be looked at."""
    return wait.reason == "outside" and "handle" in (wait.data or {})


def left_elsewhere(left: Mapping[str, KeptCall], waits: Mapping[WaitKey, Wait]) -> list[Wait]:
    """Return the waits of calls that a process has left without a result, and whose work goes on elsewhere."""
    results = {call_id for call_id, kept in left.items() if kept.result is not None}
    return [wait for wait in waits.values() if is_elsewhere(wait) and wait.call_id not in results]


def cancels(waits: Sequence[Wait], tools: Mapping[str, Tool]) -> list[Callable[[], None]]:
    """Return functions that have work end that goes on elsewhere; none of them waits.

    Args:
        waits: the waits of its calls.
        tools: the tools of the session, by name. Work whose tool is not among them cannot be ended.
    """
    found = list[Callable[[], None]]()
    for wait in waits:
        tool = named(tools, wait.name)
        if tool is not None and tool.remote is not None:
            found.append(partial(tool.remote.cancel, (wait.data or {})["handle"]))
    return found


def left_events(
    context: Transcript, left: Mapping[str, KeptCall], waits: Mapping[WaitKey, Wait], results: ToolResultsMessage
) -> Iterator[Event]:
    """Yield the events with which the calls end that had no result before `left_results`, which are not added yet."""
    for wait in waits.values():
        if wait.reason in DECIDED and wait.state == "waiting":
            yield ToolApprovalResolved(wait.wait_id, wait.name, "cancelled")
    for call, result in zip(_newest_calls(context), results.results, strict=True):
        kept = left.get(call.id)
        if kept is None or kept.result is None:
            yield ToolResultReceived(call.id, call.name, result.is_error, result.content)


def _newest_calls(context: Transcript) -> Sequence[ToolUseBlock]:
    newest = codec.decode_message(context.rows[-1]) if context.rows else None
    return newest.tool_calls if isinstance(newest, AssistantMessage) else ()


def _left_result(call: ToolUseBlock, left: KeptCall | None, wait: Wait | None, reason: str) -> ToolResult:
    if left is not None and left.result is not None:
        return left.result
    if wait is not None:
        return wait.result or ToolResult(call.id, NOT_COME, is_error=True)
    begun = left is not None and left.state == "begun"
    return ToolResult(call.id, MAY_HAVE_RUN if begun else reason, is_error=True)
