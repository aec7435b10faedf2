"""One session of the in-memory store: its rows, and its inbox."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final

import attrs

from warren.base.values import define
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.attachments import Blob
from warren.conversation.inputs import Input, Numbered
from warren.conversation.log_rows import LogItem, release, row_of
from warren.conversation.messages import AssistantMessage, Message, begins_turn, newest_answer
from warren.conversation.open_turn import KeptCall
from warren.conversation.records import CompactionEntry, EventRow, MessageRow, SessionRecord
from warren.conversation.waits import Wait, WaitReason
from warren.storage.operations import MAX_OUTCOMES, InputOutcome
from warren.storage.rows import in_background

_SEQ: Final = attrgetter("seq")


@define(eq=False)
class Entered:
    """An input that was put into an inbox.

    Attributes:
        numbered: the input and its place.
        outcome: the outcome of its turn, or `UNKNOWN`; None while it waits.
    """

    numbered: Numbered
    outcome: bytes | None = None


@define(eq=False)
class HeldInputs:
    """The inputs of one session: all that wait, and after its turn each input with a key."""

    _inputs: dict[int, Entered] = attrs.field(factory=dict)
    _keys: dict[str, int] = attrs.field(factory=dict)

    def known(self, key: str | None) -> Entered | None:
        """Return the input that came under a key."""
        number = None if key is None else self._keys.get(key)
        return None if number is None else self._inputs[number]

    def waiting(self) -> list[Numbered]:
        """Return the inputs that wait, in order."""
        return [each.numbered for each in self._inputs.values() if each.outcome is None]

    def add(self, numbered: Numbered) -> None:
        """Let an input wait; its number is above all others."""
        self._inputs[numbered.number] = Entered(numbered)
        if numbered.input.key is not None:
            self._keys[numbered.input.key] = numbered.number

    def find(self, input_id: str) -> Input | None:
        """Return the input of that id."""
        every = (each.numbered.input for each in self._inputs.values())
        return next((each for each in every if each.input_id == input_id), None)

    def store_outcome(self, inputs: InputOutcome) -> list[Entered]:
        """Store the outcome of inputs. Return those with a key, which are remembered for a while; drop the others."""
        kept = list[Entered]()
        for number in inputs.numbers:
            entered = self._inputs.get(number)
            if entered is None:
                continue
            if entered.numbered.input.key is None:
                del self._inputs[number]
            else:
                entered.outcome = inputs.outcome
                kept.append(entered)
        if inputs.numbers and len(self._keys) > MAX_OUTCOMES:
            self._forget()
        return kept

    def _forget(self) -> None:
        ended = [number for number, each in self._inputs.items() if each.outcome is not None]
        for number in ended[: max(0, len(ended) - MAX_OUTCOMES)]:
            key = self._inputs[number].numbered.input.key
            if key is not None and key != FIRST_PROMPT:
                del self._inputs[number], self._keys[key]


@define(eq=False)
class EphemeralSession:
    """A session as it was last stored; see `warren.calls.forking.Original` for the methods that a fork needs.

    Attributes:
        record: its record.
        messages: the rows of its messages, as they came: each is at the place of its position.
        compactions: the moves of its head, in order.
        events: the newest events of its log; a row is made of one when it is read.
        newest: those of the last commit. Alone among the events they may hold their JSON too, for readers.
        gone: events up to this number are no longer kept.
        inbox: its inputs.
        epoch: how often the lease has changed hands.
        held: whether the lease is taken.
        creation: the idempotency key that has created it.
        calls: the tool calls of its open turn that have a state, by their places.
        waits: what its tool calls wait for or have waited for, the oldest first.
        files: the files of its messages, by their hashes; a fork shares their bytes.
    """

    record: SessionRecord
    messages: list[MessageRow] = attrs.field(factory=list)
    compactions: list[CompactionEntry] = attrs.field(factory=list)
    events: list[EventRow | LogItem] = attrs.field(factory=list)
    newest: Sequence[EventRow | LogItem] = ()
    gone: int = 0
    inbox: HeldInputs = attrs.field(factory=HeldInputs)
    epoch: int = 0
    held: bool = False
    creation: str | None = None
    calls: dict[int, KeptCall] = attrs.field(factory=dict)
    waits: dict[tuple[WaitReason, str], Wait] = attrs.field(factory=dict)
    files: dict[str, Blob] = attrs.field(factory=dict)
    kept_from: int = 0  # no retention removes messages here

    # -- writing

    def add_events(self, rows: Sequence[EventRow | LogItem], keep: int) -> None:
        """Add rows of the log, and drop the oldest past `keep`."""
        release(self.newest)  # by now their readers have them
        self.newest = rows
        self.events.extend(rows)
        oldest = len(self.events) - keep
        if oldest > 0:
            self.gone = self.events[oldest - 1].seq
            del self.events[:oldest]

    def set_calls(self, calls: Sequence[KeptCall], *, settles: bool) -> None:
        """Keep the states of tool calls beside the others, or in their place."""
        if settles:
            self.calls.clear()
            for key, each in self.waits.items():
                if not in_background(each):
                    self.waits[key] = each.changed(state="settled")
        self.calls.update({each.place: each for each in calls})

    def set_waits(self, waits: Iterable[Wait]) -> None:
        """Keep what tool calls wait for beside the rest, or in its place."""
        self.waits.update({each.key: each for each in waits})

    # -- reading

    def is_child_of(self, session_id: str) -> bool:
        """Return whether it works for another session."""
        return self.record.delegation is not None and self.record.delegation.session_id == session_id

    @property
    def works_first(self) -> bool:
        """Whether its first prompt waits, or the turn of that has not ended."""
        first = self.inbox.known(FIRST_PROMPT)
        return first is not None and not first.outcome

    @property
    def open_calls(self) -> tuple[KeptCall, ...]:
        """The tool calls of the open turn that have a state, in the order of the answer."""
        return () if self.record.turn is None else tuple(self.calls[place] for place in sorted(self.calls))

    @property
    def open_waits(self) -> tuple[Wait, ...]:
        """The waits that are not settled, the oldest first."""
        return tuple(each for each in self.waits.values() if each.state != "settled")

    @property
    def unanswered(self) -> tuple[Wait, ...]:
        """The waits that nobody has answered, the oldest first."""
        return tuple(each for each in self.waits.values() if each.state == "waiting")

    def sleeps(self, now: datetime) -> bool:
        """Tell whether nothing of the open turn can be done yet."""
        wakes = None if self.record.turn is None else self.record.turn.wakes
        return wakes is not None and wakes > now

    @property
    def bytes(self) -> int:
        """The bytes of its messages and its calls' results; events are encoded for their readers alone."""
        results = sum([len(each.result.content) for each in self.calls.values() if each.result is not None])
        return sum([len(row.body) for row in self.messages]) + results

    @property
    def last_event(self) -> int:
        """The number of the last event that was stored."""
        return self.events[-1].seq if self.events else self.gone

    def events_after(self, seq: int, limit: int) -> list[EventRow]:
        """Return rows of the log that end above a number."""
        first = bisect_right(self.events, seq, key=_SEQ)
        found = self.events[first : first + limit]
        rows = list(map(row_of, found))
        release(found)
        return rows

    # -- forks

    def message(self, position: int) -> Message:
        """Return a message."""
        return codec.decode_message(self.messages[position].body)

    def newest_prompt(self) -> int:
        """Return the position of the newest prompt of a turn, 0 if there is none."""
        positions = reversed(range(len(self.messages)))
        return next((at for at in positions if begins_turn(self.message(at))), 0)

    def last_answer(self, before: int) -> AssistantMessage | None:
        """Return the newest answer with a text before a position."""
        return newest_answer(map(self.message, reversed(range(min(before, len(self.messages))))))

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:
        """Return how many compactions have moved the head to a position up to `at`, and the newest of them."""
        found = [entry for entry in self.compactions if entry.head <= at]
        return len(found), found[-1] if found else None

    def cut(self, record: SessionRecord) -> "EphemeralSession":
        """Return the fork of that record: its lease is free, its log and its inbox are empty."""
        count = record.message_count
        moves = [entry for entry in self.compactions if entry.head <= count]
        return EphemeralSession(record, self.messages[:count], moves, files={**self.files})
