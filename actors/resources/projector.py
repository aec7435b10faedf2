"""The projector: keeps plain files of the sessions up to date, in slices that hardly slow the turns."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.actors.supervision import background
from warren.base.backoff import Backoff
from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.reports.health import ProjectorHealth
from warren.storage.runner import Runner, thread_runner

if TYPE_CHECKING:
    from warren.storage.projection import Follower, Status, Step

OpenProjection = Callable[[], "Follower"]
TICK: Final = 0.5
"""Seconds between two looks at the store while nothing changes."""
SLICE: Final = 0.05
"""Seconds of work in one slice; after a slice the projector looks how busy the process is."""
SHARE: Final = 0.02
"""Share of the time for slices while turns keep the interpreter busy."""
BACKOFF: Final = Backoff(first=1.0, longest=30.0)
LAST_SLICE: Final = 1.0
"""Seconds that the files may delay the end of the runtime."""
logger: Final = logging.getLogger("warren.projector")


@define
class ProjectionPace:
    """The rest after a slice of work: in proportion to its processor time, and to the load of the rest of the process.

    Attributes:
        wall: the time in seconds at which the last rest began.
        cpu: processor seconds that the process had used by then.
    """

    wall: float
    cpu: float

    def rest(self, step: "Step", wall: float, cpu: float) -> float:
        """Return the seconds to rest after a step that has ended at these two times."""
        used = (cpu - self.cpu - step.cpu) / max(wall - self.wall, 1e-6)
        self.wall, self.cpu = wall, cpu
        rest = step.cpu / SHARE * min(1.0, max(0.0, used))
        return rest if step.more else max(TICK, rest)


@define(eq=False)
class ProjectorActor:
    """Follows the commits of this process and of all others. It has no mailbox, because no caller waits for it.

    An error never ends the runtime: it is logged once, and the projector retries with a backoff.
    """

    _follower: "Follower"
    _runner: Runner = thread_runner
    _error: str | None = None
    _logged: bool = False
    _failures: int = 0
    _anew: bool = False
    _pace: ProjectionPace = attrs.field(factory=lambda: ProjectionPace(time.monotonic(), time.process_time()))

    def statistics(self) -> "Status":
        """Return the progress of the files, with the newest error as `trouble`. Never waits."""
        status = self._follower.status()
        return status if self._error is None else attrs.evolve(status, trouble=self._error)

    def health(self) -> ProjectorHealth:
        """Return the progress of the files as a part of the runtime's health. Never waits."""
        found = self.statistics()
        return ProjectorHealth(
            "ok" if found.trouble is None else "degraded", found.projecting, found.lag, found.trouble
        )

    async def run(self) -> None:
        """Follow until cancelled. A slice that has begun ends first."""
        rest = TICK
        while True:
            await trio.sleep(rest)
            rest = await self.step(SLICE)

    def start_anew(self) -> None:
        """Have all files made anew, as the store has gone back: some may show what is there no more."""
        self._anew = True

    async def step(self, seconds: float) -> float:
        """Work for about `seconds`; return the seconds to rest."""
        try:
            if self._anew:
                await self._begin_anew()
            step = await self._runner(partial(self._follower.step, seconds))
        except Exception as exc:  # noqa: BLE001 - no error of the files may end the runtime
            return self._failed(exc)
        self._error, self._failures = None, 0
        self._log(self._follower.status().trouble)
        return self._pace.rest(step, time.monotonic(), time.process_time())

    async def _begin_anew(self) -> None:
        try:
            await self._runner(self._follower.begin_anew)
        except StoreError as exc:
            if exc.cause != "locked":  # else another process writes the files, and finds the same by itself
                raise
        self._anew = False

    async def end(self) -> None:
        """Bring the files up to date within `LAST_SLICE`, and close them."""
        try:
            # Shielded: the runtime ends by cancellation too, and the files should show its last turns.
            with trio.CancelScope(shield=True):
                await self._runner(partial(self._follower.close, LAST_SLICE))
        except Exception as exc:  # noqa: BLE001 - as above
            self._failed(exc)

    def _failed(self, exc: Exception) -> float:
        self._error = exc.message if isinstance(exc, WarrenError) else repr(exc)
        self._log(self._error, None if isinstance(exc, WarrenError) else exc)
        self._failures += 1
        return BACKOFF.delay(self._failures)

    def _log(self, trouble: str | None, bug: Exception | None = None) -> None:
        """Log the first error, and the first success after it."""
        if trouble is not None and not self._logged:
            logger.warning("the projections are behind, and are retried until they succeed: %s", trouble, exc_info=bug)
        elif trouble is None and self._logged:
            logger.info("the projections are being written again")
        self._logged = trouble is not None


@asynccontextmanager
async def projecting(open_it: OpenProjection, runner: Runner = thread_runner) -> AsyncIterator[ProjectorActor]:
    """Run the projector. At the end of the block the files show all commits, unless that takes over `LAST_SLICE`.

    `runner` must run one function after another. Raises no error of its own.
    """
    actor = ProjectorActor(open_it(), runner)
    await actor.step(0)  # notes the newest commit: `end` brings later ones forward
    try:
        async with background(actor.run):
            yield actor
    finally:
        await actor.end()
