"""The times at which turns begin: a pace gives each idle user the time at which its next turn is meant to start."""

import math
import random

import trio

from warren.base.values import define
from warren.transport.load.plan import LoadPlan


@define
class ClosedPace:
    """The next turn begins after a pause of the user, for a number of turns, until a time, or both.

    Attributes:
        joins: the time at which the user connects.
        turns: number of turns; None for no limit.
        until: the time after which no turn begins.
    """

    joins: float
    turns: int | None = None
    until: float = math.inf
    _begun: int = 0

    async def join(self) -> None:
        """Wait for the time at which the user connects."""
        await trio.sleep_until(self.joins)

    async def next(self, think: float) -> float | None:
        """Wait for the user's next turn; return the time for which it was meant, None when there are no more turns.

        The time is in the past if the user was not free in time. Latency counts from it, so that a slow target cannot
        hide the waits that it caused.
        """
        meant = trio.current_time() + think
        if self._begun == self.turns or meant > self.until:
            return None
        self._begun += 1
        await trio.sleep_until(meant)
        return meant


@define
class OpenPace:
    """Turns at random times; the next free user takes the next turn. All users share one such pace.

    Attributes:
        rate: turns a second, on average.
        begins: the time at which the run begins.
        turns: number of turns.
        until: the time after which no turn begins.
    """

    rate: float
    begins: float
    turns: int | None
    until: float
    chance: random.Random
    _given: int = 0
    _last: float | None = None

    async def join(self) -> None:
        """Return at once: all users connect at the beginning."""
        await trio.lowlevel.checkpoint()

    async def next(self, think: float) -> float | None:  # noqa: ARG002 - nobody thinks here
        """Take the next time, and wait for it."""
        self._last = meant = (self.begins if self._last is None else self._last) + self.chance.expovariate(self.rate)
        if self._given == self.turns or meant > self.until:
            return None
        self._given += 1
        await trio.sleep_until(meant)
        return meant


TurnPace = ClosedPace | OpenPace
"""The times at which the turns of one user begin."""


def paces(plan: LoadPlan, begins: float) -> list[TurnPace]:
    """Return the pace of each session of a plan that begins at a time."""
    until = math.inf if plan.duration is None else begins + plan.duration
    if plan.rate is not None:
        turns = plan.sessions * plan.turns if plan.duration is None else None
        shared = OpenPace(plan.rate, begins, turns, until, plan.chance("arrivals"))
        return [shared] * plan.sessions
    if plan.arrival == "soak":
        return [ClosedPace(begins, None, until) for _ in range(plan.sessions)]
    step = (plan.duration or 0.0) / plan.sessions if plan.arrival == "ramp" else 0.0
    return [ClosedPace(begins + number * step, plan.turns) for number in range(plan.sessions)]
