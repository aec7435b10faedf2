"""Checks a session at the end: its prompts, its events, its messages and its rows must agree. No I/O."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import attrs

from warren.base.errors import ErrorCode
from warren.base.values import define, frozen
from warren.transport.load.stream import StreamCheck, TurnSeen, Violation
from warren.transport.load.target import LOST, RowCounts, Said, TargetError

Outcome = Literal["unknown", "answered", "failed", "refused"]
NOT_BEGUN: Final = frozenset({ErrorCode.SESSION_BUSY, ErrorCode.CAPACITY_EXCEEDED, ErrorCode.INVALID_PARAMS})
"""Codes of errors that mean that no turn has begun."""


@define
class SentTurn:
    """One requested turn with its outcome.

    Attributes:
        prompt: the prompt.
        outcome: `unknown` until there is an answer or an error; `refused` if no turn was to begin.
        text: the answer.
        code: the code of the error.
        cause: the cause of the error.
    """

    prompt: str
    outcome: Outcome = "unknown"
    text: str = ""
    code: str = ""
    cause: str = ""

    def take(self, error: TargetError) -> None:
        """Note the error of the turn. If the connection was lost, the outcome of the turn is unknown."""
        self.code, self.cause = error.code, error.cause
        if error.code != LOST:
            self.outcome = "refused" if error.code in NOT_BEGUN else "failed"


@define
class Ledger:
    """The observations of one client on its session.

    Attributes:
        session_id: the session.
        sent: the requested turns, in order.
        heard: the client's own stream.
        watched: the stream of a second client that followed from the beginning, if there was one.
        replayed: the whole log; None until it is read, at the end.
        found: violations that were seen during the run.
        unchecked: the reason why the session could not be checked to its end, which is no violation; "" if it was.
    """

    session_id: str
    heard: StreamCheck
    sent: list[SentTurn] = attrs.field(factory=list)
    watched: StreamCheck | None = None
    replayed: StreamCheck | None = None
    found: list[Violation] = attrs.field(factory=list)
    unchecked: str = ""

    @property
    def streams(self) -> list[StreamCheck]:
        """All streams of the session, live and replayed."""
        return [each for each in (self.heard, self.watched, self.replayed) if each is not None]

    @property
    def cut_short(self) -> bool:
        """Whether the outcome of the last turn is unknown: then streams may end within it."""
        return self.lost or (bool(self.sent) and self.sent[-1].outcome == "unknown")

    @property
    def lost(self) -> bool:
        """Whether the connection was lost in a turn, after which its user left."""
        return any(each.code == LOST for each in self.sent)

    @property
    def noticed(self) -> list[Violation]:
        """All violations so far."""
        return [*self.found, *(violation for each in self.streams for violation in each.violations)]

    def wrong(self, rule: str, detail: str) -> None:
        """Note a violation."""
        self.found.append(Violation(self.session_id, rule, detail))


@frozen
class Kept:
    """The session as the target has it after the run.

    Attributes:
        history: its messages.
        message_count: the number of messages by its own view.
        rows: the counts of its rows in the store's file; None if the file cannot be read.
    """

    history: Sequence[Said]
    message_count: int
    rows: RowCounts | None = None


def verify(ledger: Ledger, kept: Kept) -> list[Violation]:
    """Return every broken promise of a session."""
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
    """Compare the live streams with the log."""
    if stream is None or log is None or stream.truncated or log.truncated:
        return
    logged = log.turns[: len(stream.turns)] if cut_short else log.turns
    if stream.turns != logged:
        yield rule, f"{_difference(stream.turns, logged)} (as told, and in the log)"


def _difference(left: Sequence[TurnSeen], right: Sequence[TurnSeen]) -> str:
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return f"turn {number}: {one} is not {other}"
    return f"{len(left)} turns, not {len(right)}"


def _sent(ledger: Ledger, log: StreamCheck) -> Iterator[tuple[str, str]]:
    """Compare the client's prompts and answers with the log."""
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


def _agrees(sent: SentTurn, turn: TurnSeen) -> bool:
    if sent.outcome == "answered":
        return turn.end == "completed" and turn.text == sent.text
    return sent.outcome != "failed" or turn.end != "completed"


def _transcript(history: Sequence[Said]) -> Iterator[tuple[str, str]]:
    """Check the transcript by the rules of model providers."""
    pending: tuple[str, ...] = ()
    used: set[str] = set()
    for position, message in enumerate(history):
        if message.results:
            if message.results != pending:
                yield "transcript", f"message {position} has results of {message.results}, calls were {pending}"
            pending = ()
            continue
        if pending:
            yield "transcript", f"calls {pending} have no result before message {position}"
        if message.role == "system" and position:
            yield "transcript", f"message {position} is a system message amid the history"
        if message.role == "assistant" and (position == 0 or history[position - 1].role == "assistant"):
            yield "transcript", f"message {position} is an answer to nothing"
        if used & set(message.calls):
            yield "transcript", f"message {position} has a call id twice: {message.calls}"
        used |= set(message.calls)
        pending = message.calls
    if pending:
        yield "transcript", f"calls {pending} have no result"


def _history(history: Sequence[Said], log: StreamCheck) -> Iterator[tuple[str, str]]:
    """Compare the messages with the events of each turn."""
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
        texts = [answer for answer in answers if answer or turn.end == "completed"]
        if (answer := texts[-1] if texts else "") != turn.text:
            yield "history", f"{prompt!r}: {answer!r} is kept, {turn.text!r} was told"


def _exchanges(history: Sequence[Said]) -> list[tuple[str, list[str]]]:
    """Return each prompt with the answers of its steps."""
    found: list[tuple[str, list[str]]] = []
    for message in history:
        if message.role == "user":
            found.append((message.text, []))
        elif message.role == "assistant" and found:
            found[-1][1].append(message.text)
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
