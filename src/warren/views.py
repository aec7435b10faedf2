"""What callers get to see: results of turns, views of sessions, pages of history."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from warren.categories import Gates, Switches
from warren.messages import Message, StopReason
from warren.peers import Peer
from warren.records import CompactionEntry, Lifecycle, Parent, SessionRecord
from warren.usage import Usage


@attrs.frozen
class TurnResult:
    """A turn that ended well.

    Attributes:
        session_id: the session.
        text: the final answer.
        turns: steps (model calls) in this turn; 0 for a session created without a prompt.
        tool_calls: tools run in this turn.
        usage: tokens of this turn.
        stop_reason: why the model stopped; None for a session created without a prompt.
        structured_output: the answer as data, where a schema was asked for.
    """

    session_id: str
    text: str = ""
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = attrs.field(factory=Usage)
    stop_reason: StopReason | None = None
    structured_output: Any = None


@attrs.frozen
class SessionState:
    """What a session is and does.

    Attributes:
        overrides: which kinds of tools its model is offered, where the session says; the rest is the runtime's.
        approvals: which kinds wait for somebody's word, where the session is stricter than the runtime.
        parent: what it is a fork of; None for a session that began by itself.
        peer: its name among other sessions, and whom it trusts; None where it has none.
        provider: the provider that it was created with; None if the model's name decides.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    message_count: int
    is_active: bool
    last_assistant_text: str | None
    lifecycle: Lifecycle
    labels: Mapping[str, str]
    model: str
    compactions: int = 0
    title: str | None = None
    overrides: Switches | None = None
    approvals: Gates | None = None
    parent: Parent | None = None
    peer: Peer | None = None
    provider: str | None = None


@attrs.frozen
class Billing:
    """What a session has cost so far."""

    total_tokens: int
    usage: Usage


@attrs.frozen
class SessionView:
    """The answer to `read`."""

    state: SessionState
    billing: Billing


@attrs.frozen
class SessionSummary:
    """One row of `list`."""

    session_id: str
    created_at: datetime
    updated_at: datetime
    message_count: int
    total_tokens: int
    is_active: bool
    lifecycle: Lifecycle
    labels: Mapping[str, str]
    model: str
    title: str | None = None


@attrs.frozen
class DamagedRow:
    """A row that cannot be read in the store, and is passed over.

    Attributes:
        row: the session's id, or the position of the message or compaction.
        problem: what is wrong with it.
    """

    row: str
    problem: str


@attrs.frozen
class SessionPage:
    """A page of `list`: newest `updated_at` first, then by id.

    Attributes:
        sessions: the page.
        damaged: sessions of the page that cannot be read; `sessions` is shorter than the limit by their number.
    """

    sessions: tuple[SessionSummary, ...]
    damaged: tuple[DamagedRow, ...] = ()


@attrs.frozen
class HistoryEntry:
    """One message of a transcript.

    Attributes:
        position: its position from 0.
        created_at: when it was added (UTC).
        message: the message.
        left_out: true if the model no longer sees it: its provider refused the exchange that it belongs to.
    """

    position: int
    created_at: datetime
    message: Message
    left_out: bool = False


@attrs.frozen
class HistoryPage:
    """A page of `history`, oldest first: the conversation as it was, whatever of it was compacted.

    Attributes:
        session_id: the session.
        messages: the page: what is kept of the `limit` positions from `offset` on.
        offset: position at which it begins.
        total: messages of the whole conversation, those that are gone included. Whoever pages adds `limit` to `offset`
            until it is there: a page may be empty before that.
        compactions: those after which the model saw the conversation from a position of this page on.
        kept_from: messages before this position are gone by retention, but the first one, at position 0.
        damaged: messages and compactions of this page that cannot be read; they are left out.
    """

    session_id: str
    messages: tuple[HistoryEntry, ...]
    offset: int
    total: int
    compactions: tuple[CompactionEntry, ...] = ()
    kept_from: int = 0
    damaged: tuple[DamagedRow, ...] = ()


def lifecycle_of(record: SessionRecord, *, live: bool) -> Lifecycle:
    """Return where a session is: retired, in memory, or only in the store."""
    if record.archived:
        return "archived"
    return "live" if live else "stored"


def view_of(record: SessionRecord, *, live: bool, active: bool) -> SessionView:
    """Return what `read` shows of a session."""
    state = SessionState(
        session_id=record.session_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
        message_count=record.message_count,
        is_active=active,
        last_assistant_text=record.last_assistant_text,
        lifecycle=lifecycle_of(record, live=live),
        labels=record.labels,
        model=record.model,
        compactions=record.compactions,
        title=record.title,
        overrides=record.overrides,
        approvals=record.approvals,
        parent=record.parent,
        peer=record.peer,
        provider=record.provider,
    )
    return SessionView(state, Billing(record.usage.total_tokens, record.usage))


def summary_of(record: SessionRecord, *, live: bool, active: bool) -> SessionSummary:
    """Return a session's row in `list`."""
    return SessionSummary(
        session_id=record.session_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
        message_count=record.message_count,
        total_tokens=record.usage.total_tokens,
        is_active=active,
        lifecycle=lifecycle_of(record, live=live),
        labels=record.labels,
        model=record.model,
        title=record.title,
    )
