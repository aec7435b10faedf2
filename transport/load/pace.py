"""When turns begin: each pace gives idle users the moment at which their next turn was meant to start."""

import math
import random
from typing import Protocol

import attrs
import trio

from warren.transport.load.plan import LoadPlan


class Pace(Protocol):
    """When one user's turns begin."""

    async def join(self) -> None:
        """Wait until the user may appear."""
        ...

    async def next(self, think: float) -> float | None:
        """Wait for the user's next turn; return the moment it was meant for, None when there are no more.

        The moment is in the past where the user was not free in time: latency counts from it, so a target that is slow
        cannot hide what it made others wait.
        """
        ...


@attrs.define
class ClosedPace:
    """Goes on when the user has thought, for a number of turns, until a moment, or both.

    Attributes:
        joins: when the user appears.
        turns: how many there are; None for no limit.
        until: no turn begins after it.
    """

    joins: float
    turns: int | None = None
    until: float = math.inf
    _begun: int = 0

    async def join(self) -> None:
        """Wait for the moment."""
        await trio.sleep_until(self.joins)

    async def next(self, think: float) -> float | None:
        """Think, then go on."""
        meant = trio.current_time() + think
        if self._begun == self.turns or meant > self.until:
            return None
        self._begun += 1
        await trio.sleep_until(meant)
        return meant


@attrs.define
class OpenPace:
    """Turns at random moments, whoever is free takes the next: one pace for all users.

    Attributes:
        rate: turns a second, on average.
        begins: when it begins.
        turns: how many there are.
        until: none is meant for after it.
    """

    rate: float
    begins: float
    turns: int | None
    until: float
    chance: random.Random
    _given: int = 0
    _last: float | None = None

    async def join(self) -> None:
        """Go on: all users are there from the beginning."""
        await trio.lowlevel.checkpoint()

    async def next(self, think: float) -> float | None:  # noqa: ARG002 - nobody thinks here
        """Take the next moment and wait for it."""
        self._last = meant = (self.begins if self._last is None else self._last) + self.chance.expovariate(self.rate)
        if self._given == self.turns or meant > self.until:
            return None
        self._given += 1
        await trio.sleep_until(meant)
        return meant


def paces(plan: LoadPlan, begins: float) -> list[Pace]:
    """Return the pace of each session of a plan that begins at a moment."""
    until = math.inf if plan.duration is None else begins + plan.duration
    if plan.rate is not None:
        turns = plan.sessions * plan.turns if plan.duration is None else None
        shared = OpenPace(plan.rate, begins, turns, until, plan.chance("arrivals"))
        return [shared] * plan.sessions
    if plan.arrival == "soak":
        return [ClosedPace(begins, None, until) for _ in range(plan.sessions)]
    step = (plan.duration or 0.0) / plan.sessions if plan.arrival == "ramp" else 0.0
    return [ClosedPace(begins + number * step, plan.turns) for number in range(plan.sessions)]
