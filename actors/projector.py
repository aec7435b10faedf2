"""The projector: keeps plain files of the sessions up to date, in slices that cost the turns next to nothing."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.actors.supervision import supervised_nursery
from warren.errors import WarrenError
from warren.health import ProjectorHealth
from warren.storage import Runner, thread_runner

if TYPE_CHECKING:
    from warren.storage.projection import Follower, Status, Step

OpenProjection = Callable[[], "Follower"]
TICK: Final = 0.5
"""Seconds between two looks at the store while nothing changes."""
SLICE: Final = 0.05
"""Seconds of work between two looks at what else the process does."""
SHARE: Final = 0.02
"""Of the time, for projecting while everything else keeps the interpreter busy."""
RETRY_FIRST: Final = 1.0
RETRY_LAST: Final = 30.0
"""Seconds until it begins again after a failure; twice as long after each."""
LAST_SLICE: Final = 1.0
"""Seconds that the end of the runtime may wait for the files."""
logger: Final = logging.getLogger("warren.projector")


@attrs.define
class Pace:
    """How long to rest after a slice of work: in proportion to what it took and to how busy the process is besides.

    Attributes:
        wall: when the last rest began, in seconds.
        cpu: seconds of processors that the process had used by then.
    """

    wall: float
    cpu: float

    def rest(self, step: "Step", wall: float, cpu: float) -> float:
        """Return the seconds to rest after a step, which ended at these two times."""
        used = (cpu - self.cpu - step.cpu) / max(wall - self.wall, 1e-6)
        self.wall, self.cpu = wall, cpu
        rest = step.cpu / SHARE * min(1.0, max(0.0, used))
        return rest if step.more else max(TICK, rest)


@attrs.define(eq=False)
class ProjectorActor:
    """Follows the store, as far as this process and all others have committed to it. It has no mailbox: nobody waits.

    Nothing that goes wrong with it ends anything: it says so once, and begins again until it can go on.
    """

    _follower: "Follower"
    _runner: Runner = thread_runner
    _error: str | None = None
    _told: bool = False
    _retry: float = RETRY_FIRST
    _pace: Pace = attrs.field(factory=lambda: Pace(time.monotonic(), time.process_time()))

    def statistics(self) -> "Status":
        """Return how far the files are, and as `trouble` what is wrong; never waits."""
        status = self._follower.status()
        return attrs.evolve(status, trouble=self._error or status.trouble)

    def health(self) -> ProjectorHealth:
        """Return how far the files are, as a part of the runtime's health; never waits."""
        found = self.statistics()
        return ProjectorHealth(
            "ok" if found.trouble is None else "degraded", found.projecting, found.lag, found.trouble
        )

    async def run(self) -> None:
        """Follow until cancelled; what is begun ends first."""
        rest = TICK
        while True:
            await trio.sleep(rest)
            rest = await self.step(SLICE)

    async def step(self, seconds: float) -> float:
        """Work for about so long; return how long to rest."""
        try:
            step = await self._runner(partial(self._follower.step, seconds))
        except Exception as exc:  # noqa: BLE001 - the files are not worth a turn, whatever it is
            return self._failed(exc)
        self._error, self._retry = None, RETRY_FIRST
        self._tell(self._follower.status().trouble)
        return self._pace.rest(step, time.monotonic(), time.process_time())

    async def end(self) -> None:
        """Bring the files up to date, unless that takes long, and let go of them."""
        try:
            with trio.CancelScope(shield=True):
                await self._runner(partial(self._follower.close, LAST_SLICE))
        except Exception as exc:  # noqa: BLE001 - as above
            self._failed(exc)

    def _failed(self, exc: Exception) -> float:
        self._error = exc.message if isinstance(exc, WarrenError) else repr(exc)
        self._tell(self._error, None if isinstance(exc, WarrenError) else exc)
        rest, self._retry = self._retry, min(2 * self._retry, RETRY_LAST)
        return rest

    def _tell(self, trouble: str | None, bug: Exception | None = None) -> None:
        """Log that something is wrong, and that it is over: each once."""
        if trouble is not None and not self._told:
            logger.warning("the projections are behind; it is tried again until it works: %s", trouble, exc_info=bug)
        elif trouble is None and self._told:
            logger.info("the projections are brought up to date again")
        self._told = trouble is not None


@asynccontextmanager
async def projecting(open_it: OpenProjection, runner: Runner = thread_runner) -> AsyncIterator[ProjectorActor]:
    """Run the projector; on leaving, the files show what was committed by then, unless that would take long.

    `runner` has to run one function after another. Raises nothing of its own.
    """
    actor = ProjectorActor(open_it(), runner)
    await actor.step(0)  # so that the end knows what was committed since
    try:
        async with supervised_nursery() as nursery:
            nursery.start_soon(actor.run)
            try:
                yield actor
            finally:
                nursery.cancel_scope.cancel()
    finally:
        await actor.end()
