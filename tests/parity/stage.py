"""The stage of a scenario: one surface in front of one world, and what has to hold of what it answers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from tests.parity.outcome import NUMBERS, Outcome, check_numbers, fields, joined
from tests.parity.surface import EVERYTHING, STREAMS, TURN, Client, Surface
from tests.parity.world import Build, Capability, Setting, World
from tests.support.postgres import database
from warren.base.errors import ErrorCode
from warren.conversation.events import Envelope, RunStarted

CONFLICT: Final = 409
FAULT: Final = 500
BUSY: Final = 503


@attrs.define(eq=False)
class Stage:
    """One playing of a scenario.

    Attributes:
        surface: the way to the sessions.
        world: what is behind it.
        one: a client.
        other: another one, where the scenario wants two.
        met: the codes of the errors that came as they should.
    """

    surface: Surface
    world: World
    clients: int = 1
    one: Client = attrs.field(init=False)
    other: Client = attrs.field(init=False)
    met: set[ErrorCode] = attrs.field(factory=set)
    _stack: AsyncExitStack = attrs.field(factory=AsyncExitStack)

    async def open(self) -> None:
        """Run the world and connect the clients."""
        await self._stack.enter_async_context(self.world.running())
        connected = [
            await self._stack.enter_async_context(self.surface.connect(self.world)) for _ in range(self.clients)
        ]
        self.one, self.other = connected[0], connected[-1]

    async def close(self) -> None:
        """Disconnect and end it."""
        await self._stack.aclose()

    async def restart(self) -> None:
        """End everything and begin again on what is stored."""
        await self.close()
        await self.open()

    def well(self, outcome: Outcome, operation: str = TURN, /, **expected: Any) -> Outcome:
        """Check that a call went well and brought these fields, as far as the surface shows them."""
        assert outcome.code is None, outcome
        unseen = self.surface.unseen.get(operation, frozenset())
        shown = {name: value for name, value in expected.items() if name not in unseen}
        assert {name: outcome.data.get(name) for name in shown} == shown
        assert not unseen & outcome.data.keys(), "it shows more than its adapter says"
        return outcome

    def same(self, outcome: Outcome, operation: str, truth: object, *but: str) -> None:
        """Check that a call brought just what the service itself says, but for some fields."""
        self.well(outcome, operation, **{name: value for name, value in fields(truth).items() if name not in but})

    def refused(
        self,
        outcome: Outcome,
        code: ErrorCode,
        *,
        cause: str | None = None,
        path: str | None = None,
        retryable: bool = False,
        session_id: str | None = None,
    ) -> None:
        """Check that a call failed as the contract has it; what the surface swallows by contract went well."""
        numbers = self._numbers(code, cause, retryable=retryable, begun="text" in outcome.data)
        self.met.add(code)
        if code in self.surface.swallows:
            assert outcome.code is None, outcome
            return
        assert (outcome.code, outcome.cause) == (code, cause), outcome
        assert outcome.number in numbers, outcome
        if self.surface.column == "acp" and None in numbers:
            return  # a stop reason says no more
        assert (outcome.path, outcome.retryable) == (self.surface.path(path), retryable), outcome
        assert session_id in (None, outcome.session_id), outcome

    async def heard(self, outcome: Outcome, kinds: Sequence[str], session_id: str) -> None:
        """Check that the caller was told all of the session's last turn, in order, before it got this."""
        assert outcome.kinds == self.surface.kinds(kinds)
        log = await self.world.log(session_id)
        last = max(at for at, envelope in enumerate(log) if isinstance(envelope.event, RunStarted))
        turn = log[last:]
        assert [event["type"] for event in _plain(turn)] == list(kinds), "the log itself is not as the contract has it"
        assert list(outcome.events) == self.surface.shown(_plain(turn))
        if outcome.seqs:
            check_numbers(outcome.seqs)
            assert (outcome.seqs[0][0], outcome.seqs[-1][1]) == (turn[0].first_seq or turn[0].seq, turn[-1].seq)

    def has(self, operation: str) -> bool:
        """Tell whether the surface has words for an operation."""
        return operation in self.surface.can

    def on(self, capability: Capability) -> bool:
        """Tell whether the build has a capability."""
        return capability in self.world.build.on

    def _numbers(  # noqa: PLR0911 - a line for each exception from the table
        self, code: ErrorCode, cause: str | None, *, retryable: bool, begun: bool
    ) -> set[int | None]:
        """Return the numbers that an error may have; over HTTP some codes have more than one, by what is wrong."""
        column = self.surface.column
        if column is None:
            return {None}
        if column == "http" and code is ErrorCode.INVALID_PARAMS:
            return {404, CONFLICT, NUMBERS[code][column]}
        if column == "http" and code is ErrorCode.SESSION_PERSISTENCE_DISABLED:
            return {405, NUMBERS[code][column]}  # if other methods of the path are on
        if code is ErrorCode.AGENT_ERROR and cause == "cancelled" and column == "acp":
            return {None}
        if column == "http" and cause in ("archived", "cancelled", "structured_output"):
            return {CONFLICT}
        if column == "http" and retryable and NUMBERS[code][column] == FAULT:
            return {BUSY} if not begun else {FAULT}
        if column == "http" and cause == "compaction_failed":
            return {CONFLICT, NUMBERS[code][column]}
        return {NUMBERS[code][column]}


