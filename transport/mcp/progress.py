"""The text of an event in the progress of a call."""

from warren.conversation import codec
from warren.conversation.event_text import text_of_event
from warren.conversation.events import Event, ReasoningDelta, TextDelta


def message_of(event: Event) -> str:
    """Return the text of an event for people: a piece of the answer, or a description of the event."""
    match event:
        case TextDelta(delta=delta) | ReasoningDelta(delta=delta):
            return delta
    return text_of_event(event) or str(codec.to_data(event)["type"]).replace("_", " ")
