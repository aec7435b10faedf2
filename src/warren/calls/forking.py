"""Forks: the places at which a conversation may be cut, and the record of the fork."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError, labels_problem
from warren.calls.sessions import ForkRequest
from warren.conversation.budget import NO_EXPENSE, NOTHING_SPENT
from warren.conversation.messages import AssistantMessage, Message, UserMessage
from warren.conversation.records import CompactionEntry, Parent, SessionRecord, Span, Spoken
from warren.conversation.usage import NO_USAGE

PATH: Final = "$.at"


class Original(Protocol):
    """The stored session that is forked. Positions are those of its messages."""

    @property
    def record(self) -> SessionRecord:
        """The record of the session."""

    @property
    def kept_from(self) -> int:
        """The position before which retention has removed the messages, except the first one, at position 0."""

    def message(self, position: int) -> Message | None:
        """Return a message; None if it is gone or there never was one."""

    def newest_prompt(self) -> int:
        """Return the position of the newest prompt of a turn; 0 if there is none."""

    def last_answer(self, before: int) -> AssistantMessage | None:
        """Return the newest answer with a text before a position."""

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:
        """Return the number of compactions with a head of at most `at`, and the newest of them."""


def forked(
    original: Original,
    wanted: ForkRequest,
    session_id: str,
    now: datetime,
    *,
    owner: str,
    spoken: Spoken | None = None,
) -> SessionRecord:
    """Return the record of a fork.

    The settings and the first `message_count` messages are those of the original. Its usage begins at zero. The step
    counter continues that of the original: the first step of a session is never compacted, but a fork of a long session
    may need that, and the copied compactions name earlier steps.

    Args:
        original: the session to fork.
        wanted: the wanted fork.
        session_id: id of the fork.
        now: time of its creation (UTC).
        owner: the name of the principal that makes it.
        spoken: what the session has had of its agent at the wanted place.

    Raises:
        InvalidParamsError: if the conversation cannot be cut at that place, or has too many labels with the new ones.
    """
    source = original.record
    at = _cut(original, wanted.at)
    count, newest = original.moves(at)
    head, step = (0, None) if newest is None else (newest.head, newest.step)
    # Retention has removed messages that the context of the fork would need.
    if max(head, 1) < min(at, original.kept_from):
        raise _bad(
            f"messages before {original.kept_from} are no longer kept, and no summary up to {at} stands for them"
        )
    labels = {**source.labels, **(wanted.labels or {})}
    _check_labels(labels, source.labels)
    whole = at == source.message_count and not source.turn_open
    text, data = source.last_assistant_text, source.last_structured_output
    if not whole:
        answer = original.last_answer(at)
        text, data = (None, None) if answer is None else (answer.text, answer.structured_output)
    if spoken is None or source.instructed_at < max(at, 1):  # there, its instructions are in the fork
        spoken = Spoken(source.agent, source.model, source.options)
    return source.changed(
        session_id=session_id,
        created_at=now,
        updated_at=now,
        labels=labels,
        spent=NOTHING_SPENT,
        delegation=None,
        delegated=NO_EXPENSE,
        usage=NO_USAGE,
        turns=0,
        message_count=at,
        last_seq=0,
        last_assistant_text=text,
        last_structured_output=data,
        last_outcome=None,
        title=wanted.title or (source.title if _has_prompt(original, at) else None),
        head=head,
        compactions=count,
        last_compaction_step=source.last_compaction_step if whole else step,
        last_input_tokens=source.last_input_tokens if whole else 0,
        turn_open=False,
        turn=None,
        archived=False,
        agent=spoken.agent,
        model=spoken.model,
        options=attrs.evolve(spoken.options, peer=None),  # names of peers are unique, and the original keeps its name
        parent=Parent(source.session_id, at),
        owner=owner,
        left_out=_before(source.left_out, at),
        parts_left_out=_before(source.parts_left_out, at),
        allowed_tools=(),  # who allowed them decided about the original
    )


def _before(spans: Iterable[Span], at: int) -> tuple[Span, ...]:
    """Return the spans before a cut. Tool calls whose sentence is behind it come back: nothing else would tell them."""
    return tuple(
        attrs.evolve(span, end=min(span.end, at))
        for span in spans
        if span.first < at and (span.told is None or span.told < at)
    )


def relabelled(
    record: SessionRecord, changes: Mapping[str, str | None], title: str | None, ask_again: Collection[str] = ()
) -> SessionRecord:
    """Return a record with changed labels, and another title if it is not None. A label of None is removed.

    The tools of `ask_again` are no longer allowed.

    Raises InvalidParamsError if there are too many labels with those that are set, and more than before.
    """
    merged = {**record.labels, **changes}
    labels = {name: value for name, value in merged.items() if value is not None}
    _check_labels(labels, record.labels)
    allowed = record.allowed_tools
    if ask_again:
        allowed = tuple(name for name in allowed if name not in ask_again)
    return record.changed(labels=labels, title=title or record.title, allowed_tools=allowed)


def _cut(original: Original, at: int | None) -> int:
    """Return the number of messages to take. Every tool call must keep its results. Raises InvalidParamsError."""
    record = original.record
    if record.turn is not None:  # its messages are whole as far as they are stored
        kept, end = "that are stored", record.message_count
        at = record.turn.prompt_at if at is None else at
    else:
        # A compaction has stored the beginning of an unfinished turn, whose messages begin with the newest prompt.
        kept, end = "of finished turns", original.newest_prompt() if record.turn_open else record.message_count
        at = end if at is None else at
    if not 0 <= at <= end:
        raise _bad(f"must be from 0 to {end}, the messages {kept}")
    last = original.message(at - 1) if at else None
    if isinstance(last, AssistantMessage) and last.tool_calls:
        nearest = f"the nearest places are {at - 1} and {at + 1}" if at < end else f"the nearest place is {at - 1}"
        raise _bad(f"{at} is between a tool call and its results; {nearest}")
    return at


def _has_prompt(original: Original, at: int) -> bool:
    """Tell whether a fork has the first prompt, which is the first message or comes after the system message."""
    return at > 1 or (at == 1 and isinstance(original.message(0), UserMessage))


def _check_labels(labels: Mapping[str, str], before: Mapping[str, str]) -> None:
    if (problem := labels_problem(labels, before)) is not None:
        raise FieldValueError("labels", problem).refusal()


def _bad(problem: str) -> InvalidParamsError:
    return InvalidParamsError.at(PATH, problem)
