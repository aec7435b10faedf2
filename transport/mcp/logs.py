"""Log messages for a client: the events of the turns that its own calls run, from the level that it has set."""

from typing import Final, get_args

import mcp_types as types

from warren.conversation import events
from warren.conversation.event_text import text_of_event

LEVELS: Final[tuple[types.LoggingLevel, ...]] = get_args(types.LoggingLevel)
"""The levels, the least important first."""
USUAL: Final[types.LoggingLevel] = "warning"
"""The level of a client that has set none."""
NAME: Final = "warren.turn"


def level_of(event: events.Event) -> types.LoggingLevel | None:
    """Return the log level of an event; None for an event that makes no log message, such as a piece of text."""
    match event:
        case events.RunFailed():
            return "error"
        case (
            events.Retrying()
            | events.RequestRepaired()
            | events.ModelSwitched()
            | events.TurnResumed()
            | events.BudgetWarning()
            | events.CompactionFailed()
            | events.ExtractionFailed()
            | events.ToolExecutionTimedOut()
        ):
            return "warning"
        case events.RunStarted() | events.RunCompleted() | events.ToolCallRequested():
            return "info"
    return "debug" if text_of_event(event) else None


def message_of(envelope: events.Envelope, level: types.LoggingLevel) -> types.LoggingMessageNotification:
    """Return an event as a log message."""
    event = envelope.event
    kind = type(event).__name__
    text = event.error if isinstance(event, events.RunFailed) else text_of_event(event)
    data = {"session_id": envelope.session_id, "seq": envelope.seq, "event": kind, "message": text or kind}
    return types.LoggingMessageNotification(
        params=types.LoggingMessageNotificationParams(level=level, logger=NAME, data=data)
    )
