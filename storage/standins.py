"""Stand-ins for messages that are damaged in the store or missing, so that the conversation can go on."""

import logging
from collections.abc import Sequence
from typing import Final

from warren.base.errors import StoreError
from warren.conversation import codec
from warren.conversation.messages import (
    AssistantMessage,
    ContextMessage,
    Message,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
)
from warren.conversation.records import MessageRow
from warren.storage.results import Rows

NO_MESSAGE: Final = "[A message that stood here is damaged in the store and cannot be read.]"
NO_SUMMARY: Final = "[The summary of the conversation before is damaged in the store and cannot be read.]"
MOST_STAND_INS: Final = 10_000
logger: Final = logging.getLogger("warren.storage")


def complete(rows: Rows[MessageRow], first: int, end: int) -> list[bytes]:
    """Return the messages at the positions from `first` to `end`, with a stand-in for each that is not among `rows`.

    Raises StoreError(cause="corrupt") if more than `MOST_STAND_INS` are missing: then the session's count is damaged.
    """
    found = {row.position: row.body for row in rows}
    missing = end - first - len(found)
    if missing > MOST_STAND_INS:
        problem = f"{missing} of {end - first} messages are missing in the store: restore a backup"
        raise StoreError(problem, cause="corrupt", retryable=False)
    if missing > 0:
        problems = {each.row: each.problem for each in rows.damaged}
        for position in range(first, end):
            if position not in found:
                problem = problems.get(str(position), "it is missing")
                logger.error("message %d has a stand-in, it cannot be read: %s", position, problem)
                found[position] = codec.encode(stand_in(found.get(position - 1), found.get(position + 1)))
    return [found[position] for position in range(first, end)]


def stand_in(before: bytes | None, after: bytes | None) -> Message:
    """Return a message for the place between two others: providers refuse a tool call without its result."""
    calls, results = _calls(before), _results(after)
    if calls:
        return ToolResultsMessage(tuple(ToolResult(call.id, NO_MESSAGE, is_error=True) for call in calls))
    if results:
        asked = (ToolUseBlock(result.tool_use_id, "unknown") for result in results)
        return AssistantMessage((TextBlock(NO_MESSAGE), *asked), "tool_use")
    return ContextMessage(NO_MESSAGE)


def _calls(body: bytes | None) -> Sequence[ToolUseBlock]:
    message = None if body is None else codec.decode_message(body)
    return message.tool_calls if isinstance(message, AssistantMessage) else ()


def _results(body: bytes | None) -> Sequence[ToolResult]:
    message = None if body is None else codec.decode_message(body)
    return message.results if isinstance(message, ToolResultsMessage) else ()
