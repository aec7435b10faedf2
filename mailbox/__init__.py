"""Mailboxes for actors: typed messages, mail with one-shot reply slots, and a bounded queue with one receiver.

Nothing here knows any particular actor. May import the domain, and nothing else of the runtime.
"""

from warren.mailbox.mail import Mail, Message
from warren.mailbox.mailbox import Mailbox, MailboxClosedError, MailboxStatistics

__all__ = [
    "Mail",
    "Mailbox",
    "MailboxClosedError",
    "MailboxStatistics",
    "Message",
]
