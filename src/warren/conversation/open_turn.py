"""The kept state of a turn that has not ended: all that a process needs to go on with it. No I/O."""

from datetime import datetime
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.values import value
from warren.conversation.attachments import Attachment
from warren.conversation.budget import NO_EXPENSE, NOTHING_SPENT, Expense, Spent
from warren.conversation.messages import StopReason, ToolResult
from warren.conversation.options import NO_OPTIONS, TurnOptions
from warren.conversation.usage import NO_USAGE, Usage

CallState = Literal["begun", "waiting", "done"]
"""The state of a tool call: its tool may have run, it waits for something, or its result is known."""
CALL_STATES: Final[tuple[CallState, ...]] = get_args(CallState)


@value
class KeptCall:
    """The kept state of one tool call of the newest answer.

    Attributes:
        call_id: the id of the call in the answer.
        place: its place among the calls of the answer, from 0.
        state: its state.
        result: the result; None unless the state is `done`.
    """

    call_id: str
    place: int
    state: CallState
    result: ToolResult | None = None


@value
class TurnStart:
    """The part of a session's record before an open turn that the turn adds to.

    Attributes:
        message_count: messages before the turn.
        steps: model calls of the session before the turn.
        usage: tokens of the session before the turn.
        spent: the used part of the session's budget before the turn.
        delegated: the part that its children had spent by then.
    """

    message_count: int
    steps: int
    usage: Usage
    spent: Spent
    delegated: Expense = NO_EXPENSE


@value
class OpenTurn:
    """A turn that has not ended, as of the newest commit of its messages.

    The prompt, the answers and the results are messages of the session; the calls of the newest answer are `KeptCall`
    values beside it. What one value here could be made from the messages is not kept.

    Attributes:
        began: the time of its first event (UTC).
        first_seq: the number of its first event.
        kept_seq: the number of the newest event that counts: a turn that goes on takes later ones back.
        prompt_at: the position of its prompt.
        start: the session before the turn.
        options: its own options.
        payer: the client whose limit of tokens it counts for; empty if it has none.
        key: the idempotency key of its prompt; None if it has none.
        hops: messages of peers in a row, up to the one that began it.
        traceparent: its place in a trace; None if it has none.
        inputs: the numbers of the inputs that it has taken.
        usage: its tokens.
        spent: its part of the budgets; the time is running time alone.
        step_usage: the tokens of its newest model call.
        calls: its tool calls before those of the newest answer.
        cuts: answers in a row that were cut within a tool call.
        answer: the JSON of its final answer while that is brought into the form of data; None at other times. It is no
            message of the session as yet.
        text: the text of its newest answer, with that of the answers before that the provider had paused.
        stop_reason: the reason for the end of the newest answer.
        resumed: how often a process has gone on with it.
        deaths: how often a process died during it.
        parked: whether the process that had it has put it back in good order.
        wakes: the time (UTC) from which on it goes on without an answer, if all of its calls that have no result wait:
            until then nothing of it can be done. None if it goes on at once.
        files: the files that the model has made in it.
        lives: how often a process has gone on with it, also after all of its calls had waited.
        warned: the limits of budgets of which it has warned.
        delegated: the part of its budgets that the children of its calls have spent.
    """

    began: datetime
    first_seq: int
    kept_seq: int
    prompt_at: int
    start: TurnStart
    options: TurnOptions = NO_OPTIONS
    payer: str = ""
    key: str | None = None
    hops: int = 0
    traceparent: str | None = None
    inputs: tuple[int, ...] = ()
    usage: Usage = NO_USAGE
    spent: Spent = NOTHING_SPENT
    step_usage: Usage = NO_USAGE
    calls: int = 0
    cuts: int = 0
    answer: str | None = None
    text: str = ""
    stop_reason: StopReason = "end_turn"
    resumed: int = 0
    deaths: int = 0
    parked: bool = False
    wakes: datetime | None = None
    files: tuple[Attachment, ...] = ()
    lives: int = 0
    warned: tuple[str, ...] = ()
    delegated: Expense = NO_EXPENSE

    def changed(self, **changes: Any) -> "OpenTurn":
        """Return a copy with other values of the named fields."""
        return attrs.evolve(self, **changes)
