"""Deletes a session from the store and from the memory. A deletion that is cut off is finished later, by itself."""

import logging
from typing import Final, Protocol

from warren.actors.resources.storage import Storage
from warren.base.errors import WarrenError
from warren.reports.audit import AuditEntry
from warren.storage.operations import Delete, Erased
from warren.storage.queries import DueErasures

logger: Final = logging.getLogger("warren.erasing")


class Forgets(Protocol):
    """A memory of sessions, whose texts have to go when a session is deleted."""

    async def forget(self, session_id: str) -> bool:
        """Forget all texts of a session, and refuse further ones. Raises StoreError.

        Return whether that is done: a runtime without its memory leaves it to the next one.
        """


async def erase(session_id: str, storage: Storage, memory: Forgets, audit: AuditEntry) -> None:
    """Delete a session from the store and from the memory. Raises SessionNotFoundError, and as `forget_deleted`."""
    await storage.write(Delete(session_id, audit))
    await forget_deleted(session_id, storage, memory)


async def forget_deleted(session_id: str, storage: Storage, memory: Forgets) -> None:
    """Delete a deleted session from the memory too.

    Without a memory the deletion stays due: the next runtime that has the memory does it.

    Raises StoreError if the memory fails; the deletion stays due for another delete, the memory's next try, or the next
    start.
    """
    if await memory.forget(session_id):
        await storage.write(Erased(session_id))


async def finish_erasing(storage: Storage, memory: Forgets) -> None:
    """Do the deletions that are due in the memory, after a crash or after a runtime without the memory."""
    try:
        for session_id in await storage.read(DueErasures()):
            await forget_deleted(session_id, storage, memory)
    except WarrenError as exc:
        logger.warning("deleted sessions are still in the memory: %s", exc)
