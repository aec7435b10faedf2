"""Creating a session once for each idempotency key."""

from collections.abc import Awaitable, Callable

from warren.actors.resources.storage import Storage
from warren.base.errors import StoreError, WarrenError
from warren.calls.creation import Created, Creation
from warren.storage.queries import CreatedUnder


async def create_once(storage: Storage, tenant: str, wanted: Creation, create: Callable[[], Awaitable[str]]) -> Created:
    """Return the session of a key of a tenant, created now unless the key has created one before.

    Raises:
        InvalidParamsError: if the key has created one with other parameters.
        WarrenError: the error of `create`.
    """
    try:
        return await _found_or_created(storage, tenant, wanted, create)
    except StoreError as exc:
        # Sent again, here or to the next process, the key finds its session, or creates it.
        exc.retryable |= exc.unknown or exc.cause == "closed"
        raise


async def _found_or_created(
    storage: Storage, tenant: str, wanted: Creation, create: Callable[[], Awaitable[str]]
) -> Created:
    found = await storage.read(CreatedUnder(tenant, wanted.key))
    if found is None:
        try:
            return Created(await create(), wanted.params)
        except WarrenError as exc:
            # Another request with this key may have come first, or the answer of the store was lost.
            if isinstance(exc, StoreError) and exc.away:
                raise
            found = await storage.read(CreatedUnder(tenant, wanted.key))
            if found is None:
                raise
    found.check(wanted)
    return found
