"""The scheduler as a session sees it: the session asks for its turns there, and reports their ends."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from warren.conversation.inputs import Input
from warren.conversation.records import SessionRecord
from warren.conversation.waits import Wait
from warren.storage.operations import Lease, Sent


class SessionHost(Protocol):
    """The port by which live sessions share room and memory. No method waits but those that ask the store."""

    def may_start(self, session_id: str, tenant: str) -> bool:
        """Ask to begin a turn for an input that waits; return whether the turn counts as running from now on.

        Args:
            session_id: the session.
            tenant: its tenant.

        If False, the session waits for room, and gets the message `BeginNext` when there is some.
        """

    def turn_ended(self, session_id: str) -> None:
        """Report that a turn has ended that was admitted, allowed by `may_start`, or begun by `BeginNext`."""

    def rests(self, session_id: str, *, rests: bool) -> None:
        """Report whether the running turn waits in its task for a child session, which gets its room meanwhile."""

    def suspended(self, session_id: str, wakes: datetime) -> None:
        """Report that the open turn of the session can be gone on with once a call of it has an answer.

        The session leaves memory, if it has no other work. `Wake` comes at the time `wakes`, by the store's clock.
        """

    def wakes_at(self, due: datetime | None) -> None:
        """Report that a session of the store has something to do at a time by the store's clock; None is none.

        It gets `Wake` then, in whichever process it is.
        """

    def paused(self, session_id: str, *, begun: bool = True) -> None:
        """Report that a turn could not be stored, and that its inputs wait again. `Wake` ends their pause.

        If it was not `begun`, no model was called: then the next try comes sooner.
        """

    def changed(self, session_id: str) -> None:
        """Report that the session's row in the list has changed: its turn, its labels, a call that waits."""

    def retired(self, session_id: str, *, deleted: bool) -> None:
        """Report that the session was deleted, or else archived."""

    def holds(self, session_id: str) -> None:
        """Report that a call of the session runs in the background: the session stays in memory."""

    def lets_go(self, session_id: str) -> None:
        """Report that no call of the session runs in the background any more."""

    async def enter(self, session_id: str, input_: Input, lease: Lease | None) -> None:
        """Put the result of a call that ran in the background into the session's inbox. See `Inboxes.enter`."""

    async def has_entered(self, session_id: str, input_: Input, lease: Lease | None) -> bool:
        """Return whether an input with the same key was put into the session's inbox. See `Inboxes.is_known`."""

    async def ends_of(self, record: SessionRecord, waits: Iterable[Wait]) -> Sequence[Sent]:
        """Return notices for a session of the ends of children that its calls wait for, of which it may not know.

        Raises WarrenError.
        """

    def sent(self, session_ids: Sequence[str]) -> None:
        """Report that a change of the session has put notices into the inboxes of others."""

    def stays(self, session_id: str) -> None:
        """Report that the session was told to leave memory and does not, as it has work."""
