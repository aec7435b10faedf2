"""Messages between actors, each typed by its reply, and mail: a message with the one-shot slot of its reply."""

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import outcome
import trio

from warren.base.values import define

R = TypeVar("R")


class Message(Generic[R]):
    """The base class of all messages: the answer to a `class Count(Message[int])` is an int.

    Make your messages frozen attrs classes, so that a message cannot change between its sending and its receiving.

    Attributes:
        urgent: whether a full mailbox takes the message all the same. Set it for messages that free resources, and
            whose number is bounded by something other than the mailbox.
    """

    __slots__ = ()
    urgent: ClassVar[bool] = False


@define(eq=False)
class Mail(Generic[R]):
    """A message on its way, with a one-shot slot for the answer to it.

    The receiver of the message answers once; one task waits, or none. Answering a slot that no task waits for does
    nothing further: neither a sender that wants no answer nor one that was cancelled can break the actor.

    Attributes:
        message: the message.
    """

    message: Message[R]
    _outcome: outcome.Outcome[R] | None = None
    _task: trio.lowlevel.Task | None = None

    @property
    def settled(self) -> bool:
        """Whether the answer, a value or an error, has arrived."""
        return self._outcome is not None

    @property
    def awaited(self) -> bool:
        """Whether a task waits for the answer."""
        return self._task is not None

    @trio.lowlevel.enable_ki_protection
    def answer(self, value: R) -> None:
        """Answer with a value, and wake the waiting task. If the slot has an answer already, this does nothing."""
        self._settle(outcome.Value(value))

    @trio.lowlevel.enable_ki_protection
    def refuse(self, error: Exception) -> None:
        """Answer with an error, and wake the waiting task. If the slot has an answer already, this does nothing.

        Args:
            error: the exception that the waiting task raises. Pass each slot an exception of its own: one object that
                is raised in several tasks collects the tracebacks of all of them.
        """
        self._settle(outcome.Error(error))

    # Why the protection: a KeyboardInterrupt between `_task = ...` and the wait would leave a task in the slot that
    # does not sleep, and rescheduling such a task is a TrioInternalError.
    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> R:
        """Wait for the answer and return it.

        If you cancel the wait, the receiver still works on the message, and you may call `wait` again.

        Raises:
            Exception: the error that the receiver answered with.
            trio.BusyResourceError: if another task already waits. One answer wakes one task; the other would hang.
        """
        if self._outcome is not None:
            await trio.lowlevel.checkpoint()
            return self._outcome.unwrap()
        return await self._park(self._abandon)

    @trio.lowlevel.enable_ki_protection
    async def wait_settled(self) -> R:
        """Wait for the answer and return it, as `wait` does, but do not let a cancellation end the wait.

        Use it if you must know the outcome before you go on, such as that of a commit. Trap: a cancelled task hangs
        here for as long as the receiver does not answer. So the receiver must answer every message, also if it crashes.

        Raises:
            Exception: the error that the receiver answered with.
            trio.BusyResourceError: if another task already waits.
        """
        if self._outcome is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return self._outcome.unwrap()
        return await self._park(_stay_parked)

    async def _park(self, abort: Callable[[Any], trio.lowlevel.Abort]) -> R:
        if self._task is not None:
            raise trio.BusyResourceError("another task already waits for this reply")
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


def _stay_parked(_raise_cancel: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
