"""What the actors are told. Each message names the type of its reply."""

from typing import Any, ClassVar, Literal, TypeVar

import attrs

from warren.budget import Budget
from warren.mailbox import Message, Signal
from warren.memory import MemoryEntry, Progress
from warren.records import CompactionEntry, SessionRecord
from warren.service import OnEvent
from warren.storage.operations import Operation
from warren.views import TurnResult

R = TypeVar("R")


@attrs.frozen
class StartTurn(Message[TurnResult]):
    """Run one turn; the options hold for it alone, None takes the session's."""

    signal: ClassVar[Signal | None] = Signal.START
    prompt: str
    model: str | None = None
    provider: str | None = None
    max_tokens: int | None = None
    budget: Budget | None = None
    on_event: OnEvent | None = None


@attrs.frozen
class Compact(Message[CompactionEntry]):
    """Compact the context now; the session is busy meanwhile, as with a turn."""

    signal: ClassVar[Signal | None] = Signal.START
    instructions: str | None = None


@attrs.frozen
class Interrupt(Message[None]):
    """End the running turn; answered when it has ended."""

    signal: ClassVar[Signal | None] = Signal.INTERRUPT


@attrs.frozen
class Retire(Message[None]):
    """End the session's actor after the running turn; `archive` and `delete` change the store first."""

    signal: ClassVar[Signal | None] = Signal.RETIRE
    urgent: ClassVar[bool] = True
    how: Literal["stop", "archive", "delete"]


@attrs.frozen
class Loaded(Message[SessionRecord]):
    """Answered with the session's record once it is in memory."""


@attrs.frozen
class Remember(Message[int]):
    """Take entries into the memory, all or none; answered with how many were new."""

    entries: tuple[MemoryEntry, ...]


@attrs.frozen
class Forget(Message[None]):
    """Drop what is remembered of a session."""

    session_id: str


@attrs.frozen
class Rebuild(Message[None]):
    """Make the memory's index anew."""

    progress: Progress | None = None


@attrs.frozen
class Write(Message[Any]):
    """Apply one operation to the store; answered after its commit with what the operation returns."""

    operation: Operation[Any]
