"""What a turn came to, and what follows from it: the record, the terminal event, the reply. No I/O."""

import attrs

from warren import codec
from warren.budget import Spent
from warren.errors import AgentError, BudgetExhaustedError, ProviderError, StoreError, WarrenError
from warren.events import Envelope, Event, FailureCause, RunCompleted, RunFailed
from warren.messages import StopReason
from warren.records import SessionRecord
from warren.usage import Usage
from warren.views import TurnResult


@attrs.frozen
class Outcome:
    """The end of a turn, whichever it is.

    Attributes:
        text: the final answer, or as much as there was of it.
        stop_reason: why the model stopped.
        usage: tokens of the turn.
        spent: what it used of the budgets.
        error: None for an answer, else what its caller gets.
    """

    text: str
    stop_reason: StopReason
    usage: Usage
    spent: Spent
    error: WarrenError | None = None

    def failed(self, error: WarrenError) -> "Outcome":
        """Return the same turn, ended by `error`, which carries what the turn had so far."""
        if self.text:
            error.details["text"] = self.text
        if self.usage != Usage():
            error.details["usage"] = codec.to_data(self.usage)
        return attrs.evolve(self, error=error)

    def terminal(self, session_id: str) -> Event:
        """Return the turn's one terminal event."""
        if self.error is None:
            return RunCompleted(session_id, self.text, self.usage)
        return RunFailed(session_id, self.error.message, cause_of(self.error))

    def result(self, session_id: str) -> TurnResult:
        """Return what the caller of an answered turn gets."""
        return TurnResult(session_id, self.text, self.spent.steps, self.spent.tool_calls, self.usage, self.stop_reason)

    def charged(self, record: SessionRecord) -> SessionRecord:
        """Return the record with what the turn has cost: all that stays of a turn that could not be stored."""
        usage, spent = record.usage + self.usage, record.spent + self.spent
        return attrs.evolve(record, usage=usage, spent=spent, steps=record.steps + self.spent.steps)

    def settled(self, record: SessionRecord, terminal: Envelope, message_count: int) -> SessionRecord:
        """Return the record as the turn leaves it, its terminal event being the last one."""
        return attrs.evolve(
            record,
            usage=record.usage + self.usage,
            spent=record.spent + self.spent,
            steps=record.steps + self.spent.steps,
            turns=record.turns + 1,
            updated_at=max(terminal.timestamp, record.updated_at),
            message_count=message_count,
            last_seq=terminal.seq,
            last_assistant_text=self.text or record.last_assistant_text,
        )


def cause_of(error: WarrenError) -> FailureCause:
    """Return how `run_failed` names the error."""
    match error:
        case ProviderError():
            return "provider_error"
        case BudgetExhaustedError():
            return "budget_exhausted"
        case StoreError():
            return "store_error"
        case AgentError(cause="cancelled" | "shutting_down"):
            return "cancelled"
    return "crash"
