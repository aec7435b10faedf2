"""The steps of a durable turn: what was said and done so far is committed before the turn goes on."""

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.conversation.open_turn import KeptCall
from warren.conversation.waits import Wait, WaitKey


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
        kept: the number of the session's messages that are kept.
        rows: whether the store has states of the turn's tool calls.
        refusal: the error of the store if it has refused a step: the turn ends here, and goes on from what is kept.
    """

    commit: CommitStep
    kept: int
    rows: bool = False
    refusal: WarrenError | None = None
    _one: trio.Lock = attrs.field(factory=trio.Lock)  # each commit follows from the one before

    async def keep(self, *, settles: bool = False) -> None:
        """Commit the turn as it is. Raises WarrenError if the store refuses.

        Args:
            settles: whether the results of all tool calls are in the messages.
        """
        await self._enter()
        try:
            await self._keep((), (), settles=settles and self.rows)
        finally:
            self._one.release()

    async def keep_calls(self, changed: dict[str, KeptCall], waits: dict[WaitKey, Wait]) -> None:
        """Commit the tool calls and the waits that have changed, by their keys, and remove them from the two.

        They stay there if this is cancelled before the commit, and if the store refuses, which raises WarrenError.
        """
        await self._enter()
        try:
            calls, held = tuple(changed.values()), tuple(waits.values())
            if calls or held:
                await self._keep(calls, held, settles=False)
            for each in calls:
                if changed.get(each.call_id) is each:  # else it has changed again meanwhile
                    del changed[each.call_id]
            for wait in held:
                if waits.get(wait.key) is wait:
                    del waits[wait.key]
        finally:
            self._one.release()

    async def _enter(self) -> None:
        try:  # a step mostly finds no other one under way: `acquire` would pass the scheduler for nothing
            self._one.acquire_nowait()
        except trio.WouldBlock:
            await self._one.acquire()

    async def _keep(self, calls: Sequence[KeptCall], waits: Sequence[Wait], *, settles: bool) -> None:
        try:
            await self.commit(calls, waits, settles=settles)
        except WarrenError as exc:
            self.refusal = exc
            raise
        self.rows = bool(calls) or (self.rows and not settles)
