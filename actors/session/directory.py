"""The supervisor as the modules below it see it: finds sessions by id, and starts their actors."""

from typing import Protocol

from warren.actors.session.conversation import Conversation
from warren.actors.shared import Shared
from warren.mailbox import Mailbox
from warren.records import SessionRecord


class LiveSession(Protocol):
    """A session that has an actor."""

    @property
    def mailbox(self) -> Mailbox:
        """The queue of messages to the actor."""

    @property
    def record(self) -> SessionRecord | None:
        """The session's record; None while the actor loads it."""

    @property
    def conversation(self) -> Conversation:
        """The session's conversation in memory."""


class Directory(Protocol):
    """The sessions of one runtime."""

    @property
    def shared(self) -> Shared:
        """What all sessions of the runtime use."""

    def check_open(self) -> None:
        """Raise AgentError(cause="shutting_down") once the runtime ends."""

    def find(self, session_id: str) -> LiveSession | None:
        """Return a session that has an actor; the actor may still be loading."""

    def revive(self, session_id: str) -> LiveSession:
        """Return a session, with an actor started for it if it had none. Raises SessionNotFoundError."""
