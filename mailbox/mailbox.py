"""The mailbox: a bounded queue and one parked receiver that takes all that waits. Senders never wait for room."""

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import trio

from warren.errors import CapacityExceededError, WarrenError
from warren.mailbox.lifecycle import Admission
from warren.mailbox.mail import Mail, Message, Reply

R = TypeVar("R")


class MailboxClosedError(Exception):
    """The owner closed the mailbox and every message in it was taken: the actor's loop ends."""


@attrs.frozen
class MailboxStatistics:
    """A mailbox at this moment.

    Attributes:
        waiting: messages not yet taken.
        capacity: how many may wait.
        receiver_parked: whether the actor waits for mail.
        closed: whether new messages are refused.
    """

    waiting: int
    capacity: int
    receiver_parked: bool
    closed: bool


@attrs.define(eq=False)
class Mailbox:
    """Mail for one actor.

    Attributes:
        capacity: messages that may wait; past it senders are refused with CapacityExceededError.
        admission: the lifecycle that messages with a signal are checked against; None for actors without one.
    """

    capacity: int = 1_000
    admission: Admission | None = None
    _waiting: list[Mail[Any]] = attrs.field(factory=list)
    _receiving: bool = False
    _parked: trio.lowlevel.Task | None = None
    _refusal: Callable[[], WarrenError] | None = None

    # Without the protection a KeyboardInterrupt could come between the move of a signal and its message: the session
    # would be claimed for a turn that nobody starts.
    @trio.lowlevel.enable_ki_protection
    def tell(self, message: Message[Any]) -> None:
        """Send without wanting a reply; never waits.

        Raises what the mailbox was closed with, CapacityExceededError, or the refusal of the message's signal.
        """
        self._put(Mail(message))

    @trio.lowlevel.enable_ki_protection
    def post(self, message: Message[R]) -> Reply[R]:
        """Send, and return the slot its reply will land in; never waits. Raises as `tell`."""
        reply: Reply[R] = Reply()
        self._put(Mail(message, reply))
        return reply

    async def ask(self, message: Message[R]) -> R:
        """Send and wait for the reply: a value, a typed error, or the actor's death.

        Trap: cancelling the wait does not recall the message: what came of it is unknown to the caller.
        """
        return await self.post(message).wait()

    @trio.lowlevel.enable_ki_protection
    async def receive(self) -> list[Mail[Any]]:
        """Return all that waits; one checkpoint a batch. Only the owner calls it.

        Waits for a message, a `wake` (then the batch may be empty) or the close. Raises MailboxClosedError once the
        mailbox is closed and empty, and trio.BusyResourceError if another task receives already.
        """
        if self._receiving:
            raise trio.BusyResourceError("another task receives from this mailbox already")
        self._receiving = True
        try:
            if self._waiting or self._refusal is not None:
                await trio.lowlevel.checkpoint()
            else:
                self._parked = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._unpark)
        finally:
            self._receiving = False
        if self._refusal is not None and not self._waiting:
            raise MailboxClosedError
        return self.take()

    def take(self) -> list[Mail[Any]]:
        """Return all that waits, at once. Only the owner calls it."""
        batch, self._waiting = self._waiting, []
        return batch

    @trio.lowlevel.enable_ki_protection
    def close(self, refusal: Callable[[], WarrenError]) -> None:
        """Refuse new messages with `refusal()`; those inside are still received. Idempotent: the first reason stays."""
        self._refusal = self._refusal or refusal
        self.wake()

    @trio.lowlevel.enable_ki_protection
    def abandon(self, refusal: Callable[[], WarrenError]) -> None:
        """Close, and answer what waits with `refusal()`: the actor is dead."""
        self.close(refusal)
        for mail in self.take():
            mail.refuse(refusal())

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> None:
        """Let a parked `receive` return; the owner's way to look up from its mail."""
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None

    @property
    def waiting(self) -> bool:
        """Whether a message has not been taken yet."""
        return bool(self._waiting)

    def statistics(self) -> MailboxStatistics:
        """Return the mailbox's figures of this moment."""
        return MailboxStatistics(len(self._waiting), self.capacity, self._parked is not None, self._refusal is not None)

    def _put(self, mail: Mail[Any]) -> None:
        if self._refusal is not None:
            raise self._refusal()
        if len(self._waiting) >= self.capacity and not mail.message.urgent:
            raise CapacityExceededError(f"the mailbox is full ({self.capacity} messages wait)", cause="mailbox_full")
        signal = mail.message.signal
        if signal is not None and self.admission is not None:
            self.admission.move(signal)
        self._waiting.append(mail)
        self.wake()

    def _unpark(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED
