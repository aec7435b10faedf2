"""One play of the simulation: users run turns, faults befall the nodes, and followers see every event once."""

from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import trio

from tests.simulation.faults import FAULTS
from tests.simulation.followers import Follower, Sight
from tests.simulation.servers import marked
from tests.simulation.world import ALONE, LEASE, SLOTS, Node, World
from tests.support.tasks import waits
from warren.base.errors import WarrenError
from warren.storage.sqlite.file import FILE_NAME

PROMPTS: Final = 4
FOLLOWERS: Final = 4
LONGEST: Final = 600.0
"""Seconds within which all prompts have to be answered."""
BOUND: Final = 10.0
"""Seconds after the last fault and the last turn within which every follower has to have seen all."""
LATE: Final = 4.0
"""Seconds within which a reader that begins then has to have seen all."""
KINDS: Final = ("kill", "leave", "full", "crash", "all away", *2 * ("hang", "away", "cut"))
"""The kinds of faults; those that are there twice are more frequent."""
END: Final = 1_000.0
"""Seconds within which a play has to end."""


@attrs.define(eq=False)
class Play:
    """One play.

    Attributes:
        world: the world.
        session_id: the session.
        sights: of all followers.
        diary: what befell the nodes, and what the user heard.
    """

    world: World
    session_id: str = ""
    sights: list[Sight] = attrs.field(factory=list)
    diary: list[str] = attrs.field(factory=list)

    @property
    def wrong(self) -> list[str]:
        """What should not be."""
        return [problem for sight in self.sights for problem in sight.wrong]

    def note(self, text: str) -> None:
        """Add a line to the diary."""
        self.diary.append(f"{trio.current_time():.3f} {text}")

    async def run(self) -> None:
        """Play it all."""
        world, chance = self.world, self.world.chance
        slots = (*SLOTS, ALONE) if chance.random() < 0.3 else SLOTS
        for slot in slots:
            await world.start(slot)
        self.session_id = (await world.nodes["anna1"].service.create_session(None)).session_id
        async with trio.open_nursery() as readers:
            for number in range(FOLLOWERS):
                after_seq = chance.choice((0, 0, None))
                follower = self.follower(f"follower {number}", after_seq)
                readers.start_soon(chance.choice((follower.run_within, follower.run_outside)))
            async with trio.open_nursery() as doers:
                for slot in slots:
                    doers.start_soon(self.fate, slot)
                with trio.fail_after(LONGEST):
                    await self.use()
                world.calm = True
            for node in world.nodes.values():
                node.crashes = 0
            self.note("calm")
            if not world.nodes:
                await world.start(SLOTS[0])
            stored = await self.stored()
            await check(self.sights, stored, BOUND)
            await self.look_back(stored)
            readers.cancel_scope.cancel()
        for node in list(world.nodes.values()):
            node.leaves.set()
            await node.gone.wait()

    def follower(self, who: str, after_seq: int | None) -> Follower:
        """Return a new follower."""
        sight = Sight(who, after_seq, after_seq)
        self.sights.append(sight)
        return Follower(self.world, self.session_id, sight)

    async def stored(self) -> list[tuple[int, int]]:
        """Return the numbers of all events of the log."""
        with closing(apsw.Connection(str(self.world.folder / FILE_NAME))) as db:
            rows: list[Any] = db.execute("SELECT first_seq, seq FROM events ORDER BY seq").fetchall()
        return [(first, last) for first, last in rows]

    async def look_back(self, stored: list[tuple[int, int]]) -> None:
        """Read the log at each node from some places on."""
        seen = (last for sight in self.sights for _, last in sight.spans)
        places = sorted({0, *(last for _, last in stored), *seen})
        late = list[Sight]()
        async with trio.open_nursery() as nursery:
            for place in self.world.chance.sample(places, min(4, len(places))):
                for name, node in self.world.nodes.items():
                    late.append(Sight(f"late reader at {name}", place, place))
                    follower = Follower(self.world, self.session_id, late[-1])
                    nursery.start_soon(partial(follower.read, node.service, stays=True))
            await check(late, stored, LATE)
            nursery.cancel_scope.cancel()
        self.sights += late

    async def use(self) -> None:
        """Send one prompt after the other, until each is answered."""
        chance = self.world.chance
        for number in range(PROMPTS):
            answered = False
            while not answered:
                node = self.world.any_node()
                if node is not None:
                    with node.visit(), trio.move_on_after(20):
                        answered = await self.prompt(node, number)
                await trio.sleep(chance.random() * 0.3)
            await trio.sleep(chance.random())

    async def prompt(self, node: Node, number: int) -> bool:
        """Send a prompt; return whether no other try is needed."""
        script = ("", "look", "")[number % 3]
        try:
            await node.service.start_turn(
                self.session_id, marked("default", 0, number, script), mode="queue", idempotency_key=f"key {number}"
            )
        except WarrenError as exc:
            self.note(f"prompt {number} at {node.name}: {exc!r}")
            return not exc.retryable
        self.note(f"prompt {number} is answered by {node.name}")
        return True

    def lasts(self, kind: str) -> float:
        """Draw the seconds that a fault lasts."""
        if kind in ("cut", "crash"):
            return 0.0
        chance = self.world.chance
        return chance.uniform(0.0, 1.5) if kind in ("kill", "leave") else chance.choice((0.2, 1.0, 2 * LEASE))

    async def fate(self, slot: str) -> None:
        """Let faults befall the nodes of a slot, one after the other, and start the next node after the end of one."""
        world, chance = self.world, self.world.chance
        while not world.calm:
            node = next((each for name, each in world.nodes.items() if name.startswith(slot)), None)
            if node is None:
                await world.start(slot)
                continue
            await trio.sleep(chance.uniform(0.1, 2.0))
            if not (self.world.calm or node.gone.is_set()):
                kind = chance.choice(KINDS)
                self.note(f"{kind} {node.name}")
                await FAULTS[kind](node, self.lasts(kind))
                self.note(f"{kind} {node.name} is over")


async def check(sights: list[Sight], stored: list[tuple[int, int]], seconds: float) -> None:
    """Wait until each reader has seen all that it should, for so long at most; blame those that have not."""
    with trio.move_on_after(seconds):
        while not all(sight.is_complete(stored) for sight in sights):  # noqa: ASYNC110 - the readers have no event
            await trio.sleep(0.1)
    for sight in sights:
        sight.check(stored)


async def play(seed: int, folder: Path, act: Callable[[Play], Awaitable[None]] = Play.run) -> Play:
    """Play the play of a seed. Fails with what each task waits for if it has not ended after `END` seconds."""
    main, overdue = trio.lowlevel.current_task(), ""

    async def watch() -> None:
        nonlocal overdue
        await trio.sleep(END)
        overdue = f"{trio.current_time():.3f} the play of {seed} has not ended:\n" + "\n".join(waits(main))
        tasks.cancel_scope.cancel()
        for node in found.world.lives:  # tasks that wait for a disk cannot be cancelled
            node.kill()

    try:
        async with trio.open_nursery() as watching:
            async with trio.open_nursery() as tasks:
                found = Play(World.of(seed, folder, tasks))
                watching.start_soon(watch)
                await act(found)
            watching.cancel_scope.cancel()
    finally:
        assert not overdue, overdue
    return found
