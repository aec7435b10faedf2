"""A recorder of the events that a test hears of its turns."""

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from warren.base.values import define, frozen
from warren.conversation.events import Envelope, Event, ToolCallRequested, ToolExecutionCompleted, ToolResultReceived

E = TypeVar("E", bound=Event)


@frozen
class RecordedCall:
    """A tool call that a recorder has heard of.

    Attributes:
        id: its id, from the model.
        name: the tool.
        args: its arguments.
        result: the text that the model got for it; None until there is one.
        is_error: whether it has failed.
    """

    id: str
    name: str
    args: Mapping[str, Any]
    result: str | None = None
    is_error: bool = False


@define(eq=False)
class Recorder:
    """Keeps the events of turns: give it to a call as `on_event`.

    `await service.create_session("Hello", on_event=recorder)`. One recorder may hear several turns and sessions.

    Attributes:
        envelopes: the events so far, each with its session, number and time.
    """

    envelopes: list[Envelope] = attrs.field(factory=list)

    def __call__(self, envelope: Envelope) -> None:
        """Keep an event."""
        self.envelopes.append(envelope)

    @property
    def events(self) -> list[Event]:
        """The events without their envelopes, oldest first."""
        return [envelope.event for envelope in self.envelopes]

    def only(self, kind: type[E]) -> list[E]:
        """Return the events of one class, oldest first."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def calls(self) -> list[RecordedCall]:
        """The tool calls that models have made, oldest first, with the results that they have so far."""
        found = dict[tuple[str, str], RecordedCall]()
        for envelope in self.envelopes:
            match envelope.event:
                case ToolCallRequested(id, name, args):
                    found[envelope.session_id, id] = RecordedCall(id, name, args)
                case ToolExecutionCompleted(id, _, result, is_error) | ToolResultReceived(id, _, is_error, str(result)):
                    if (call := found.get((envelope.session_id, id))) is not None:
                        found[envelope.session_id, id] = attrs.evolve(call, result=result, is_error=is_error)
        return list(found.values())
