"""Forks: where a conversation may be cut, and the record that its fork begins with. No I/O."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Protocol

import attrs

from warren.budget import Spent
from warren.errors import InvalidParamsError
from warren.messages import AssistantMessage, Message, UserMessage
from warren.records import CompactionEntry, Parent, SessionRecord, Span
from warren.usage import Usage

PATH: Final = "$.at"


class Original(Protocol):
    """A session that is forked, as it is kept; positions are those of its messages."""

    @property
    def record(self) -> SessionRecord:
        """Its record."""
        ...

    @property
    def kept_from(self) -> int:
        """Messages before this position are gone by retention, but the first one, at position 0."""
        ...

    def message(self, position: int) -> Message | None:
        """Return a message; None where it is gone or never was."""
        ...

    def newest_prompt(self) -> int:
        """Return the position of the newest user message, 0 where there is none."""
        ...

    def last_text(self, before: int) -> str | None:
        """Return the text of the newest answer with one, before a position."""
        ...

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:
        """Return how many compactions have moved the head to a position up to `at`, and the newest of them."""
        ...


@attrs.frozen
class ForkRequest:
    """What a fork is to be.

    Attributes:
        session_id: its own id.
        now: when it is made (UTC).
        at: how many messages it takes over; None takes those of all finished turns.
        labels: its own, which win over those of the original.
        title: its own; None takes the original's.
    """

    session_id: str
    now: datetime
    at: int | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    title: str | None = None


def forked(original: Original, wanted: ForkRequest) -> SessionRecord:
    """Return the record of a fork: its settings and `message_count` messages are the original's, its costs its own.

    What is a setting is taken over: limits, and not what was used of them. The step counter goes on where the
    original's is: the first step of a session is never compacted, which a fork of a long one must be, and the copied
    compactions name steps before it.

    Raises InvalidParamsError where the conversation cannot be cut there.
    """
    source = original.record
    at = _cut(original, wanted.at)
    count, newest = original.moves(at)
    head, step = (0, None) if newest is None else (newest.head, newest.step)
    _check_kept(original, at, head)
    whole = at == source.message_count
    return source.changed(
        session_id=wanted.session_id,
        created_at=wanted.now,
        updated_at=wanted.now,
        labels={**source.labels, **wanted.labels},
        spent=Spent(),
        usage=Usage(),
        turns=0,
        message_count=at,
        last_seq=0,
        last_assistant_text=source.last_assistant_text if whole else original.last_text(at),
        title=wanted.title or (source.title if _has_prompt(original, at) else None),
        head=head,
        compactions=count,
        last_compaction_step=source.last_compaction_step if whole else step,
        last_input_tokens=source.last_input_tokens if whole else 0,
        turn_open=False,
        archived=False,
        peer=None,  # its name is the other's
        parent=Parent(source.session_id, at),
        left_out=tuple(Span(span.first, min(span.end, at)) for span in source.left_out if span.first < at),
    )


def relabelled(record: SessionRecord, changes: Mapping[str, str | None], title: str | None) -> SessionRecord:
    """Return a record with its labels changed, where None takes one away, and with another title if one is given."""
    merged = {**record.labels, **changes}
    labels = {name: value for name, value in merged.items() if value is not None}
    return record.changed(labels=labels, title=title or record.title)


def _cut(original: Original, at: int | None) -> int:
    """Return where to cut: at a place that leaves every tool call with its results."""
    record = original.record
    # A turn that a compaction has stored the beginning of is not finished: all of it is behind its prompt.
    end = original.newest_prompt() if record.turn_open else record.message_count
    at = end if at is None else at
    if not 0 <= at <= end:
        raise _bad(f"must be from 0 to {end}, the messages of finished turns")
    last = original.message(at - 1) if at else None
    if isinstance(last, AssistantMessage) and last.tool_calls:
        raise _bad(f"{at} is between a tool call and its results; the nearest places are {at - 1} and {at + 1}")
    return at


def _check_kept(original: Original, at: int, head: int) -> None:
    """Refuse a fork whose model would have to see what retention has removed."""
    if max(head, 1) < min(at, original.kept_from):
        raise _bad(
            f"messages before {original.kept_from} are no longer kept, and no summary up to {at} stands for them"
        )


def _has_prompt(original: Original, at: int) -> bool:
    """Tell whether the first prompt is taken over: it is the first message, or comes after the system's."""
    return at > 1 or (at == 1 and isinstance(original.message(0), UserMessage))


def _bad(problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"{PATH}: {problem}", path=PATH)
