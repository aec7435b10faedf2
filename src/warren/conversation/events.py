"""The events of a turn. On the wire `run_*` is about a turn and `turn_*` about a step, as is usual in the field."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from warren.base.fields import LEFT_OUT
from warren.base.values import frozen, value
from warren.conversation.attachments import Attachment
from warren.conversation.categories import Category
from warren.conversation.messages import StopReason
from warren.conversation.usage import Usage

InputKind = Literal["queue", "steer", "context", "peer"]
"""The kinds of inputs: one that waits for a turn of its own, one for the running turn, the host's, and a peer's."""
RepairAction = Literal["dropped", "replaced", "shortened", "left_out", "switched_off"]
"""The repair of a refused request: `left_out` removes a tool, `switched_off` a feature of the protocol."""
BudgetType = Literal["tokens", "time", "tool_calls", "steps", "cost"]
FailureCause = Literal[
    "cancelled", "budget_exhausted", "provider_error", "store_error", "structured_output", "denied", "crash"
]
TurnOutcome = Literal["completed", FailureCause]
"""The end of a turn: with an answer, or why it failed."""


@value
class RunStarted:
    """A turn began."""

    session_id: str
    prompt: str
    attachments: tuple[Attachment, ...] = ()


@value
class InputTaken:
    """An input from the inbox has entered the running turn; the model reads it in the next step."""

    input_id: str
    kind: InputKind
    content: str
    source: str | None = None
    attachments: tuple[Attachment, ...] = ()


@value
class TurnStarted:
    """A step began; `turn_number` counts the session's steps from 0 and survives restarts."""

    turn_number: int


@value
class TextDelta:
    """The next piece of the answer."""

    delta: str


@value
class ReasoningDelta:
    """The next piece of the model's readable reasoning."""

    delta: str


@value
class TextComplete:
    """The whole text of the step. It counts if it differs from the deltas, which a retried call leaves incomplete."""

    content: str


@value
class FilesComplete:
    """The files of the step's answer, such as pictures that the model has made. Their bytes are in the store."""

    attachments: tuple[Attachment, ...]


@value
class ToolCallRequested:
    """The model asked for a tool."""

    id: str
    name: str
    args: Mapping[str, Any]


@value
class ToolApprovalRequested:
    """A tool call waits for approval, for at most `timeout_ms`; with `question_of`, a question of that running call.

    With `may_have_run` it may have run already: the process ended during it. `question` is that of a hook.
    """

    id: str
    name: str
    args: Mapping[str, Any]
    category: Category
    timeout_ms: int
    question_of: str | None = None
    may_have_run: bool = False
    question: str | None = attrs.field(default=None, metadata=LEFT_OUT)

    @property
    def stands_alone(self) -> bool:
        """Whether no decision on other calls of the tool holds for it: it is of one moment, or of one text."""
        return self.may_have_run or self.question_of is not None


@value
class ToolApprovalResolved:
    """A tool call that waited for approval runs or is denied; `cancelled` if the call or its turn has ended before.

    `reason` comes with the answer; None if it had none.
    """

    id: str
    name: str
    decision: Literal["allow", "deny", "timeout", "cancelled"]
    reason: str | None = None


@value
class ToolExecutionStarted:
    """A tool began to run; `child` is the session that does its work, if it delegates that.

    `args` are the arguments that a hook has changed; None if they are those of the call.
    """

    id: str
    name: str
    child: str | None = None
    args: Mapping[str, Any] | None = attrs.field(default=None, metadata=LEFT_OUT)


@value
class ToolExecutionCompleted:
    """A tool ended. The events come in the order in which tools end."""

    id: str
    name: str
    result: str
    is_error: bool
    duration_ms: int
    attachments: tuple[Attachment, ...] = ()


@value
class ToolExecutionTimedOut:
    """A tool ran past its time limit; its error result follows."""

    id: str
    name: str
    timeout_ms: int


@value
class ToolResultReceived:
    """A tool's result is ready for the model.

    Attributes:
        id: the call.
        name: the tool.
        is_error: whether the call has failed.
        result: the text for a call that never ran; None for all others: `tool_execution_completed` has their text.
    """

    id: str
    name: str
    is_error: bool
    result: str | None = None


@value
class TurnCompleted:
    """A step ended. `model` is the one that answered, if it is not the one that was to answer."""

    stop_reason: StopReason
    usage: Usage
    model: str | None = None


@value
class Retrying:
    """A model call failed and is tried again after `delay_ms`."""

    attempt: int
    max_attempts: int
    error: str
    delay_ms: int


@value
class RequestRepaired:
    """The server refused a part of the model's request, and the request goes out once more without that part.

    Attributes:
        action: what was done to the part: `left_out` is a tool, `switched_off` a feature of the protocol.
        what: the part, in words.
        why: the server's own words, shortened.
    """

    action: RepairAction
    what: str
    why: str


@value
class ModelSwitched:
    """Another model takes over, because the one before is overloaded or away.

    If `discarded`, the text and the reasoning of this step so far do not count: the new model begins its own answer.
    """

    from_model: str
    to_model: str
    error: str
    discarded: bool = False


@value
class BudgetWarning:
    """A budget is used up to `percent` (0 to 100 and above)."""

    budget_type: BudgetType
    used: float
    limit: float
    percent: float


@value
class CompactionStarted:
    """The context is about to be summarised. `input_tokens` is its size as the model reported it."""

    input_tokens: int
    estimated_history_tokens: int
    message_count: int


