"""The moment from which a gateway, or a load run, ends: tasks wait for it, and it cancels scopes."""

import contextlib
from collections.abc import Iterator

import attrs
import trio


@attrs.define(eq=False)
class Ending:
    """Set once and never taken back."""

    _event: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scopes: set[trio.CancelScope] = attrs.field(factory=set, init=False)

    def begin(self) -> None:
        """Wake the tasks that wait and cancel every scope that was given to `ends`. Idempotent."""
        self._event.set()
        for scope in self._scopes:
            scope.cancel()

    @property
    def begun(self) -> bool:
        """Whether the end has begun."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return once the end has begun."""
        await self._event.wait()

    @contextlib.contextmanager
    def ends(self, scope: trio.CancelScope) -> Iterator[None]:
        """Have a scope cancelled when the end begins, for as long as the body lasts."""
        self._scopes.add(scope)
        if self.begun:
            scope.cancel()
        try:
            yield
        finally:
            self._scopes.discard(scope)
