"""Typed messages, reply slots, the mailbox, and turn admission."""

from warren.mailbox.lifecycle import LIFECYCLE, Admission, Refusal, Signal, State
from warren.mailbox.mail import Mail, Message, Reply
from warren.mailbox.mailbox import Mailbox, MailboxClosedError, MailboxStatistics

__all__ = [
    "LIFECYCLE",
    "Admission",
    "Mail",
    "Mailbox",
    "MailboxClosedError",
    "MailboxStatistics",
    "Message",
    "Refusal",
    "Reply",
    "Signal",
    "State",
]
