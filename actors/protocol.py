"""What the actors are told. Each message names the type of its reply."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import attrs

from warren.categories import Decision
from warren.inputs import Input
from warren.mailbox import Message
from warren.memory import MemoryEntry, Tail
from warren.options import NO_OPTIONS, TurnOptions
from warren.records import CompactionEntry, SessionRecord
from warren.storage.operations import Labelled, Operation
from warren.tools import Tool
from warren.views import TurnResult

R = TypeVar("R")


class Claim(Message[R]):
    """The base class of messages that claim the session for a turn: of two that are sent at once one is admitted."""

    __slots__ = ()


@attrs.frozen
class StartTurn(Claim[TurnResult]):
    """Run one turn."""

    prompt: str
    options: TurnOptions = NO_OPTIONS
    tools: Mapping[str, Tool] = attrs.field(factory=dict)


@attrs.frozen
class Compact(Claim[CompactionEntry]):
    """Compact the context now; the session is busy meanwhile, as with a turn."""

    instructions: str | None = None


@attrs.frozen
class Arrived(Message[TurnResult | bool]):
    """Take an input in; answered at once with whether it is new, or if it `waits` with what its turn came to.

    Attributes:
        input: what is said.
        waits: whether the answer is the turn's.
        number: its place in the store's inbox.
        tools: what its sender brings.
    """

    urgent: ClassVar[bool] = True  # the store has it, and nobody would tell the session again
    input: Input
    waits: bool
    number: int
    tools: Mapping[str, Tool] = attrs.field(factory=dict)


@attrs.frozen
class Withdraw(Message[int]):
    """Take an input out that no turn has taken; answered with its number."""

    input_id: str


@attrs.frozen
class Wake(Message[None]):
    """Look whether something waits that may begin now."""

    urgent: ClassVar[bool] = True


@attrs.frozen
class BeginNext(Claim[None]):
    """Begin the turn of what waits longest: there is room, and it is claimed; where nothing waits the room is free."""

    urgent: ClassVar[bool] = True


@attrs.frozen
class Decide(Message[None]):
    """Settle a tool call of the running turn that waits for somebody's word."""

    call_id: str
    decision: Decision


@attrs.frozen
class Interrupt(Message[None]):
    """End the running turn; answered when it has ended."""


@attrs.frozen
class Retire(Message[None]):
    """End the session's actor after the running turn; `archive` and `delete` change the store first."""

    urgent: ClassVar[bool] = True
    how: Literal["stop", "archive", "delete"]


@attrs.frozen
class LeaveMemory(Message[None]):
    """Leave memory if nothing else is asked of the session. The next message to the session brings it back."""


@attrs.frozen
class Loaded(Message[SessionRecord]):
    """Answered with the session's record once it is in memory."""


@attrs.frozen
class Relabel(Message[SessionRecord]):
    """Show other labels or another title, also while a turn runs; answered with the session's record.

    Attributes:
        changes: labels to change; None takes one away.
        title: the new title; None leaves it as it is.
        stored: what the store has made of that, where there is one; it may be known already.
    """

    urgent: ClassVar[bool] = True  # what is stored has to be shown
    changes: Mapping[str, str | None]
    title: str | None = None
    stored: Labelled | None = None


@attrs.frozen
class Remember(Message[int]):
    """Take entries into the memory, all or none; answered with how many were new.

    With a tail they are all there is of it: what else was remembered there goes.
    """

    entries: tuple[MemoryEntry, ...]
    tail: Tail | None = None


@attrs.frozen
class Forget(Message[None]):
    """Drop what is remembered of a session."""

    session_id: str


@attrs.frozen
class Write(Message[Any]):
    """Apply one operation to the store; answered after its commit with what the operation returns."""

    urgent: ClassVar[bool] = True  # whoever writes waits for it: there are never more than there are sessions
    operation: Operation[Any]
