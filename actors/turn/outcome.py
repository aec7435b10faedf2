"""The outcome of a turn, and its consequences: the record, the terminal event, the reply. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    CapacityExceededError,
    ProviderError,
    StoreError,
    WarrenError,
)
from warren.base.values import value
from warren.conversation import codec
from warren.conversation.agents import AgentPin
from warren.conversation.attachments import Attachment
from warren.conversation.budget import NO_EXPENSE, Expense, Spent
from warren.conversation.events import Envelope, Event, FailureCause, RunCompleted, RunFailed, TurnOutcome
from warren.conversation.messages import StopReason
from warren.conversation.records import SessionRecord, Span, with_parts
from warren.conversation.transcript import Transcript
from warren.conversation.usage import Usage
from warren.conversation.views import TurnResult

TITLE_LENGTH: Final = 80
LONGEST_TEXT: Final = 256 * 1024
"""Characters of an answer that an error carries."""


@value
class Outcome:
    """The end of a turn, with an answer or an error.

    Attributes:
        text: the final answer, or the part of it that has arrived.
        stop_reason: the model's stop reason.
        usage: tokens of the turn.
        spent: the turn's part of the budgets.
        last_input_tokens: of the newest model call; 0 after a compaction.
        last_compaction_step: the step of the newest attempt to compact.
        prompt: the user's prompt; None if the turn only compacted.
        error: the error for the caller; None for an answer.
        structured_output: the answer as data, if a schema was given.
        left_out: the ranges of messages outside the context, as the provider refused some of the turn; None if it
            refused none.
        keep_alive: whether messages of peers begin turns from now on; None leaves that as it is.
        files: the files that the model has made.
        delegated: what the children of its calls have spent.
        agent: the agent of the session from now on; None leaves it as it is.
    """

    text: str
    stop_reason: StopReason
    usage: Usage
    spent: Spent
    last_input_tokens: int
    last_compaction_step: int | None
    prompt: str | None = None
    error: WarrenError | None = None
    structured_output: Any = None
    left_out: tuple[Span, ...] | None = None
    keep_alive: bool | None = None
    files: tuple[Attachment, ...] = ()
    delegated: Expense = NO_EXPENSE
    agent: AgentPin | None = None

    def failed(self, error: WarrenError) -> "Outcome":
        """Return the same outcome with a copy of an error, which carries the text so far."""
        error = error.copy()  # a provider may raise one object for the turns of many sessions
        if self.text:
            error.details["text"] = self.text[:LONGEST_TEXT]
            if len(self.text) > LONGEST_TEXT:
                error.details["text_length"] = len(self.text)
        if self.usage != Usage():
            error.details["usage"] = codec.to_data(self.usage)
        return attrs.evolve(self, error=error)

    def terminal(self, session_id: str) -> Event:
        """Return the turn's one terminal event."""
        if self.error is None:
            return RunCompleted(session_id, self.text, self.usage, self.structured_output)
        return RunFailed(session_id, self.error.message, cause_of(self.error))

    @property
    def outcome(self) -> TurnOutcome:
        """The end of the turn, by name."""
        return "completed" if self.error is None else cause_of(self.error)

    def ending(self, session_id: str, first_seq: int | None, terminal: Envelope | None) -> TurnResult | WarrenError:
        """Return the result or the error for each call that waits for the turn, with the numbers of its events.

        Args:
            session_id: the session.
            first_seq: the number of the turn's first event; None if it only compacted.
            terminal: the turn's last event; None if it only compacted, or if it stays open.
        """
        spent, last_seq = self.spent, None if terminal is None else terminal.seq
        if self.error is not None:
            details = self.error.details
            details.pop("last_seq", None)  # of an end that the store has refused
            details |= {} if first_seq is None else {"first_seq": first_seq}
            details |= {} if last_seq is None else {"last_seq": last_seq}
            return self.error
        result: TurnResult = _Open(
            session_id,
            self.text,
            spent.steps,
            spent.tool_calls,
            self.usage,
            self.stop_reason,
            self.structured_output,
            first_seq,
            last_seq,
            self.files,
        )
        result.__class__ = TurnResult  # frozen once its fields are set, as all calls that wait for the turn share it
        return result

    def charged(self, base: SessionRecord, now: SessionRecord) -> SessionRecord:
        """Return the record with the cost of the turn, which counts even if the turn could not be stored.

        Args:
            base: the record at the start of the turn.
            now: the record at present; it differs from `base` if the turn has compacted the context.
        """
        return now.changed(**self._costs(base))

    def record_after(
        self, base: SessionRecord, now: SessionRecord, terminal: Envelope | None, last_seq: int, context: Transcript
    ) -> SessionRecord:
        """Return the record after the turn; `terminal` is None if the turn only compacted."""
        message_count = context.end
        options = now.options
        if self.keep_alive is not None:
            options = attrs.evolve(options, keep_alive=self.keep_alive)
        return now.changed(
            options=options,
            turns=base.turns + (terminal is not None),
            # Not the maximum of both times: after a clock that was once far ahead it would never change again.
            updated_at=now.updated_at if terminal is None else terminal.timestamp,
            message_count=message_count,
            last_seq=last_seq if terminal is None else terminal.seq,
            last_assistant_text=self.text or base.last_assistant_text,
            last_structured_output=self.structured_output if self.text else base.last_structured_output,
            last_outcome=base.last_outcome if terminal is None else self.outcome,
            title=title_after(now, self.prompt),
            turn_open=False,
            turn=None,
            left_out=base.left_out if self.left_out is None else self.left_out,
            agent=now.agent if self.agent is None else self.agent,
            parts_left_out=with_parts(base.parts_left_out, context.parts) if context.parts else base.parts_left_out,
            **self._costs(base),
        )

    def _costs(self, base: SessionRecord) -> dict[str, Any]:
        return {
            "usage": base.usage + self.usage,
            "spent": base.spent + self.spent,
            "delegated": base.delegated if self.delegated is NO_EXPENSE else base.delegated + self.delegated,
            "steps": base.steps + self.spent.steps,
            "last_input_tokens": self.last_input_tokens,
            "last_compaction_step": self.last_compaction_step,
        }


@value
class _Open(TurnResult):
    """A result that is not frozen yet: its fields are set directly, for a third of the instructions."""


def title_after(now: SessionRecord, prompt: str | None) -> str | None:
    """Return a session's title after a turn with a prompt; the first turn sets it."""
    return now.title if now.turns or now.title or prompt is None else title_of(prompt)


def title_of(prompt: str) -> str | None:
    """Return the first line of a prompt that is not blank, cut to `TITLE_LENGTH` characters."""
    lines = (line.strip() for line in prompt.splitlines())
    return next((line[:TITLE_LENGTH].rstrip() for line in lines if line), None)


CAUSES: Final[Mapping[str | None, FailureCause]] = {
    "cancelled": "cancelled",
    "shutting_down": "cancelled",
    "structured_output": "structured_output",
    "denied": "denied",
    "hook": "denied",
}
"""The causes in `run_failed` for those of an `AgentError`; all others are crashes."""


def cause_of(error: WarrenError) -> FailureCause:
    """Return the cause in `run_failed` for an error."""
    match error:
        case ProviderError():
            return "provider_error"
        case BudgetExhaustedError() | CapacityExceededError():  # a budget of the session, or one of its tenant
            return "budget_exhausted"
        case StoreError():
            return "store_error"
        case AgentError():
            return CAUSES.get(error.cause, "crash")
    return "crash"
