"""Creating a session once for each idempotency key."""

from collections.abc import Awaitable, Callable

from warren.actors.storage import Storage
from warren.creation import Created, Creation
from warren.errors import WarrenError


async def create_once(storage: Storage, wanted: Creation, create: Callable[[], Awaitable[str]]) -> Created:
    """Return the session of a key, created now unless the key has created one before.

    Raises:
        InvalidParamsError: if the key has created one with other parameters.
        WarrenError: the error of `create`.
    """
    found = await _find(storage, wanted.key)
    if found is None:
        try:
            return Created(await create(), wanted.params)
        except WarrenError:  # another request with this key may have come first, or the answer of the store was lost
            found = await _find(storage, wanted.key)
            if found is None:
                raise
    found.check(wanted)
    return found


async def _find(storage: Storage, key: str) -> Created | None:
    return await (await storage.reader()).creation(key)
