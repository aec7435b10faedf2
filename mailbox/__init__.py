"""Typed messages, reply slots, the mailbox, and turn admission."""

from warren.mailbox.lifecycle import LIFECYCLE, Admission, Refusal, Signal, State
from warren.mailbox.mailbox import Mailbox, MailboxClosedError, MailboxStatistics
from warren.mailbox.messages import Mail, Message, Reply

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