def _plain(envelopes: Sequence[Envelope]) -> Sequence[Mapping[str, Any]]:
    return joined(envelope.event for envelope in envelopes)


Play = Callable[[Stage], Awaitable[None]]
Where = Literal["anywhere", "inside", "processes"]
WRONG: Final[Mapping[bool, Where]] = {True: "inside", False: "processes"}
"""Which scenarios a surface of processes cannot play, and which one of another kind cannot."""


@attrs.frozen
class Scenario:
    """One row of the table.

    Attributes:
        name: of its function.
        play: does it and checks everything.
        uses: operations that a surface has to have words for.
        needs: capabilities that have to be on.
        lacks: capabilities that have to be off.
        codes: errors that come on every surface which plays it.
        setting: of the runtime.
        clients: how many it takes.
        calls: whether it takes more than one call about one session: without a store no surface of processes can.
        where: whether it reaches into the runtime, which then has to be in the test's process, or is about surfaces
            whose calls are processes.
    """

    name: str
    play: Play
    uses: frozenset[str]
    needs: frozenset[Capability]
    lacks: frozenset[Capability]
    codes: frozenset[ErrorCode]
    setting: Setting
    clients: int
    calls: bool
    where: Where

    def fits(self, surface: Surface, build: Build) -> bool:
        """Tell whether it can be played."""
        if not self.uses <= surface.can or self.where == WRONG[surface.per_process]:
            return False
        if surface.anywhere and self.where != "anywhere":
            return False
        if surface.per_process and self.calls and "store" not in build.on:
            return False
        return self.needs <= build.on and not self.lacks & build.on

    async def run(self, surface: Surface, build: Build, folder: Path, make: type[World] = World) -> None:
        """Play it once, in a world that `make` makes."""
        with database() if build.database else nullcontext() as url:
            world = make(build, self.setting, folder, not surface.per_process, url)
            async with staged(surface, world, self.clients) as stage:
                await self.play(stage)
                assert stage.met >= self.codes, "it did not come to the errors that it is about"


@asynccontextmanager
async def staged(surface: Surface, world: World, clients: int = 1) -> AsyncIterator[Stage]:
    """Run a world behind a surface for a body."""
    stage = Stage(surface, world, clients)
    try:
        await stage.open()
        yield stage
    finally:
        await stage.close()


SCENARIOS: Final[list[Scenario]] = []


def scenario(
    *uses: str,
    needs: Sequence[Capability] = (),
    lacks: Sequence[Capability] = (),
    codes: Sequence[ErrorCode] = (),
    setting: Setting | None = None,
    clients: int = 1,
    calls: bool = True,
    where: Where = "anywhere",
) -> Callable[[Play], Play]:
    """Make a row of the table of a function."""
    assert {*EVERYTHING, STREAMS}.issuperset(uses), uses

    def add(play: Play) -> Play:
        row = Scenario(
            play.__name__,
            play,
            frozenset(uses),
            frozenset(needs),
            frozenset(lacks),
            frozenset(codes),
            setting or Setting(),
            clients,
            calls,
            where,
        )
        SCENARIOS.append(row)
        return play

    return add
