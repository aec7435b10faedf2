"""The stored form of a session: its record, and the rows of its messages, events and compactions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, get_args

import attrs

from warren.base.fields import LEFT_OUT
from warren.base.principals import DEFAULT_TENANT, LOCAL
from warren.base.values import frozen, value
from warren.conversation.agents import AgentPin
from warren.conversation.budget import NO_EXPENSE, NOTHING_SPENT, Expense, Spent
from warren.conversation.delegation import Delegation
from warren.conversation.events import TurnOutcome
from warren.conversation.messages import (
    AssistantMessage,
    HostedToolBlock,
    Message,
    ReasoningBlock,
    files_of,
)
from warren.conversation.open_turn import OpenTurn
from warren.conversation.options import SessionOptions
from warren.conversation.usage import NO_USAGE, Usage

Lifecycle = Literal["live", "stored", "archived"]
MessagePart = Literal["files", "reasoning"]
"""The part of a message that a provider may refuse alone."""
OPAQUE: Final = (ReasoningBlock, HostedToolBlock)
"""The blocks that are the reasoning of an answer, or belong to it."""
PARTS: Final[tuple[MessagePart, ...]] = get_args(MessagePart)


@frozen
class Parent:
    """The original of a fork, and the number of messages that the fork has from it."""

    session_id: str
    at: int


@frozen
class Span:
    """The messages of a session from position `first` to position `end`, without the message at `end`.

    Attributes:
        first: the position of the first message.
        end: the position behind the last one.
        part: the part of the messages that is meant, their files or their reasoning; None for all of each.
        told: the position of the message that stands for tool calls among them; None if there is none.
    """

    first: int
    end: int
    part: MessagePart | None = attrs.field(default=None, metadata=LEFT_OUT)
    told: int | None = attrs.field(default=None, metadata=LEFT_OUT)


def within(spans: Iterable[Span], first: int, end: int, part: str | None = None) -> set[int]:
    """Return the positions in the spans of a part that are at least `first` and less than `end`."""
    return {at for span in spans if span.part == part for at in range(max(span.first, first), min(span.end, end))}


def has_part(message: Message, part: MessagePart) -> bool:
    """Return whether a message has such a part."""
    if part == "files":
        return bool(files_of(message))
    return isinstance(message, AssistantMessage) and any(isinstance(each, OPAQUE) for each in message.blocks)


def with_parts(spans: tuple[Span, ...], parts: Sequence[Span]) -> tuple[Span, ...]:
    """Return spans with more of them that mean parts of messages; those of reasoning become one."""
    if not parts:
        return spans
    added = [span for span in dict.fromkeys(parts) if span.part != "reasoning"]
    ends = [span.end for span in (*spans, *parts) if span.part == "reasoning"]
    kept = [span for span in spans if span.part != "reasoning" and span not in added]
    return (*kept, *added, *([Span(0, max(ends), "reasoning")] if ends else []))


@value
class SessionRecord:
    """The record of a session: all its stored data except its messages, events and inputs.

    Attributes:
        session_id: the id, which never changes.
        created_at: time of the creation (UTC).
        updated_at: end of the last turn (UTC).
        model: the model that the next turn calls.
        options: options of all turns, without the model; an option that was not given is the runtime's.
        labels: the host's labels, by which `list` filters.
        spent: the used part of the budget among the options.
        usage: tokens of all model calls.
        turns: number of turns that have ended.
        steps: number of model calls; it is never reset.
        message_count: messages of the transcript, the system message included.
        last_seq: number of the last event.
        last_assistant_text: text of the newest answer.
        last_structured_output: the same answer as data; None if no schema was given.
        last_outcome: the end of the newest turn that has ended; None if none has, or if that is not known.
        title: the host's title, or else the beginning of the first prompt; None before the first turn.
        head: position of the first message in the context; a summary stands for the messages before it.
        compactions: number of times that the head was moved.
        last_compaction_step: step of the newest attempt to compact, failed ones included.
        last_input_tokens: input tokens of the newest model call, 0 after a compaction.
        turn_open: whether a compaction stored the beginning of a turn that has not ended. It stays true if the process
            dies during that turn.
        turn: the state of an open turn that any process can go on with; None if there is none.
        archived: whether the session is archived: it can be read, `list` hides it, and no turn can start.
        parent: the original of a fork; None if the session is no fork.
        left_out: messages that are not in the context because the provider refused their exchange; in order.
        parts_left_out: messages of which a part is not sent, as it was refused. Releases that do not know of parts
            take no notice of it.
        allowed_tools: names of tools whose calls no longer wait for approval, as somebody has decided for the session.
        delegation: the session that it works for; None if it is no child.
        delegated: the part of its budget that its children have spent.
        agent: the version of the agent that it was made with; None if it was made without one.
        tenant: the tenant that the session belongs to; it never changes.
        owner: the name of the principal that created it; it never changes.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    model: str
    options: SessionOptions = attrs.field(factory=SessionOptions)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    spent: Spent = NOTHING_SPENT
    usage: Usage = NO_USAGE
    turns: int = 0
    steps: int = 0
    message_count: int = 0
    last_seq: int = 0
    last_assistant_text: str | None = None
    last_structured_output: Any = None
    last_outcome: TurnOutcome | None = None
    title: str | None = None
    head: int = 0
    compactions: int = 0
    last_compaction_step: int | None = None
    last_input_tokens: int = 0
    turn_open: bool = False
    turn: OpenTurn | None = None
    archived: bool = False
    parent: Parent | None = None
    left_out: tuple[Span, ...] = ()
    parts_left_out: tuple[Span, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    delegation: Delegation | None = None
    delegated: Expense = NO_EXPENSE
    agent: AgentPin | None = None
    tenant: str = DEFAULT_TENANT
    owner: str = LOCAL.name

    @property
    def instructed_at(self) -> int:
        """The position of the instructions that count; 0 if there are none, too."""
        return 0 if self.agent is None else self.agent.since

    def before_turn(self, turn: OpenTurn) -> "SessionRecord":
        """Return the record as it was at the start of its open turn, as far as the turn adds to it."""
        start = turn.start
        return self.changed(
            message_count=start.message_count,
            steps=start.steps,
            usage=start.usage,
            spent=start.spent,
            delegated=start.delegated,
            turn=None,
        )

    def changed(self, **changes: Any) -> "SessionRecord":
        """Return a copy with other values of the named fields."""
        # Not `attrs.evolve`: its loop over all fields takes a thirtieth of a turn in memory.
        values = list(_values(self))
        for name, changed in changes.items():
            values[_PLACES[name]] = changed
        return SessionRecord(*values)


_PLACES: Final = {name: place for place, name in enumerate(attrs.fields_dict(SessionRecord))}
_values: Final = attrgetter(*_PLACES)


@frozen
class Spoken:
    """What a session has of the agent that speaks in it.

    Attributes:
        agent: the agent; None if it has none.
        model: the model.
        options: the options of its turns.
    """

    agent: AgentPin | None
    model: str
    options: SessionOptions


@frozen
class CompactionEntry:
    """One move of a session's head.

    Attributes:
        step: the step before which the head was moved.
        created_at: time at which the move was stored (UTC).
        head: position of the first message in the context from then on.
        messages_before: messages in the context before.
        messages_after: messages in the context after.
        summary: the summary that stands for the messages before the head.
        summary_tokens: output tokens of the model call that wrote the summary.
    """

    step: int
    created_at: datetime
    head: int
    messages_before: int
    messages_after: int
    summary: str
    summary_tokens: int


@value
class EventRow:
    """One row of the event log; adjacent deltas of one step share a row.

    Attributes:
        first_seq: number of the first event in the row.
        seq: number of the last event in the row.
        timestamp: time of the first event (UTC).
        body: the event's JSON, the text of merged deltas joined.
        cuts: JSON list with the length in characters of each merged delta, so that a reader may begin between two
            of them; None if the row is one event.
        encoded: the JSON beside `body`, as the other entries of a log may have it: none.
    """

    encoded: ClassVar[None] = None
    first_seq: int
    seq: int
    timestamp: datetime
    body: bytes
    cuts: bytes | None = None


@value
class MessageRow:
    """One row of a transcript: the position from 0, the time (UTC) and the JSON of the message."""

    position: int
    created_at: datetime
    body: bytes
