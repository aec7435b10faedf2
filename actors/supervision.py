"""The containment of crashes: restarts within an intensity, and nurseries whose errors are not wrapped in groups."""

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from warren.base.values import define
from warren.settings.config import Intensity

logger: Final = logging.getLogger("warren.supervision")


@define
class Restarts:
    """Counts an actor's crashes against its allowed intensity."""

    intensity: Intensity
    _crashes: deque[float] = attrs.field(factory=deque)

    def allow(self, now: float) -> bool:
        """Book a crash at `now` (seconds); return whether the actor may be restarted once more."""
        self._crashes.append(now)
        while self._crashes and self._crashes[0] <= now - self.intensity.seconds:
            self._crashes.popleft()
        return len(self._crashes) <= self.intensity.restarts


@asynccontextmanager
async def supervised_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for long-lived actors.

    An error of the body is raised as it is. If an actor fails for good, the body is cancelled and the actor's error is
    raised. Neither is wrapped in an exception group.
    """
    failure: Exception | KeyboardInterrupt | SystemExit | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except (Exception, KeyboardInterrupt, SystemExit) as exc:  # noqa: BLE001 - the nursery would wrap it
                failure = exc
    except ExceptionGroup as group:
        failure = failure or first_error(group)
    if failure is not None:
        raise failure


@asynccontextmanager
async def background(*tasks: Callable[[], Awaitable[None]]) -> AsyncIterator[trio.Nursery]:
    """Run tasks for a body, which may start more; cancel them at its end. Errors leave as of `supervised_nursery`."""
    async with supervised_nursery() as nursery:
        for each in tasks:
            nursery.start_soon(each)
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()


def first_error(exc: Exception) -> Exception:
    """Return the error itself, of a group that a nursery made the first one in it."""
    return first_error(exc.exceptions[0]) if isinstance(exc, ExceptionGroup) else exc


class ActorFailedError(Exception):
    """An actor crashed more often than its intensity allows; the runtime has stopped. `__cause__` is the last crash."""


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    restarts: Restarts,
    crashed: Callable[[Exception], None],
    rest: Callable[[], Awaitable[bool]] | None = None,
) -> None:
    """Run an actor until it ends by itself; after a crash call `crashed` and start it again.

    Past the allowed intensity await `rest` before each start, which returns whether to start at all. Without it raise
    ActorFailedError: nothing works without the actor.
    """
    while True:
        try:
            return await run()
        except Exception as exc:
            logger.exception("%s actor crashed", name)
            crashed(exc)
            if restarts.allow(trio.current_time()):
                continue
            if rest is None:
                raise ActorFailedError(f"the {name} actor crashed too often; the last time: {exc!r}") from exc
            if not await rest():
                return None
