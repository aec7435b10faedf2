"""The messages between actors. Each names the type of its reply."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import attrs

from warren.actors.events.eventlog import Beginning
from warren.base.errors import WarrenError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import value
from warren.conversation.attachments import Attachment, Blob
from warren.conversation.categories import Decision
from warren.conversation.inputs import Numbered
from warren.conversation.memory import Chosen, MemoryEntry, Tail
from warren.conversation.messages import ToolResult
from warren.conversation.options import NO_OPTIONS, TurnOptions
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.conversation.views import TurnResult
from warren.conversation.waits import Wait, WaitReason
from warren.mailbox import Message
from warren.models.tools import Tool
from warren.reports.audit import AuditEntry
from warren.reports.tracing import TraceContext
from warren.storage.operations import Labelled, Operation

R = TypeVar("R")


class ClaimsTurn(Message[R]):
    """The base class of messages that claim the session for a turn: of two that are sent at once one is admitted."""

    __slots__ = ()


@value
class StartTurn(ClaimsTurn[TurnResult]):
    """Run one turn.

    Attributes:
        prompt: the prompt.
        options: its own options.
        tools: tools that its caller brings, by name.
        caller: the place in a trace that it was called from.
        attachments: the files of the prompt.
        blobs: those of them that are to be stored, once nothing speaks against the turn and before it begins.
        payer: the client whose limit of tokens it counts for; empty if it has none.
        key: the idempotency key of the prompt; None if it has none.
        hops: messages of peers in a row, up to the one that begins the turn; 0 for a prompt of a user.
        begun: gets a reader with the first event of the turn; None if the caller wants no events.
        result: whether the prompt is the result of a call in the background: its model need not take the files.
        decode: makes a value of the type that the answer is to have; None if its caller has not named one.
    """

    prompt: str
    options: TurnOptions = NO_OPTIONS
    tools: Mapping[str, Tool] = attrs.field(factory=dict)
    caller: TraceContext | None = None
    attachments: tuple[Attachment, ...] = ()
    blobs: tuple[Blob, ...] = attrs.field(default=(), repr=False)
    payer: str = ""
    key: str | None = None
    hops: int = 0
    begun: Beginning | None = None
    result: bool = False
    decode: Callable[[Any], object] | None = None


@value
class Compact(ClaimsTurn[CompactionEntry]):
    """Compact the context now; the session is busy meanwhile, as with a turn, whose `caller` and `payer` it has.

    What a turn has besides is fixed here: nothing of it.
    """

    prompt: ClassVar[None] = None
    options: ClassVar[TurnOptions] = NO_OPTIONS
    tools: ClassVar[Mapping[str, Tool]] = {}
    attachments: ClassVar[tuple[Attachment, ...]] = ()
    result: ClassVar[bool] = False
    key: ClassVar[None] = None
    decode: ClassVar[None] = None
    instructions: str | None = None
    caller: TraceContext | None = None
    payer: str = ""


@value
class Arrived(Message[TurnResult | WarrenError | None]):
    """Take an input of the store's inbox in.

    Attributes:
        numbered: the input, and its number in the store's inbox.
        waits: whether the reply is the ending of the input: the result or the error of the turn that took it. It is
            None if the session does not know it, as the input had its turn too long ago or in another process. If
            nobody waits, the reply is None and comes at once. An error that is raised is no ending: the input waits on.
        tools: tools for the turn that begins with the input, by name.
        begun: gets a reader with the first event after a turn has taken the input; None if the sender wants no events.
        others: further notices, if it is one: a thousand children may end at once.
    """

    urgent: ClassVar[bool] = True  # the store has the input, and no other message would tell the session
    numbered: Numbered
    waits: bool = False
    tools: Mapping[str, Tool] = attrs.field(factory=dict)
    begun: Beginning | None = None
    others: Sequence[Numbered] = ()


@value
class Withdraw(Message[int]):
    """Take an input out of the inbox that no turn has taken. The reply is the number of the input."""

    input_id: str


@value
class AwaitTurn(Message[TurnResult]):
    """Wait for the end of the running turn, or of the next one. Refused at once if no turn runs and none waits.

    Attributes:
        tools: tools that the caller runs, by name, for the calls of the turn that wait for their client.
    """

    tools: Mapping[str, Tool] = attrs.field(factory=dict)


@value
class Wake(Message[None]):
    """Look for an input in the inbox whose turn may begin, even if the inbox has paused."""

    urgent: ClassVar[bool] = True


@value
class BeginNext(ClaimsTurn[None]):
    """Begin the turn of the first input in the inbox, which the scheduler has counted already."""

    urgent: ClassVar[bool] = True


@value
class GiveAnswer(Message[None]):
    """Give a tool call the answer that it waits for. The reply comes once the answer is stored, if its turn is.

    An answer that is given twice is answered twice; another one is refused, and so is one that nobody waits for.

    Attributes:
        reasons: what the call waits for is one of these.
        wait_id: the id of the wait.
        decision: the answer to an approval or a question; None for a result.
        result: the answer to all others; None for a decision.
        begins: the wait, if its call runs and has not said as yet that a result will come; None if it is not known.
        audit: the entry of the audit, which is added if the answer counts.
    """

    reasons: Collection[WaitReason]
    wait_id: str
    decision: Decision | None = None
    result: ToolResult | None = None
    begins: Wait | None = None
    audit: AuditEntry | None = None


@value
class Interrupt(Message[None]):
    """End the running turn early. The reply comes when it has ended.

    Attributes:
        audit: the entry of the audit, which is added then, with the ending of the turn.
    """

    audit: AuditEntry | None = None


@value
class InterruptLeft(Message[None]):
    """End a turn that was left open in the store, as `Interrupt`, once it is known whether there is one."""

    audit: AuditEntry | None = None


@value
class Retire(Message[None]):
    """End the session's actor.

    Attributes:
        how: `archive` waits for the end of the running turn, `delete` and `stop` interrupt it. `archive` and `delete`
            change the store first; if the store refuses, the session lives on.
        audit: the entry of the audit for the change of the store.
    """

    urgent: ClassVar[bool] = True
    how: Literal["stop", "archive", "delete"]
    audit: AuditEntry | None = None


@value
class LeaveMemory(Message[None]):
    """Leave memory if nothing else is asked of the session. The next message to the session brings it back."""


@value
class Loaded(Message[SessionRecord]):
    """Load the session. The reply is its record."""


@value
class TakeOver(Message[bool]):
    """Take the session's lease. The reply is whether this process has it now; no other living process loses it."""


@value
class Relabel(Message[SessionRecord]):
    """Show other labels, another title or fewer allowed tools, also while a turn runs. The reply is the record.

    Attributes:
        ask_again: names of tools that are no longer allowed.
        stored: the change as the store has applied it; None if it is still to do so.
    """

    urgent: ClassVar[bool] = True  # the store has the change, so the session has to show it
    ask_again: Collection[str] = ()
    stored: Labelled | None = None


@value
class Remember(Message[int]):
    """Take entries into the memory, all or none. The reply is the number of new ones.

    With a tail, the entries replace all that is remembered of it.
    """

    entries: tuple[MemoryEntry, ...]
    tail: Tail | None = None
    tenant: str = DEFAULT_TENANT


@value
class Forget(Message[None]):
    """Drop all that is remembered of a session."""

    session_id: str


@value
class ForgetTexts(Message[int | None]):
    """Drop some texts of a session. The reply is their number; None if the tenant has no such session."""

    chosen: Chosen


@value
class Write(Message[Any]):
    """Apply one operation to the store. The reply is the result of the operation, and comes after its commit."""

    urgent: ClassVar[bool] = True  # each writer waits for its reply, so there are never more than there are sessions
    operation: Operation[Any]
