"""The mailboxes of all sessions, as the sessions see them: a port that the supervisor implements."""

from typing import Protocol

from warren.mailbox import Mailbox


class Mailboxes(Protocol):
    """The way to the actors of the sessions of one runtime."""

    def check_open(self) -> None:
        """Raise AgentError(cause="shutting_down") once the runtime ends."""

    def has_current(self, session_id: str) -> bool:
        """Return whether a session is here, and no other process can have it, as far as is known."""

    def mailbox(self, session_id: str) -> Mailbox:
        """Return the mailbox of a session, with an actor started for it if there is none.

        Messages wait until the actor has loaded the session. If the id is unknown, they are refused.

        Raises:
            AgentError: once the runtime ends; the cause is `shutting_down`.
        """
