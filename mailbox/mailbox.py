"""The mailbox of an actor: a bounded queue whose senders never wait and whose one receiver takes whole batches."""

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import trio

from warren.base.errors import CapacityExceededError, WarrenError
from warren.base.values import define, frozen
from warren.mailbox.mail import Mail, Message

R = TypeVar("R")


class MailboxClosedError(Exception):
    """Raised by `Mailbox.receive` when the mailbox is closed and empty. End your receive loop."""


@frozen
class MailboxStatistics:
    """The figures of a mailbox at one moment.

    Attributes:
        waiting: messages that are not received yet.
        capacity: messages that may wait before senders are refused; urgent messages may exceed it.
        receiver_parked: whether the receiver waits in `receive`.
        closed: whether new messages are refused because the mailbox was closed.
    """

    waiting: int
    capacity: int
    receiver_parked: bool
    closed: bool


@define(eq=False)
class Mailbox:
    """The mail of one actor. Any task of the event loop may send; one task receives.

    Attributes:
        capacity: messages that may wait; further ones are refused with CapacityExceededError unless they are urgent.
        admit: called with each message right before the mailbox takes it. It refuses the message by raising, and the
            error reaches the sender. There is no checkpoint between `admit` and the taking, so state that `admit`
            claims belongs to a message that is certain to be in the mailbox. It must not send to this mailbox.
        busy: called at the first mail, and at a `wake`, while the receiver does not wait in `receive`. A receiver that
            does slow work between its calls of `receive` sets it for that time, to have another task `take` the mail.
    """

    capacity: int = 1_000
    admit: Callable[[Message[Any]], None] | None = None
    busy: Callable[[], None] | None = None
    _waiting: list[Mail[Any]] = attrs.field(factory=list)
    _receiving: bool = False
    _parked: trio.lowlevel.Task | None = None
    _refusal: Callable[[], WarrenError] | None = None

    # Why the protection: a KeyboardInterrupt between `admit` and the append would leave state claimed for a message
    # that nobody will ever receive.
    @trio.lowlevel.enable_ki_protection
    def tell(self, message: Message[Any]) -> None:
        """Send a message without asking for a reply. Never waits.

        Raises:
            WarrenError: if the mailbox is closed: the error that it was closed with.
            CapacityExceededError: if the mailbox is full and the message is not urgent; the cause is `mailbox_full`.
            Exception: if `admit` refuses the message: the error that it raised.
        """
        self._put(Mail(message))

    @trio.lowlevel.enable_ki_protection
    def post(self, message: Message[R]) -> Mail[R]:
        """Send a message and return its mail, in which the reply will land. Never waits. Raises as `tell` does."""
        mail = Mail(message)
        self._put(mail)
        return mail

    async def ask(self, message: Message[R]) -> R:
        """Send a message and wait for its reply.

        There is no timeout: use `trio.fail_after`. Trap: cancelling the wait does not recall the message, so the
        outcome of a cancelled ask is unknown to you. A message that is refused is refused before any checkpoint.

        Raises:
            Exception: as `tell` does, or the error that the receiver answered with.
        """
        return await self.post(message).wait()

    @trio.lowlevel.enable_ki_protection
    async def receive(self) -> list[Mail[Any]]:
        """Wait until there is mail and return all of it, oldest first.

        There is one checkpoint in each call, also if mail waits already. The batch is empty if `wake` ended the wait.
        If you are cancelled, no mail is lost: the next call returns it.

        Raises:
            MailboxClosedError: if the mailbox is closed and all of its mail was received.
            trio.BusyResourceError: if another task already receives. One message wakes one task; the other would hang.
        """
        if self._receiving:
            raise trio.BusyResourceError("another task already receives from this mailbox")
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
        """Return all mail, oldest first, without waiting. The batch may be empty.

        Only the receiver calls this, or a task that works for it.
        """
        batch, self._waiting = self._waiting, []
        return batch

    @trio.lowlevel.enable_ki_protection
    def close(self, refusal: Callable[[], WarrenError]) -> None:
        """Refuse all messages from now on. Mail that is inside already is still received.

        If the mailbox is closed already, this does nothing: senders get the error of the first close.

        Args:
            refusal: makes the error that a sender gets, a new one for each sender.
        """
        self._refusal = self._refusal or refusal
        self.wake()

    @trio.lowlevel.enable_ki_protection
    def abandon(self, refusal: Callable[[], WarrenError]) -> None:
        """Close the mailbox and answer all mail inside with an error. Call it when the receiver has ended.

        Args:
            refusal: makes the error for each sender whose message is inside, and for those that send later, unless
                the mailbox was closed before.
        """
        self.close(refusal)
        for mail in self.take():
            mail.refuse(refusal())
        # Nobody calls these again. An actor that has a method of its own here, and is gone, is free at once, and need
        # not wait for the garbage collector.
        self.admit = self.busy = None

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> None:
        """Let a parked `receive` return with an empty batch. If none is parked, this calls `busy`."""
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            # Cleared here and not by the receiver, which runs later: a second wake must not reschedule it again.
            self._parked = None
        elif self.busy is not None and len(self._waiting) <= 1:
            self.busy()

    @property
    def waiting(self) -> bool:
        """Whether there is mail that is not received yet."""
        return bool(self._waiting)

    def statistics(self) -> MailboxStatistics:
        """Return the figures of the mailbox at this moment."""
        return MailboxStatistics(len(self._waiting), self.capacity, self._parked is not None, self._refusal is not None)

    def _put(self, mail: Mail[Any]) -> None:
        if self._refusal is not None:
            raise self._refusal()
        if len(self._waiting) >= self.capacity and not mail.message.urgent:
            raise CapacityExceededError(f"the mailbox is full ({self.capacity} messages wait)", cause="mailbox_full")
        # Last of the checks: if it claims something for the message, nothing may refuse the message afterwards.
        if self.admit is not None:
            self.admit(mail.message)
        self._waiting.append(mail)
        self.wake()

    def _unpark(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED
