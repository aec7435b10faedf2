"""The steps of a durable turn: what was said and done so far is committed before the turn goes on."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.conversation.open_turn import KeptCall
from warren.conversation.waits import Wait


class CommitStep(Protocol):
    """Stores the turn as it is: its messages and events so far, its state, and states of tool calls."""

    async def __call__(self, calls: Sequence[KeptCall], waits: Sequence[Wait], *, settles: bool) -> None:
        """Store it.

        Args:
            calls: the tool calls whose states have changed.
            waits: the waits that are new, or have changed.
            settles: whether the stored states of all other calls go: their results are in the messages.

        Raises:
            WarrenError: if the store refuses; nothing is changed.
        """


@define(eq=False)
class Steps:
    """The kept steps of one turn.

    Attributes:
        commit: stores the turn as it is.
        answers: returns once no answer to a wait of the session is on its way to the store.
        kept: the number of the session's messages that are kept.
        rows: whether the store has states of the turn's tool calls.
        refusal: the error of the store if it has refused a step: the turn ends here, and goes on from what is kept.
    """

    commit: CommitStep
    answers: Callable[[], Awaitable[None]]
    kept: int
    rows: bool = False
    refusal: WarrenError | None = None

    async def keep(self, calls: Sequence[KeptCall] = (), waits: Sequence[Wait] = (), *, settles: bool = False) -> None:
        """Commit the turn as it is. One commit at a time: each follows from the one before.

        Args:
            calls: the tool calls whose states have changed.
            waits: the waits that are new, or have changed.
            settles: whether the results of all tool calls are in the messages.

        Raises:
            WarrenError: if the store refuses; nothing is changed.
        """
        settles = settles and self.rows
        try:
            await self.commit(calls, waits, settles=settles)
        except WarrenError as exc:
            self.refusal = exc
            raise
        self.rows = bool(calls) or (self.rows and not settles)
