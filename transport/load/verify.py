"""Checks a session at the end: what was sent, what its events told, what it holds and what is stored. No I/O."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import attrs

from warren.errors import ErrorCode
from warren.transport.load.stream import StreamCheck, Told, Violation
from warren.transport.load.target import LOST, RefusedError, Rows, Said

Outcome = Literal["unknown", "answered", "failed", "refused"]
NOT_BEGUN: Final = frozenset({ErrorCode.SESSION_BUSY, ErrorCode.CAPACITY_EXCEEDED, ErrorCode.INVALID_PARAMS})
"""Errors that say that no turn has begun."""


@attrs.define
class Sent:
    """One turn that was asked for, and what came of it.

    Attributes:
        prompt: what was said.
        outcome: `unknown` while nobody has heard; `refused` where no turn was to begin.
        text: the answer.
        code: of the error.
        cause: the finer reason.
    """

    prompt: str
    outcome: Outcome = "unknown"
    text: str = ""
    code: str = ""
    cause: str = ""

    def take(self, error: RefusedError) -> None:
        """Take what came in place of an answer; where the connection ended nobody knows what came of the turn."""
        self.code, self.cause = error.code, error.cause
        if error.code != LOST:
            self.outcome = "refused" if error.code in NOT_BEGUN else "failed"


@attrs.define
class Ledger:
    """All that one client knows of its session.

    Attributes:
        session_id: the session.
        sent: the turns, in the order in which they were asked for.
        heard: the stream that the client was sent.
        watched: the stream of somebody else who followed from the beginning, if there was one.
        replayed: the whole log, as it was read in the end; None where that is not kept.
        found: violations that were seen on the way.
    """

    session_id: str
    heard: StreamCheck
    sent: list[Sent] = attrs.field(factory=list)
    watched: StreamCheck | None = None
    replayed: StreamCheck | None = None
    found: list[Violation] = attrs.field(factory=list)

    @property
    def streams(self) -> list[StreamCheck]:
        """All that was told of it, live and from the log."""
        return [each for each in (self.heard, self.watched, self.replayed) if each is not None]

    @property
    def cut_short(self) -> bool:
        """Whether nobody has heard how the last turn ended: what was told then ends early, and may."""
        return bool(self.sent) and self.sent[-1].outcome == "unknown"

    @property
    def noticed(self) -> list[Violation]:
        """What was seen to be wrong, so far."""
        return [*self.found, *(violation for each in self.streams for violation in each.violations)]

    def wrong(self, rule: str, detail: str) -> None:
        """Note a violation."""
        self.found.append(Violation(self.session_id, rule, detail))


@attrs.frozen
class Kept:
    """What a target says of a session when the run is over.

    Attributes:
        history: its messages.
        message_count: how many it says it has.
        rows: what is in the store's file; None where that cannot be seen.
    """

    history: Sequence[Said]
    message_count: int
    rows: Rows | None = None


def verify(ledger: Ledger, kept: Kept) -> list[Violation]:
    """Return every promise that was not kept to a session."""
    problems = [
        *_unlike("live", ledger.heard, ledger.replayed, cut_short=ledger.cut_short),
        *_unlike("watcher", ledger.watched, ledger.replayed, cut_short=ledger.cut_short),
        *_sent(ledger, ledger.replayed or ledger.heard),
        *_transcript(kept.history),
        *_history(kept.history, ledger.replayed or ledger.heard),
        *_counts(kept, ledger.replayed),
    ]
    return [*ledger.noticed, *(Violation(ledger.session_id, rule, detail) for rule, detail in problems)]


def _unlike(
    rule: str, stream: StreamCheck | None, log: StreamCheck | None, *, cut_short: bool
) -> Iterator[tuple[str, str]]:
    """Compare what was told as it happened with the log."""
    if stream is None or log is None or stream.truncated or log.truncated:
        return
    logged = log.turns[: len(stream.turns)] if cut_short else log.turns
    if stream.turns != logged:
        yield rule, f"{_difference(stream.turns, logged)} (as told, and in the log)"


def _difference(left: Sequence[Told], right: Sequence[Told]) -> str:
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return f"turn {number}: {one} is not {other}"
    return f"{len(left)} turns, not {len(right)}"


def _sent(ledger: Ledger, log: StreamCheck) -> Iterator[tuple[str, str]]:
    """Compare what the client asked for, and was answered, with the log."""
    told = {turn.prompt: turn for turn in log.turns}
    admitted = [sent for sent in ledger.sent if sent.outcome != "refused"]
    for sent in ledger.sent:
        turn = told.get(sent.prompt)
        if sent.outcome == "refused" and turn is not None:
            yield "refused", f"{sent.prompt!r} was refused ({sent.code}), and has run"
        elif sent.outcome != "refused" and sent.code != LOST and turn is None and not log.truncated:
            yield "lost", f"{sent.prompt!r} ({sent.outcome}) is not in the log"
        elif turn is not None and not _agrees(sent, turn):
            yield "reply", f"{sent.prompt!r} was {sent.outcome} {sent.code} {sent.text!r}, its events tell {turn}"
    if not log.truncated and len(log.turns) != len(told):
        yield "twice", f"{len(log.turns)} turns were run for {len(told)} prompts"
    order = [sent.prompt for sent in admitted if sent.prompt in told]
    ran = [turn.prompt for turn in log.turns if turn.prompt in set(order)]
    if sorted(ran) == sorted(order) and ran != order:
        yield "order", f"turns ran in another order than they were asked for: {ran}"


def _agrees(sent: Sent, turn: Told) -> bool:
    if sent.outcome == "answered":
        return turn.end == "completed" and turn.text == sent.text
    return sent.outcome != "failed" or turn.end != "completed"


def _transcript(history: Sequence[Said]) -> Iterator[tuple[str, str]]:
    """Check what a model provider would check."""
    pending: tuple[str, ...] = ()
    used: set[str] = set()
    for position, said in enumerate(history):
        if said.results:
            if said.results != pending:
                yield "transcript", f"message {position} has results of {said.results}, calls were {pending}"
            pending = ()
            continue
        if pending:
            yield "transcript", f"calls {pending} have no result before message {position}"
        if said.role == "system" and position:
            yield "transcript", f"message {position} is a system message amid the history"
        if said.role == "assistant" and (position == 0 or history[position - 1].role == "assistant"):
            yield "transcript", f"message {position} is an answer to nothing"
        if used & set(said.calls):
            yield "transcript", f"message {position} has a call id twice: {said.calls}"
        used |= set(said.calls)
        pending = said.calls
    if pending:
        yield "transcript", f"calls {pending} have no result"


def _history(history: Sequence[Said], log: StreamCheck) -> Iterator[tuple[str, str]]:
    """Compare the messages with what the events told of each turn."""
    if log.truncated:
        return
    exchanges = _exchanges(history)
    if [prompt for prompt, _ in exchanges] != [turn.prompt for turn in log.turns]:
        yield (
            "history",
            f"{len(exchanges)} exchanges are kept, {len(log.turns)} turns were told of, or not the same ones",
        )
        return
    for (prompt, answers), turn in zip(exchanges, log.turns, strict=True):
        said = [answer for answer in answers if answer or turn.end == "completed"]
        if (answer := said[-1] if said else "") != turn.text:
            yield "history", f"{prompt!r}: {answer!r} is kept, {turn.text!r} was told"


def _exchanges(history: Sequence[Said]) -> list[tuple[str, list[str]]]:
    """Return each prompt with the answers of its steps."""
    found: list[tuple[str, list[str]]] = []
    for said in history:
        if said.role == "user":
            found.append((said.text, []))
        elif said.role == "assistant" and found:
            found[-1][1].append(said.text)
    return found


def _counts(kept: Kept, log: StreamCheck | None) -> Iterator[tuple[str, str]]:
    total = len(kept.history)
    if kept.message_count != total:
        yield "count", f"it says it has {kept.message_count} messages, and has {total}"
    if (rows := kept.rows) is None:
        return
    if (rows.messages, rows.positions, rows.claimed) != (total, total, total):
        yield "rows", f"{total} messages in its history, in the file {rows}"
    if log is not None:
        if rows.last_seq < log.last_seq:
            yield "rows", f"event {log.last_seq} was told, the file ends with {rows.last_seq}"
        if rows.turns != len(log.turns):
            yield "rows", f"{len(log.turns)} turns were told of, {rows.turns} are in the file"
