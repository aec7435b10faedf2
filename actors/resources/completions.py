"""The key of the completion tokens of tool calls, which is a secret of the store."""

import attrs

from warren.actors.resources.storage import Storage
from warren.base.values import define
from warren.conversation.completion import CompletionKey, TokenMaker


@define(eq=False)
class Completions:
    """Makes and checks the completion tokens of a runtime. The secret is read when the first tool or token comes.

    Attributes:
        storage: the store of the runtime.
    """

    storage: Storage
    _key: CompletionKey | None = attrs.field(default=None, repr=False)

    @property
    def is_ready(self) -> bool:
        """Whether the secret was read, so that tools can make tokens."""
        return self._key is not None

    async def key(self) -> CompletionKey:
        """Return the key. Raises StoreError if the store cannot be read."""
        if self._key is None:
            store = await self.storage.reader()
            self._key = CompletionKey(await store.secret("completions"))
        return self._key

    def forget(self) -> None:
        """Read the secret again: the store has gone back, and may have another one."""
        self._key = None

    def maker(self, tenant: str) -> TokenMaker | None:
        """Return the maker of tokens for calls of a tenant; None while the secret was not read."""
        return None if self._key is None else TokenMaker(self._key, tenant, self.storage.now)