@value
class CompactionCompleted:
    """The context is shorter from here on, and that is stored. The counts are of messages in the model's context."""

    summary_tokens: int
    messages_before: int
    messages_after: int


@value
class CompactionFailed:
    """The context is unchanged, and the turn goes on. `reason` is for programs."""

    error: str
    reason: str


@value
class ExtractionCompleted:
    """The answer is available as data too, after `attempts` model calls. Their text is not streamed."""

    attempts: int


@value
class ExtractionFailed:
    """The answer does not fit its schema after `attempts` model calls, and the turn is about to fail."""

    error: str
    attempts: int


@value
class RunCompleted:
    """The turn ended with an answer, and is stored. No event of the turn follows.

    `structured_output` is the answer as data, if a schema was given.
    """

    session_id: str
    result: str
    usage: Usage
    structured_output: Any = None


@value
class RunFailed:
    """The turn ended without an answer. No event of the turn follows."""

    session_id: str
    error: str
    cause: FailureCause


@value
class StreamTruncated:
    """Events are missing: they are no longer kept, they could not be sent, or a row of the log is damaged.

    A subscriber's pace is no reason: it gets every event that is kept. The marker is made for one subscriber alone.
    Its envelope repeats the last delivered seq, and a replay from `resume_after` brings the events that are still
    kept. If a row is damaged, its events are gone: `resume_after` and the envelope have the row's own seq, and a replay
    continues after it.

    Attributes:
        dropped: number of missing events.
        resume_after: the `after_seq` to subscribe with.
        cause: "damaged" if the events cannot be read in the store; None otherwise.
    """

    dropped: int
    resume_after: int
    cause: Literal["damaged"] | None = None

    @property
    def before(self) -> int:
        """The seq of the last event before those that are missing."""
        return self.resume_after if self.cause is None else self.resume_after - self.dropped


@value
class SessionMoved:
    """The session goes on elsewhere or from an earlier state, and events that this subscriber was shown are not stored.

    The process that had shown them ended before it stored their turn, or the store has gone back to a state without
    them, as by the restore of a backup. The marker is made for one subscriber alone, and
    its envelope repeats the last delivered seq. The end of the lost turn follows it, if the turn has no other; a turn
    that goes on follows with TurnResumed.

    Attributes:
        first_lost: seq of the first event that is lost.
        last_lost: seq of the last event that was shown and is lost.
    """

    first_lost: int
    last_lost: int


@value
class TurnResumed:
    """The turn goes on after an interruption: the process that ran it ended or put it back, and another took it up.

    It may end at once, with `run_failed`: it was interrupted, or has taken too many processes down.

    The events of the turn with a number above `kept_seq` and below this event's own are of a step that was not kept.
    A reader takes back what it was shown of them: text, reasoning and files are no part of the answer, and a tool call
    is gone unless it is requested again. The step is run anew, and its events follow. Kept calls have kept their ids.

    Attributes:
        resumed: number of times that the turn has gone on, including this one.
        kept_seq: number of the newest event before this one that still counts.
    """

    resumed: int
    kept_seq: int


@value
class UnknownEvent:
    """An event that a newer version wrote. It is kept unchanged."""

    type: str
    data: Mapping[str, Any]


Event = (
    RunStarted
    | InputTaken
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | TextComplete
    | FilesComplete
    | ToolCallRequested
    | ToolApprovalRequested
    | ToolApprovalResolved
    | ToolExecutionStarted
    | ToolExecutionCompleted
    | ToolExecutionTimedOut
    | ToolResultReceived
    | TurnCompleted
    | Retrying
    | RequestRepaired
    | ModelSwitched
    | BudgetWarning
    | CompactionStarted
    | CompactionCompleted
    | CompactionFailed
    | ExtractionCompleted
    | ExtractionFailed
    | RunCompleted
    | RunFailed
    | StreamTruncated
    | SessionMoved
    | TurnResumed
    | UnknownEvent
)
TERMINAL = (RunCompleted, RunFailed)
DELTAS = (TextDelta, ReasoningDelta)


@frozen
class Envelope:
    """One event of a session's log, in the form in which subscribers get it.

    Attributes:
        session_id: the session.
        seq: the event's number. Numbers rise within a session, also over restarts, but not always by one.
        timestamp: the time of the event (UTC).
        event: the event.
        first_seq: the number of the first delta if adjacent deltas were merged: the event stands for first_seq..seq.
        encoded: the JSON of the event once it was made, which all rows and messages with the event share; None before.
            `warren.conversation.codec.encode_event` fills it.
        frame: the notification that reports the event to a client of JSON-RPC, once it was made; None before. All
            subscribers share it.
    """

    session_id: str
    seq: int
    timestamp: datetime
    event: Event
    first_seq: int | None = None
    encoded: bytes | None = attrs.field(default=None, init=False, eq=False, repr=False)
    frame: bytes | None = attrs.field(default=None, init=False, eq=False, repr=False)


@value
class _Open(Envelope):
    """An envelope that is not frozen yet."""


def sealed(session_id: str, seq: int, timestamp: datetime, event: Event) -> Envelope:
    """Return the envelope of an event, for a third of the instructions that its class takes: each event has one.

    Its fields are set before it is frozen. From then on it cannot change, as all readers of a log share it.
    """
    envelope: Envelope = _Open(session_id, seq, timestamp, event)
    envelope.__class__ = Envelope
    return envelope
