"""Deleting a session wherever something of it is kept: what a crash leaves half done is done at the next start."""

import logging
from typing import Final

from warren.actors.memory import MemoryActor
from warren.actors.storage import Storage
from warren.errors import WarrenError
from warren.storage import Delete, Erased

logger: Final = logging.getLogger("warren.erasing")


async def erase(session_id: str, storage: Storage, memory: MemoryActor | None) -> None:
    """Delete a session from the store, and have it forgotten. Raises as `forget_deleted`, SessionNotFoundError."""
    await storage.write(Delete(session_id))
    await forget_deleted(session_id, storage, memory)


async def forget_deleted(session_id: str, storage: Storage, memory: MemoryActor | None) -> None:
    """Have a deleted session forgotten. Raises StoreError: then it is due, to another delete or to the next start.

    Without a memory, what one may hold is left for the next runtime that has it.
    """
    if memory is not None:
        await memory.forget(session_id)
        await storage.write(Erased(session_id))


async def finish_erasing(storage: Storage, memory: MemoryActor) -> None:
    """Have forgotten what was deleted while there was no memory, or when a crash came between."""
    try:
        for session_id in await (await storage.reader()).erasures():
            await memory.forget(session_id)
            await storage.write(Erased(session_id))
    except WarrenError as exc:
        logger.warning("deleted sessions are not forgotten yet: %s", exc)
