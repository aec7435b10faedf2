"""Creating a session once for each idempotency key, with a store or without."""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from warren.actors.storage import StorageActor
from warren.creation import Created, Creation
from warren.errors import WarrenError
from warren.storage import key_used

REMEMBERED: Final = 1_000
"""Keys of ended sessions that are remembered where there is no store."""


@attrs.define(eq=False)
class Creations:
    """The keys of sessions that no store holds."""

    _made: dict[str, Created] = attrs.field(factory=dict)
    _keys: dict[str, str] = attrs.field(factory=dict)  # by session, while it lives
    _ended: dict[str, None] = attrs.field(factory=dict)

    def find(self, key: str) -> Created | None:
        """Return the session that a key has created."""
        return self._made.get(key)

    def note(self, session_id: str, creation: Creation) -> None:
        """Remember a key. Raises StoreError(cause="key_used") if it has created a session."""
        if creation.key in self._made:
            raise key_used()
        self._made[creation.key] = Created(session_id, creation.params)
        self._keys[session_id] = creation.key

    def ended(self, session_id: str) -> None:
        """Count a session as ended: its key is forgotten once many others have ended after it."""
        key = self._keys.pop(session_id, None)
        if key is not None:
            self._ended[key] = None
        while len(self._ended) > REMEMBERED:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._made[oldest]


async def create_once(
    storage: StorageActor | None, made: Creations, wanted: Creation, create: Callable[[], Awaitable[str]]
) -> Created:
    """Return the session of a key, created now unless the key has created one before.

    Raises InvalidParamsError if that was with other parameters, and what `create` raises.
    """
    found = await _find(storage, made, wanted.key)
    if found is None:
        try:
            return Created(await create(), wanted.params)
        except WarrenError:  # another request with this key may have come first, or the answer of the store was lost
            found = await _find(storage, made, wanted.key)
            if found is None:
                raise
    found.check(wanted)
    return found


async def _find(storage: StorageActor | None, made: Creations, key: str) -> Created | None:
    if storage is None:
        return made.find(key)
    return await (await storage.reader()).creation(key)
