"""Readers of a session's events, and what has to hold of what they see."""

import math
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from tests.simulation.network import Call
from tests.simulation.world import World
from warren.base.errors import AgentError, WarrenError
from warren.calls.facade import SessionService
from warren.conversation.events import TERMINAL, Envelope, RunStarted, SessionMoved, StreamTruncated
from warren.transport.client.service import RemoteService, open_links

Log = Sequence[tuple[int, int]]
"""The first and the last number of each event, in order."""
PASSING: Final = 0.2
"""Seconds until a reader whose node is gone looks for another one."""


@attrs.define(eq=False)
class Sight:
    """The events that one reader has seen.

    Attributes:
        who: the reader, for people.
        begin: the number after which it began; None until the first subscription says it.
        cursor: the number of the last event.
        spans: the numbers of each event, in order.
        lost: the numbers that it was told to be lost.
        open: the number of the first event of the turn whose end has not come.
        wrong: what should not be.
        story: what happened, for people.
    """

    who: str
    begin: int | None = None
    cursor: int | None = None
    spans: list[tuple[int, int]] = attrs.field(factory=list)
    lost: list[tuple[int, int]] = attrs.field(factory=list)
    open: int | None = None
    wrong: list[str] = attrs.field(factory=list)
    story: list[str] = attrs.field(factory=list)

    def blame(self, problem: str) -> None:
        """Note what should not be."""
        self.wrong.append(f"{trio.current_time():.3f} {self.who}: {problem}")

    def note(self, text: str) -> None:
        """Add a line to its story."""
        self.story.append(f"{trio.current_time():.3f} {text}")

    def see(self, envelope: Envelope) -> None:
        """Take the next event."""
        event, first, last = envelope.event, envelope.first_seq or envelope.seq, envelope.seq
        self.note(f"{first}-{last} {type(event).__name__}")
        if isinstance(event, StreamTruncated):
            self.blame(f"was told at {last} that {event.dropped} events are gone")
            return
        if isinstance(event, SessionMoved):
            self.lost.append((event.first_lost, event.last_lost))
            return
        assert self.cursor is not None
        if first <= self.cursor:
            self.blame(f"saw {first} to {last} after {self.cursor}")
        self.cursor = last
        self.spans.append((first, last))
        if isinstance(event, RunStarted):
            if self.open is not None:
                self.blame(f"saw a turn begin at {first}, and no end of the one that began at {self.open}")
            self.open = first
        elif isinstance(event, TERMINAL):
            self.open = None

    def is_complete(self, stored: Log) -> bool:
        """Return whether it has seen all of a log, and the end of each turn."""
        return self.begin is not None and self.open is None and not self.missed(stored)

    def missed(self, stored: Log) -> set[int]:
        """Return the numbers of the log that it should have seen."""
        return {number for number in _numbers(stored) - _numbers(self.spans) if number > (self.begin or 0)}

    def check(self, stored: Log) -> None:
        """Compare what was seen with the whole log, once no turn runs."""
        if self.begin is None:
            self.blame("never got a subscription")
        if self.open is not None:
            self.blame(f"never saw the end of the turn that began at {self.open}")
        if missed := self.missed(stored):
            self.blame(f"began after {self.begin} and never saw {sorted(missed)}")
        if kept := _numbers(stored) & _numbers(self.lost):
            self.blame(f"was told that {sorted(kept)} are lost")


def _numbers(spans: Log) -> set[int]:
    return {number for first, last in spans for number in range(first, last + 1)}


@attrs.define(eq=False)
class Follower:
    """A reader that subscribes again after each end of its subscription, at the same node or another one.

    Attributes:
        world: the world.
        session_id: the session.
        sight: what it sees.
    """

    world: World
    session_id: str
    sight: Sight

    async def run_within(self) -> None:
        """Read for ever, each time within the process of a node."""
        while True:
            node = self.world.any_node()
            if node is not None:
                with node.visit():
                    self.sight.note(f"at {node.name}")
                    await self.read(node.service)
            await self.pause()

    async def run_outside(self) -> None:
        """Read for ever, by the library for clients. It survives the nodes: no log ends for it."""
        while True:
            try:
                async with open_links(Call(reach=self.world.reach, ping_interval=1.0), 30.0) as (links, capabilities):
                    while True:
                        self.sight.note("from outside")
                        if await self.read(RemoteService(links, capabilities)):
                            self.sight.blame(f"was told at {self.sight.cursor} that the log has ended")
                        await self.pause()
            except AgentError:  # there is no node now
                await self.pause()

    async def pause(self) -> None:
        """Let some time go by."""
        await trio.sleep(PASSING * self.world.chance.random())

    async def read(self, service: SessionService, *, stays: bool = False) -> bool:
        """Read for a while, or until it is cancelled; return whether the subscription has ended before."""
        sight, chance = self.sight, self.world.chance
        pause = chance.choice((0.0, 0.0, 0.3))
        with trio.move_on_after(math.inf if stays else chance.choice((0.5, 3.0, 60.0))):
            try:
                async with service.subscribe(self.session_id, after_seq=sight.cursor) as reader:
                    if sight.cursor is None:
                        sight.begin = sight.cursor = reader.cursor
                    async for envelope in reader:
                        sight.see(envelope)
                        await trio.sleep(0.0 if self.world.calm else pause)
            except WarrenError as exc:
                sight.note(repr(exc))
                if not (exc.retryable or exc.cause in ("closed", "crash", "shutting_down")):
                    sight.blame(f"was refused after {sight.cursor}: {exc!r}")
            else:
                return True
        return False
