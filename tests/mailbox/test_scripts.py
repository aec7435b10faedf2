"""Random scripts over a mailbox, checked against a model of a few lists: every ask ends, once, as it should."""

from typing import Any, Final

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.mailbox.sample_messages import Asker, OneAtATime, Question, Start, crashed, gone
from warren.base.errors import AgentError
from warren.mailbox import Mail, Mailbox, MailboxClosedError

CAPACITY: Final = 3
ANSWER: Final = "answer"


@attrs.frozen
class Step:
    """One thing that happens; `pick` chooses among the askers or the mail at hand."""

    what: str
    pick: int = 0


@attrs.define
class Model:
    """The expected outcomes, by the number of the ask: told mail has a number too, and never ends."""

    waiting: list[int] = attrs.field(factory=list)
    held: list[int] = attrs.field(factory=list)
    ends: dict[int, str] = attrs.field(factory=dict)
    running: bool = False
    closed: str = ""

    def send(self, number: int, *, start: bool) -> str:
        """Return the code that the sender is refused with, or nothing."""
        refusal = self._refusal(start=start)
        if not refusal:
            self.waiting.append(number)
            self.running |= start
        return refusal

    def end(self, number: int, how: str) -> None:
        """An ask ends once: whatever comes later is passed over."""
        self.ends.setdefault(number, how)

    def abandon(self) -> None:
        """Everybody who waits is told that the actor died."""
        self.closed = self.closed or "AGENT_ERROR"
        for number in self.waiting:
            self.end(number, "AGENT_ERROR")
        self.waiting = []

    def _refusal(self, *, start: bool) -> str:
        if self.closed:
            return self.closed
        if len(self.waiting) == CAPACITY:
            return "CAPACITY_EXCEEDED"
        return "SESSION_BUSY" if start and self.running else ""


@attrs.define
class World:
    """A mailbox, its callers, and an actor that is moved by hand."""

    nursery: trio.Nursery
    rule: OneAtATime = attrs.field(factory=OneAtATime)
    mailbox: Mailbox = attrs.field(init=False)
    model: Model = attrs.field(factory=Model)
    askers: dict[int, Asker] = attrs.field(factory=dict)
    told: set[int] = attrs.field(factory=set)
    held: list[Mail[Any]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.mailbox = Mailbox(CAPACITY, self.rule.admit)

    async def play(self, step: Step) -> None:
        """Let it happen, and compare."""
        await getattr(self, step.what)(step.pick)
        await wait_all_tasks_blocked()
        self.compare()

    def compare(self) -> None:
        """Assert that every caller is where the model has it."""
        expected = {number: how for number, how in self.model.ends.items() if number not in self.told}
        assert {number: asker.ends for number, asker in self.askers.items() if asker.ends} == {
            number: [how] for number, how in expected.items()
        }
        statistics = self.mailbox.statistics()
        assert (statistics.waiting, statistics.closed) == (len(self.model.waiting), bool(self.model.closed))
        assert self.rule.taken == self.model.running

    async def ask(self, _: int) -> None:
        self._ask(start=False)

    async def start(self, _: int) -> None:
        self._ask(start=True)

    async def tell(self, _: int) -> None:
        number = len(self.askers) + len(self.told)
        refusal = self.model.send(number, start=False)
        self.told.add(number)
        try:
            self.mailbox.tell(Question(str(number)))
        except Exception as exc:  # noqa: BLE001 - compared by its code
            assert getattr(exc, "code", None) == refusal  # noqa: PT017 - or there is none
        else:
            assert refusal == ""

    async def cancel(self, pick: int) -> None:
        waiting = [number for number, asker in self.askers.items() if not asker.ends]
        if waiting:
            number = waiting[pick % len(waiting)]
            self.askers[number].scope.cancel()
            self.model.end(number, "cancelled")

    async def receive(self, _: int) -> None:
        if not self.model.waiting and not self.model.closed:
            return
        try:
            self.held += await self.mailbox.receive()
        except MailboxClosedError:
            assert (self.model.closed != "", self.model.waiting) == (True, [])
        self.model.held += self.model.waiting
        self.model.waiting = []

    async def answer(self, pick: int) -> None:
        if self.held:
            number = self._take(pick)
            self.model.end(number, ANSWER)

    async def answer_twice(self, pick: int) -> None:
        if self.held:
            mail = self.held[pick % len(self.held)]
            number = self._take(pick)
            mail.refuse(AgentError("too late"))
            self.model.end(number, ANSWER)

    async def finish(self, _: int) -> None:
        if self.model.running:
            self.rule.taken = False
            self.model.running = False

    async def wake(self, _: int) -> None:
        self.mailbox.wake()

    async def close(self, _: int) -> None:
        self.mailbox.close(gone)
        self.model.closed = self.model.closed or "SESSION_NOT_FOUND"

    async def abandon(self, _: int) -> None:
        self.mailbox.abandon(crashed)
        self.model.abandon()

    def _ask(self, *, start: bool) -> None:
        number = len(self.askers) + len(self.told)
        refusal = self.model.send(number, start=start)
        if refusal:
            self.model.end(number, refusal)
        asker = self.askers[number] = Asker(self.mailbox, Start(number) if start else Question(str(number)))
        self.nursery.start_soon(asker.run)

    def _take(self, pick: int) -> int:
        place = pick % len(self.held)
        self.held.pop(place).answer(ANSWER)
        return self.model.held.pop(place)


SENDS: Final = ("ask", "ask", "start", "start", "tell")
OTHERS: Final = ("cancel", "receive", "receive", "answer", "answer", "answer_twice", "finish", "wake")
ENDS: Final = ("close", "abandon")
steps: Final = st.builds(Step, st.sampled_from((*SENDS, *OTHERS, *SENDS, *OTHERS, *ENDS)), st.integers(0, 5))


@given(st.lists(steps, max_size=30))
async def test_every_ask_ends_once(script: list[Step]) -> None:
    """After every step each caller has exactly what the model says; at the end nobody is left waiting."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        for step in script:
            await world.play(step)
        await world.play(Step("abandon"))
        while world.held:
            await world.play(Step("answer"))
    assert all(len(asker.ends) == 1 for asker in world.askers.values())
