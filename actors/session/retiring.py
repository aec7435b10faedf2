"""How a session is archived or deleted: in the store first, then its memory; then those who asked are told."""

from typing import Any

import attrs

from warren.actors.erasing import forget_deleted
from warren.actors.protocol import Retire
from warren.actors.session.conversation import Conversation
from warren.actors.shared import Shared
from warren.errors import WarrenError
from warren.mailbox import Mail
from warren.storage import Archive, Delete

DELETE, ARCHIVE = Retire("delete"), Retire("archive")


@attrs.define(eq=False)
class Retiring:
    """Those who want a session to end.

    Attributes:
        shared: what the session shares with others.
        held: what it holds.
        asked: who waits for it.
    """

    shared: Shared
    held: Conversation
    asked: list[Mail[None]] = attrs.field(factory=list)

    async def answer(self) -> bool:
        """Do what those who wait asked for, and tell them; return whether any of it was done."""
        asked = list(self.asked)
        wanted = {mail.message for mail in asked}
        done, error = True, None
        try:
            await self._in_store(wanted)
        except WarrenError as exc:
            if exc.cause == "crash":  # then it may have been done all the same
                self.held.lease = None
            done, error = False, exc
        else:
            error = await self._forget(wanted)
        for mail in asked:
            mail.answer(None) if error is None else mail.refuse(error.again())
        del self.asked[: len(asked)]
        return done and bool(asked)

    async def _in_store(self, wanted: set[Any]) -> None:
        storage, session_id = self.shared.storage, self.held.log.session_id
        if DELETE in wanted:
            await storage.write(Delete(session_id))
        elif ARCHIVE in wanted:
            await storage.write(Archive(session_id))
        await self.held.settle_if_possible()

    async def _forget(self, wanted: set[Any]) -> WarrenError | None:
        """Have a deleted session forgotten; return the error where that has to be done again: the session is gone."""
        if DELETE in wanted:
            try:
                await forget_deleted(self.held.log.session_id, self.shared.storage, self.shared.memory)
            except WarrenError as exc:
                return exc
        return None
