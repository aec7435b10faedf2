"""What a turn tells its watchers. On the wire `run_*` speaks of a turn and `turn_*` of a step, as the field does."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from warren.categories import Category
from warren.messages import StopReason
from warren.usage import Usage
from warren.values import value

InputKind = Literal["queue", "steer", "context", "peer"]
"""How something is said to a session: it waits for its turn, enters the running one, is the host's, or a peer's."""
FailureCause = Literal["cancelled", "budget_exhausted", "provider_error", "store_error", "structured_output", "crash"]


@attrs.frozen
class RunStarted:
    """A turn began."""

    session_id: str
    prompt: str


@attrs.frozen
class InputTaken:
    """Something that waited for the session has entered the running turn, and the next step's model reads it."""

    input_id: str
    kind: InputKind
    content: str
    source: str | None = None


@attrs.frozen
class TurnStarted:
    """A step began; `turn_number` counts the session's steps from 0 and survives restarts."""

    turn_number: int


@attrs.frozen
class TextDelta:
    """The next piece of the answer."""

    delta: str


@attrs.frozen
class ReasoningDelta:
    """The next piece of the model's readable reasoning."""

    delta: str


@attrs.frozen
class TextComplete:
    """The whole text of the step; it counts where the deltas of a retried call are incomplete."""

    content: str


@attrs.frozen
class ToolCallRequested:
    """The model asked for a tool."""

    id: str
    name: str
    args: Mapping[str, Any]


@attrs.frozen
class ToolApprovalRequested:
    """A call waits for somebody's word, for `timeout_ms` at most."""

    id: str
    name: str
    args: Mapping[str, Any]
    category: Category
    timeout_ms: int


@attrs.frozen
class ToolApprovalResolved:
    """A call that waited goes on or is refused; the reason is somebody's, where one was given."""

    id: str
    name: str
    decision: Literal["allow", "deny", "timeout"]
    reason: str | None = None


@attrs.frozen
class ToolExecutionStarted:
    """A tool began to run."""

    id: str
    name: str


@attrs.frozen
class ToolExecutionCompleted:
    """A tool ended; reported as each one finishes."""

    id: str
    name: str
    result: str
    is_error: bool
    duration_ms: int


@attrs.frozen
class ToolExecutionTimedOut:
    """A tool ran past its time limit; its error result follows."""

    id: str
    name: str
    timeout_ms: int


@attrs.frozen
class ToolResultReceived:
    """A tool's result is ready for the model."""

    id: str
    name: str
    is_error: bool


@attrs.frozen
class TurnCompleted:
    """A step ended."""

    stop_reason: StopReason
    usage: Usage


@attrs.frozen
class Retrying:
    """A model call failed and is tried again after `delay_ms`."""

    attempt: int
    max_attempts: int
    error: str
    delay_ms: int


@attrs.frozen
class BudgetWarning:
    """A budget is used up to `percent` (0 to 100 and above)."""

    budget_type: Literal["tokens", "time", "tool_calls", "steps"]
    used: float
    limit: float
    percent: float


@attrs.frozen
class CompactionStarted:
    """The context is about to be summarised; how large it is, as reported by the model and as estimated."""

    input_tokens: int
    estimated_history_tokens: int
    message_count: int


@attrs.frozen
class CompactionCompleted:
    """The context is shorter from here on, and that is stored. The counts are of messages that the model sees."""

    summary_tokens: int
    messages_before: int
    messages_after: int


@attrs.frozen
class CompactionFailed:
    """The context is as it was; the turn goes on. `reason` is for programs."""

    error: str
    reason: str


@attrs.frozen
class ExtractionCompleted:
    """The answer is there as data too; the model needed so many attempts, which no stream shows."""

    attempts: int


@attrs.frozen
class ExtractionFailed:
    """There is no answer as data after so many attempts; the turn is about to fail."""

    error: str
    attempts: int


@attrs.frozen
class RunCompleted:
    """The turn ended well: terminal, after its commit."""

    session_id: str
    result: str
    usage: Usage


@attrs.frozen
class RunFailed:
    """The turn ended otherwise: terminal, after its commit."""

    session_id: str
    error: str
    cause: FailureCause


@attrs.frozen
class StreamTruncated:
    """Events are missing: a subscriber fell behind, or a row of the log is damaged.

    Of a subscriber that fell behind, replay from `resume_after` brings the events that are still kept; the marker is
    made for that subscriber alone, and its envelope repeats the last delivered seq. The events of a damaged row are
    gone: `resume_after` and the envelope have the row's own seq, and replay goes on behind it.

    Attributes:
        dropped: how many events are missing.
        resume_after: the seq to go on from.
        cause: "damaged" if the events cannot be read in the store; None if they can be replayed.
    """

    dropped: int
    resume_after: int
    cause: Literal["damaged"] | None = None

    @property
    def before(self) -> int:
        """The seq of the last event before those that are missing."""
        return self.resume_after if self.cause is None else self.resume_after - self.dropped


@attrs.frozen
class UnknownEvent:
    """An event of a newer version: kept as it is."""

    type: str
    data: Mapping[str, Any]


Event = (
    RunStarted
    | InputTaken
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | TextComplete
    | ToolCallRequested
    | ToolApprovalRequested
    | ToolApprovalResolved
    | ToolExecutionStarted
    | ToolExecutionCompleted
    | ToolExecutionTimedOut
    | ToolResultReceived
    | TurnCompleted
    | Retrying
    | BudgetWarning
    | CompactionStarted
    | CompactionCompleted
    | CompactionFailed
    | ExtractionCompleted
    | ExtractionFailed
    | RunCompleted
    | RunFailed
    | StreamTruncated
    | UnknownEvent
)
TERMINAL = (RunCompleted, RunFailed)
DELTAS = (TextDelta, ReasoningDelta)


@value
class Envelope:
    """One event of a session's log, made for one reader of it: the log itself keeps another form.

    Attributes:
        session_id: whose log it is.
        seq: the event's number; rises strictly within a session, also over restarts, not always by one.
        timestamp: when it happened (UTC).
        event: what happened.
        first_seq: set where adjacent deltas were merged: the event stands for first_seq..seq.
    """

    session_id: str
    seq: int
    timestamp: datetime
    event: Event
    first_seq: int | None = None
