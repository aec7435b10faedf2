"""The shutdown of a gateway, or of a load run, as an event that tasks wait for and that cancels scopes."""

import contextlib
from collections.abc import Iterator

import attrs
import trio

from warren.base.values import define


@define(eq=False)
class Shutdown:
    """An event that is set once and never cleared."""

    _event: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scopes: set[trio.CancelScope] = attrs.field(factory=set, init=False)

    def begin(self) -> None:
        """Wake the tasks that wait, and cancel every scope that was given to `cancels`. Idempotent."""
        self._event.set()
        for scope in self._scopes:
            scope.cancel()

    @property
    def begun(self) -> bool:
        """Whether the shutdown has begun."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when the shutdown has begun."""
        await self._event.wait()

    @contextlib.contextmanager
    def cancels(self, scope: trio.CancelScope) -> Iterator[None]:
        """Let the shutdown cancel a scope, for the time of the block; a shutdown that has begun cancels it at once."""
        self._scopes.add(scope)
        if self.begun:
            scope.cancel()
        try:
            yield
        finally:
            self._scopes.discard(scope)
