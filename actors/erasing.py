"""Deletes a session from the store and from the memory. The next start finishes a deletion that a crash cut off."""

import logging
from typing import TYPE_CHECKING, Final

from warren.actors.storage import Storage
from warren.audit import AuditEntry
from warren.errors import WarrenError
from warren.storage import Delete, Erased

if TYPE_CHECKING:
    from warren.actors.memory import Memory

logger: Final = logging.getLogger("warren.erasing")


async def erase(session_id: str, storage: Storage, memory: "Memory", audit: AuditEntry) -> None:
    """Delete a session from the store and from the memory. Raises SessionNotFoundError, and as `forget_deleted`."""
    await storage.write(Delete(session_id, audit))
    await forget_deleted(session_id, storage, memory)


async def forget_deleted(session_id: str, storage: Storage, memory: "Memory") -> None:
    """Delete a deleted session from the memory too.

    Without a memory the deletion stays due: the next runtime that has the memory does it.

    Raises StoreError if the memory fails; the deletion stays due for another delete, or for the next start.
    """
    if await memory.forget(session_id):
        await storage.write(Erased(session_id))


async def finish_erasing(storage: Storage, memory: "Memory") -> None:
    """Do the deletions that are due in the memory, after a crash or after a runtime without the memory."""
    try:
        for session_id in await (await storage.reader()).erasures():
            await forget_deleted(session_id, storage, memory)
    except WarrenError as exc:
        logger.warning("deleted sessions are still in the memory: %s", exc)
