"""Checks the events of one session as they arrive: their order, their numbers, one end for each turn. No I/O."""

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from warren.base.values import define, frozen
from warren.transport.load.target import Seen

COMPACTION: Final = frozenset({"compaction_started", "compaction_completed", "compaction_failed"})
ENDS: Final = frozenset({"run_completed", "run_failed"})
ASKED: Final = "tool_call_requested"
DONE: Final = "tool_result_received"
AFTER: Final[Mapping[str, tuple[str, ...]]] = {
    "tool_execution_started": (ASKED,),
    "tool_execution_completed": ("tool_execution_started",),
    "tool_execution_timed_out": ("tool_execution_started",),
    DONE: (ASKED, "tool_execution_completed", "tool_execution_timed_out"),
}
"""For each event of a tool call, the event that has to come before it."""
MANY: Final = 20


@frozen
class Violation:
    """A broken promise.

    Attributes:
        session_id: the session.
        rule: the promise, in one word.
        detail: the observation.
    """

    session_id: str
    rule: str
    detail: str


@frozen
class TurnSeen:
    """A turn by its events; its end is `completed`, or the cause of its failure."""

    prompt: str
    text: str
    end: str


@define
class StreamCheck:
    """Checks a session's events one by one, and collects broken promises in `violations`.

    Attributes:
        session_id: the session.
        violations: the first broken promises.
        turns: the turns that have ended.
        last_seq: number of the newest event.
        truncated: whether a marker said that events are missing: then no more is checked.
        running: whether a turn has begun and not ended.
        speaking: whether this turn has text already.
    """

    session_id: str
    violations: list[Violation] = attrs.field(factory=list)
    turns: list[TurnSeen] = attrs.field(factory=list)
    last_seq: int = 0
    truncated: bool = False
    running: bool = False
    speaking: bool = False
    _in_step: bool = False
    _step: int = -1
    _prompt: str = ""
    _deltas: list[str] = attrs.field(factory=list)
    _text: str = ""
    _last: str = ""
    _calls: dict[str | int, str] = attrs.field(factory=dict)
    _before: int = -1  # the newest step before this turn
    _events: list[Seen] = attrs.field(factory=list)  # those of this turn that are no deltas

    def take(self, seen: Seen) -> None:
        """Check the next event."""
        if seen.session_id != self.session_id:
            self._wrong("session", f"event {seen.seq} ({seen.kind}) of session {seen.session_id} was told here")
            return
        if seen.kind == "stream_truncated":
            self.truncated = True
            return
        if seen.first_seq <= self.last_seq:
            self._wrong("seq", f"event {seen.first_seq} ({seen.kind}) came after event {self.last_seq}")
        self.last_seq = max(self.last_seq, seen.seq)
        if seen.kind == "text_delta" and self._in_step:  # by far the most frequent kind
            self.speaking = True
            self._deltas.append(seen.text)
        elif not self.truncated:
            if seen.kind == "run_started":
                self._events, self._before = [], self._step
            self._events.append(seen)
            self._check(seen)

    def complete(self) -> None:
        """Check the end of the stream."""
        if self.running and not self.truncated:
            self._wrong("terminal", f"the turn {_short(self._prompt)} has no terminal event")

    def _check(self, seen: Seen) -> None:
        kind = seen.kind
        if kind == "run_started":
            if self.running:
                self._wrong("order", f"event {seen.seq}: a turn began within the turn {_short(self._prompt)}")
            self.running, self.speaking, self._in_step = True, False, False
            self._prompt, self._text, self._last = seen.text, "", ""
            self._calls.clear()
        elif kind in COMPACTION:
            self._expect(not self._in_step, seen, "within a step")
        elif kind in ENDS:
            self._end(seen)
        elif not self.running:
            self._wrong("order", f"event {seen.seq} ({kind}) is outside of a turn")
        elif kind in STEPS:
            STEPS[kind](self, seen)

    def _begin_step(self, seen: Seen) -> None:
        self._expect(not self._in_step, seen, "within a step")
        self._expect_answered(seen)
        if not isinstance(seen.ref, int) or seen.ref <= self._step:
            self._wrong("step", f"event {seen.seq}: step {seen.ref} came after step {self._step}")
        else:
            self._step = seen.ref
        self._in_step, self._text = True, ""
        self._deltas.clear()

    def _hear_all(self, seen: Seen) -> None:
        self._expect(self._in_step, seen, "outside of a step")
        if (joined := "".join(self._deltas)) != seen.text:
            self._wrong("text", f"event {seen.seq}: {_short(joined)} was streamed, {_short(seen.text)} was said")
        self._text = seen.text
        self._last = seen.text or self._last
        self._deltas.clear()

    def _say(self, seen: Seen) -> None:
        self._expect(self._in_step, seen, "outside of a step")

    def _retry(self, seen: Seen) -> None:
        self._expect(self._in_step, seen, "outside of a step")
        self._deltas.clear()

    def _switch(self, _seen: Seen) -> None:
        self._deltas.clear()

    def _resume(self, seen: Seen) -> None:
        """Go back to the newest event that counts: what came after it is taken back, and is told anew."""
        kept = [each for each in self._events if isinstance(seen.ref, int) and each.seq <= seen.ref]
        self._events, violations = kept, self.violations
        self.violations, self.running, self._in_step, self._step = [], False, False, self._before
        for each in kept:
            if each.kind == "text_complete":
                self._deltas.append(each.text)
            self._check(each)
        self._calls = {call: each if each == DONE else ASKED for call, each in self._calls.items()}
        self._deltas.clear()
        self.violations = violations

    def _call(self, seen: Seen) -> None:
        before, now = self._calls.get(seen.ref), seen.kind
        if before not in AFTER.get(now, (None,)):
            self._wrong("order", f"event {seen.seq}: {now} of call {seen.ref} came after {before or 'nothing'}")
        self._calls[seen.ref] = now

    def _end_step(self, seen: Seen) -> None:
        self._expect(self._in_step, seen, "outside of a step")
        if self._deltas:
            self._wrong("text", f"event {seen.seq}: the step ends, and what it has streamed was not completed")
            self._deltas.clear()
        self._in_step = False

    def _end(self, seen: Seen) -> None:
        if not self.running:
            self._wrong("terminal", f"event {seen.seq}: {seen.kind} is a second end of one turn")
            return
        completed = seen.kind == "run_completed"
        if completed:
            self._expect(not self._in_step, seen, "within a step")
            self._expect_answered(seen)
            if seen.text != self._text:
                self._wrong("text", f"event {seen.seq}: the result is {_short(seen.text)}, not {_short(self._text)}")
        text = seen.text if completed else "".join(self._deltas) or self._last
        self.turns.append(TurnSeen(self._prompt, text, "completed" if completed else seen.text))
        self.running = self._in_step = False
        self._deltas.clear()

    def _expect(self, fine: bool, seen: Seen, where: str) -> None:  # noqa: FBT001 - it reads as a sentence
        if not fine:
            self._wrong("order", f"event {seen.seq} ({seen.kind}) is {where}")

    def _expect_answered(self, seen: Seen) -> None:
        for call, state in self._calls.items():
            if state != DONE:
                self._wrong("order", f"event {seen.seq} ({seen.kind}) came before the result of call {call}")
        self._calls.clear()

    def _wrong(self, rule: str, detail: str) -> None:
        if len(self.violations) < MANY:
            self.violations.append(Violation(self.session_id, rule, detail))


STEPS: Final[dict[str, Callable[[StreamCheck, Seen], None]]] = {
    "turn_started": StreamCheck._begin_step,  # noqa: SLF001 - the class's own table
    "text_delta": StreamCheck._say,  # noqa: SLF001
    "reasoning_delta": StreamCheck._say,  # noqa: SLF001
    "text_complete": StreamCheck._hear_all,  # noqa: SLF001
    "retrying": StreamCheck._retry,  # noqa: SLF001
    "model_switched": StreamCheck._switch,  # noqa: SLF001
    "turn_resumed": StreamCheck._resume,  # noqa: SLF001
    "turn_completed": StreamCheck._end_step,  # noqa: SLF001
    ASKED: StreamCheck._call,  # noqa: SLF001
    "tool_execution_started": StreamCheck._call,  # noqa: SLF001
    "tool_execution_completed": StreamCheck._call,  # noqa: SLF001
    "tool_execution_timed_out": StreamCheck._call,  # noqa: SLF001
    DONE: StreamCheck._call,  # noqa: SLF001
}


def _short(text: str) -> str:
    return repr(text if len(text) <= MANY * 2 else f"{text[: MANY * 2]}…")
