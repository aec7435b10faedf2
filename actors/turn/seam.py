"""The seam of a turn: what surrounds it, its steps and its tool calls without being a part of them."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from warren.actors.turn.route import Candidate
from warren.base.values import frozen
from warren.conversation.events import Envelope
from warren.conversation.messages import ToolUseBlock
from warren.conversation.records import SessionRecord
from warren.conversation.transcript import Transcript
from warren.conversation.usage import Usage
from warren.reports.tracing import TraceContext

R = TypeVar("R")


class AroundCall(Protocol):
    """Surrounds a step of a turn, which is a call of its model with all that prepares it."""

    async def __call__(self, proceed: Callable[[], Awaitable[R]], /) -> R:
        """Make the call by `proceed`, and return its result.

        A wrapper may wait before the call, or raise instead of it: the error ends the turn.
        """


class AroundTool(Protocol):
    """Surrounds the run of a tool."""

    async def __call__(self, call: ToolUseBlock, proceed: Callable[[], Awaitable[R]], /) -> R:
        """Run the tool of a call by `proceed`, and return its result.

        A wrapper may wait before the call, or raise a WarrenError instead of it, which is the tool's result.
        """


class RunningTurn(Protocol):
    """A turn as its wrappers see it.

    Attributes:
        record: the session's record at the start of the turn.
        context: the model's context.
        caller: the place in a trace that the turn was called from; None if it has none.
        place: the turn's own place in a trace: that of its caller, unless a wrapper gives it another.
        first_seq: the number of its first event; None if it has published none, as one that only compacts.
    """

    record: SessionRecord
    context: Transcript
    caller: TraceContext | None
    place: TraceContext | None
    first_seq: int | None

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The models in the order in which they take over."""

    @property
    def usage(self) -> Usage:
        """The tokens so far."""


class AroundTurn(Protocol):
    """Surrounds a turn. Neither method waits: no request sees the session between a turn and its wrappers."""

    def begin(self, turn: RunningTurn) -> None:
        """Take note of a turn whose first event is not published yet."""

    def end(self, turn: RunningTurn, terminal: Envelope | None) -> None:
        """Take note of the end of a turn; `terminal` is its last event, None if it only compacted or stays open."""


@frozen
class Seam:
    """The wrappers of one turn, the outermost first. Where there is none, the call is made directly.

    A feature that concerns model calls, tool calls or turns from outside, such as a fence, a limit or a trace, is a
    wrapper in here: the turn does not know it. The planner builds the seam with the plan of a turn.

    Attributes:
        around_turn: those of the turn.
        around_model: those of each step.
        around_tool: those of each tool that runs. Whether a call runs at all is decided before, in the order of the
            calls.
    """

    around_turn: Sequence[AroundTurn] = ()
    around_model: Sequence[AroundCall] = ()
    around_tool: Sequence[AroundTool] = ()


DIRECT: Final = Seam()
"""The seam of a turn that nothing surrounds."""


async def surrounded(wrappers: Sequence[AroundCall], call: Callable[[], Awaitable[R]]) -> R:
    """Make a call within its wrappers."""
    for each in reversed(wrappers):
        call = partial(each, call)
    return await call()
