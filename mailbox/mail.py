"""What travels between actors: messages typed by their reply, and the one-shot slot the reply lands in."""

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import outcome
import trio

from warren.mailbox.lifecycle import Signal
from warren.values import value

R = TypeVar("R")


class Message(Generic[R]):
    """Base of all messages: `class StartTurn(Message[TurnResult])` is answered with a TurnResult.

    Subclasses are frozen attrs classes, so that a message cannot change once it is sent. One with a `signal` is a move
    of the session's lifecycle: the mailbox takes it only where the table allows the move, and claims it then.
    """

    __slots__ = ()
    signal: ClassVar[Signal | None] = None
    urgent: ClassVar[bool] = False
    """Whether the mailbox takes it even where it is full."""


@attrs.define(eq=False)
class Reply(Generic[R]):
    """A one-shot slot for an answer: settled once, awaited by one task.

    A second task that waits for an answer that is not there yet gets trio.BusyResourceError, and the first waits on.
    Settling a reply that nobody waits for is fine: a caller that went away must not break the actor.
    """

    _outcome: outcome.Outcome[R] | None = None
    _task: trio.lowlevel.Task | None = None

    @property
    def settled(self) -> bool:
        """Whether the answer is there."""
        return self._outcome is not None

    @trio.lowlevel.enable_ki_protection
    def answer(self, value: R) -> None:
        """Answer with a value. A second answer is passed over."""
        self._settle(outcome.Value(value))

    @trio.lowlevel.enable_ki_protection
    def refuse(self, error: Exception) -> None:
        """Answer with an error, raised in the waiting task. A second answer is passed over."""
        self._settle(outcome.Error(error))

    # A KeyboardInterrupt between `_task = ...` and the wait would leave a task in the slot that does not sleep; to
    # reschedule that one is an error inside of trio. The same holds wherever a task parks by hand.
    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> R:
        """Return the answer or raise its error. Cancelling the wait leaves the request running.

        Raises trio.BusyResourceError if another task waits for the answer already.
        """
        if self._outcome is not None:
            await trio.lowlevel.checkpoint()
            return self._outcome.unwrap()
        return await self._park(self._abandon)

    @trio.lowlevel.enable_ki_protection
    async def wait_settled(self) -> R:
        """Return the answer or raise its error, as `wait` does, but let no cancellation cut the wait short.

        For what must be known before its caller may go on, such as a commit; the actor has to be one that answers.
        """
        if self._outcome is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return self._outcome.unwrap()
        return await self._park(_never)

    async def _park(self, abort: Callable[[Any], trio.lowlevel.Abort]) -> R:
        if self._task is not None:
            raise trio.BusyResourceError("another task waits for this reply already")
        self._task = trio.lowlevel.current_task()
        value: R = await trio.lowlevel.wait_task_rescheduled(abort)
        return value

    def _settle(self, result: outcome.Outcome[R]) -> None:
        if self._outcome is not None:
            return
        self._outcome = result
        if self._task is not None:
            trio.lowlevel.reschedule(self._task, result)
            self._task = None

    def _abandon(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


def _never(_raise_cancel: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


@value(eq=False)
class Mail(Generic[R]):
    """A message in a mailbox, with the slot for its reply; None where the sender wants none."""

    message: Message[R]
    reply: Reply[R] | None = None

    def answer(self, value: R) -> None:
        """Settle the reply, if one is wanted."""
        if self.reply is not None:
            self.reply.answer(value)

    def refuse(self, error: Exception) -> None:
        """Settle the reply with an error, if one is wanted."""
        if self.reply is not None:
            self.reply.refuse(error)
