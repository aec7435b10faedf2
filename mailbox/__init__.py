"""Mailboxes for actors: typed messages, one-shot reply slots, and a bounded queue with one receiver.

Nothing here knows any particular actor. This package may import the domain (`warren.errors`, `warren.values`), and of
the runtime nothing.
"""

from warren.mailbox.mail import Mail, Message, Reply
from warren.mailbox.mailbox import Mailbox, MailboxClosedError, MailboxStatistics

__all__ = [
    "Mail",
    "Mailbox",
    "MailboxClosedError",
    "MailboxStatistics",
    "Message",
    "Reply",
]
