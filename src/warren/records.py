"""What is kept of a session, and the rows that one turn adds."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal

import attrs

from warren.budget import UNLIMITED, Budget, Spent
from warren.categories import Gates, Switches
from warren.compaction.config import CompactionConfig
from warren.peers import Peer
from warren.usage import Usage
from warren.values import value

Lifecycle = Literal["live", "stored", "archived"]
MAX_TITLE: Final = 200
"""Characters of a title that a host gives."""


@attrs.frozen
class Parent:
    """The session that another one is a fork of, and how many of its messages that took over."""

    session_id: str
    at: int


@attrs.frozen
class Span:
    """The messages of a session from position `first` up to, and without, position `end`."""

    first: int
    end: int


def within(spans: Iterable[Span], first: int, end: int) -> set[int]:
    """Return the positions of the spans, of those from `first` up to, and without, `end`."""
    return {at for span in spans for at in range(max(span.first, first), min(span.end, end))}


@value
class SessionRecord:
    """A session's row: everything about it but its messages and events.

    Attributes:
        session_id: its id, for ever.
        created_at: when it was created (UTC).
        updated_at: when its last turn ended (UTC).
        model: the model that the next turn calls.
        provider: the provider named on creation, or the runtime's at that time; None lets the model's name decide.
        max_tokens: cap of one answer; None leaves it to the provider.
        tools: names of the tools the model is offered; None offers all that the runtime has.
        overrides: which kinds of tools the model is offered, where that differs from the runtime's rule.
        approvals: which kinds wait for somebody's word, besides those that do in the whole runtime.
        output_schema: the JSON schema that its answers are brought into; None leaves them as they are.
        structured_output_retries: how often an answer that does not fit one is tried again.
        peer: by which name other sessions speak to it, and whom it trusts; None for one that has no peers.
        labels: the host's own marks, for `list`.
        budget: limits over all its turns.
        spent: what was used of them.
        usage: tokens of all its model calls.
        turns: turns ended.
        steps: model calls made; never starts over.
        message_count: messages of the transcript, the system message included.
        last_seq: the last number of its event log.
        last_assistant_text: the newest answer.
        title: the one that its host gave it, else the beginning of its first prompt; None before its first turn.
        head: position of the first message that the model still sees as it was; the ones before are summarised.
        compaction: how its context is compacted; None takes the runtime's way.
        compactions: how often its head was moved.
        last_compaction_step: the step of the last attempt to compact, failed ones included.
        last_input_tokens: input tokens of the newest model call, 0 after a compaction.
        turn_open: a compaction stored a turn that had not ended yet; a process that dies then leaves it so.
        archived: retired: readable, hidden from `list`, not startable.
        parent: what it is a fork of; None for a session that began by itself.
        left_out: messages that the model no longer sees because its provider refused the exchange; in order.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    model: str
    provider: str | None = None
    max_tokens: int | None = None
    tools: tuple[str, ...] | None = None
    overrides: Switches | None = None
    approvals: Gates | None = None
    output_schema: Mapping[str, Any] | None = None
    structured_output_retries: int = 2
    peer: Peer | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    budget: Budget = UNLIMITED
    spent: Spent = attrs.field(factory=Spent)
    usage: Usage = attrs.field(factory=Usage)
    turns: int = 0
    steps: int = 0
    message_count: int = 0
    last_seq: int = 0
    last_assistant_text: str | None = None
    title: str | None = None
    head: int = 0
    compaction: CompactionConfig | None = None
    compactions: int = 0
    last_compaction_step: int | None = None
    last_input_tokens: int = 0
    turn_open: bool = False
    archived: bool = False
    parent: Parent | None = None
    left_out: tuple[Span, ...] = ()

    def changed(self, **changes: Any) -> "SessionRecord":
        """Return the record with other values of the fields named: what `attrs.evolve` does, in a third of its time."""
        values = list(_values_of(self))
        for name, new in changes.items():
            values[_PLACES[name]] = new
        return SessionRecord(*values)


_FIELDS: Final = tuple(field.name for field in attrs.fields(SessionRecord))
_PLACES: Final = {name: place for place, name in enumerate(_FIELDS)}
_values_of: Final = attrgetter(*_FIELDS)


@attrs.frozen
class CompactionEntry:
    """One move of a session's head.

    Attributes:
        step: the step before which it happened.
        created_at: when it was stored (UTC).
        head: position of the first message that the model sees as it was from then on.
        messages_before: messages that the model saw before.
        messages_after: and after.
        summary: what stands for those that it no longer sees.
        summary_tokens: output tokens of the call that wrote it.
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
        first_seq: the first event that the row stands for.
        seq: the last one.
        timestamp: of the first one (UTC).
        body: the event's JSON, the text of merged deltas joined.
        cuts: JSON list with the length in characters of each merged delta, so that a reader may begin between two
            of them; None where the row is one event.
    """

    first_seq: int
    seq: int
    timestamp: datetime
    body: bytes
    cuts: bytes | None = None


@value
class MessageRow:
    """One row of a transcript: its position from 0, when it was added (UTC), its JSON."""

    position: int
    created_at: datetime
    body: bytes
