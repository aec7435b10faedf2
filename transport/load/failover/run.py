"""A failover run: prompts to any node, faults at the nodes meanwhile, and the check at the end."""

import logging
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import Final

import attrs
import trio

from warren.base.errors import WarrenError
from warren.base.values import define, frozen
from warren.calls.facade import SessionService
from warren.conversation.events import ReasoningDelta, SessionMoved, StreamTruncated, TextDelta
from warren.conversation.messages import UserMessage
from warren.settings.config import StoreConfig
from warren.storage.queries import ANY_TENANT, SessionHolder, SessionRow
from warren.storage.store import Store
from warren.transport.client import connect
from warren.transport.load.failover.fleet import LoadNode, fleet_of
from warren.transport.load.failover.ledger import Acknowledged, SessionLedger, Stored, Verdict, judge
from warren.transport.load.failover.plan import FailoverPlan, Fault
from warren.transport.load.target import TargetError
from warren.transport.stores import store_opener

PATIENCE: Final = 0.2
"""Seconds for which a call waits for a node that cannot be reached; then its user asks another one."""
TURN_LIMIT: Final = 2.0
"""Seconds after which a user asks another node: one that hangs answers nothing."""
THINK: Final = 0.01
CALM: Final = 1.0
"""Seconds between two faults, and before the end."""
BLIP: Final = 1.0
GIVE_UP: Final = 60.0
"""Seconds after which a fault, or a prompt at the end, counts as never got over."""
PAGE: Final = 1_000

logger: Final = logging.getLogger(__name__)


@frozen
class Survived:
    """A fault, and its price.

    Attributes:
        fault: its kind.
        sessions: sessions that the node had.
        seconds: from the fault to the first answer of a turn of one of them, whichever node gave it; None if none
            came within a minute.
    """

    fault: Fault
    sessions: int
    seconds: float | None


@frozen
class FailoverResult:
    """The result of a run."""

    verdict: Verdict
    faults: tuple[Survived, ...]

    @property
    def good(self) -> bool:
        """Whether every promise was kept, and every fault was got over."""
        return self.verdict.good and all(each.seconds is not None for each in self.faults)


Tell = Callable[[str], None]


async def run_failover(plan: FailoverPlan, tell: Tell) -> FailoverResult:
    """Run a plan. Raises TargetError if the nodes do not start, or no session can be made.

    Args:
        plan: the plan.
        tell: gets a line about each fault.
    """
    async with fleet_of(plan) as nodes, AsyncExitStack() as stack:
        services: list[SessionService] = []
        try:
            for node in nodes:
                service = await stack.enter_async_context(connect(node.url, patience=PATIENCE))
                services.append(service)
            ids = [(await services[n % len(nodes)].create_session(None)).session_id for n in range(plan.sessions)]
        except WarrenError as exc:
            raise TargetError("START", f"the nodes do not serve: {exc}") from exc
        store = await store_opener(plan.place)()
        stack.push_async_callback(store.aclose)
        run = _Run(plan, nodes, services, store, [SessionLedger(session_id) for session_id in ids])
        async with trio.open_nursery() as nursery:
            for index, ledger in enumerate(run.ledgers):
                nursery.start_soon(run.follow, ledger, index)
            async with trio.open_nursery() as users:
                for index, ledger in enumerate(run.ledgers):
                    users.start_soon(run.use, ledger, index)
                survived = [await run.survive(fault, tell) for fault in islice(cycle(plan.faults), plan.rounds)]
                await trio.sleep(CALM)
                run.over = True
            stored = [await run.stored(ledger) for ledger in run.ledgers]
            await run.caught_up(stored)
            nursery.cancel_scope.cancel()
        return FailoverResult(judge(list(zip(run.ledgers, stored, strict=True))), tuple(survived))


@define(eq=False)
class _Run:
    plan: FailoverPlan
    nodes: Sequence[LoadNode]
    services: Sequence[SessionService]
    store: Store
    ledgers: Sequence[SessionLedger]
    over: bool = False
    begun: float = attrs.field(factory=trio.current_time)
    _random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.plan.seed)  # noqa: S311 - a plan, not a secret

    def now(self) -> float:
        """Return the seconds since the start."""
        return trio.current_time() - self.begun

    # -- users and followers

    async def use(self, ledger: SessionLedger, user: int) -> None:
        """Send prompts one after the other; each again, under its key and to another node, until it is answered."""
        number = 0
        while not self.over:
            number += 1
            prompt = f"{user}-{number}"
            await self._say(ledger, prompt)
            await trio.sleep(THINK)

    async def _say(self, ledger: SessionLedger, prompt: str) -> None:
        end: float | None = None
        while end is None or trio.current_time() < end:
            node, since = self._random.randrange(len(self.services)), self.now()
            with trio.move_on_after(TURN_LIMIT) as limit:
                try:
                    result = await self.services[node].start_turn(
                        ledger.session_id, prompt, mode="queue", idempotency_key=prompt
                    )
                except WarrenError as exc:
                    logger.info("%s at node %d: %s", prompt, node, exc)
                    await trio.sleep(THINK)
                else:
                    if result.text == prompt:  # as the model echoes
                        ledger.turns.append(Acknowledged(prompt, since, self.now(), node))
                        return
            if limit.cancelled_caught:
                logger.info("%s at node %d: no answer within %g s", prompt, node, TURN_LIMIT)
            if self.over and end is None:
                end = trio.current_time() + GIVE_UP

    async def follow(self, ledger: SessionLedger, follower: int) -> None:
        """Follow a session's events from the beginning, at one node after the other."""
        while True:
            service = self.services[follower % len(self.services)]
            follower += 1
            try:
                after = ledger.followed[-1] if ledger.followed else 0
                async with service.subscribe(ledger.session_id, after_seq=after) as events:
                    async for envelope in events:
                        if isinstance(envelope.event, StreamTruncated):
                            ledger.gaps.append(envelope.seq)
                        elif not isinstance(envelope.event, SessionMoved):
                            ledger.followed.append(envelope.seq)
            except WarrenError as exc:
                logger.info("follower of %s: %s", ledger.session_id, exc)
            await trio.sleep(THINK)

    # -- faults

    async def survive(self, fault: Fault, tell: Tell) -> Survived:
        """Do a fault at a node that has sessions, wait until they go on, and have the node back."""
        await trio.sleep(CALM)
        node, sessions = await self._victim()
        begun = self.now()
        await self._harm(fault, node)
        seconds = await self._first_turn(sessions, begun)
        await self._heal(fault, node)
        done = Survived(fault, len(sessions), seconds)
        went_on = "never" if seconds is None else f"after {seconds:.2f} s"
        tell(f"{fault} of {node.name} with {len(sessions)} sessions: the first turn of one of them {went_on}")
        return done

    async def _harm(self, fault: Fault, node: LoadNode) -> None:
        match fault:
            case "kill":
                await node.kill()
            case "stop":
                await self._stop(node)
            case "links":
                for each in self.nodes:
                    each.link.cut()
            case "answers":
                await self._swallow(node)
            case _ if node.wire is not None:
                node.wire.cut()
        if fault == "blip":
            await trio.sleep(BLIP)
            self._mend(node)

    async def _heal(self, fault: Fault, node: LoadNode) -> None:
        match fault:
            case "kill":
                await node.start()
            case "stop":
                node.signal(signal.SIGCONT)
            case "links":
                await trio.sleep(self.plan.lease)
                for each in self.nodes:
                    each.link.mend()
            case _:
                self._mend(node)

    async def _stop(self, node: LoadNode) -> None:
        """Stop a node; on a store in a file between two commits: within one it keeps the lock that all nodes need."""
        node.signal(signal.SIGSTOP)
        if not isinstance(self.plan.place, StoreConfig):
            return
        from warren.transport.load.rows import is_locked  # noqa: PLC0415 - it needs the extra of a store in files

        while await trio.to_thread.run_sync(is_locked, self.plan.place.path):
            node.signal(signal.SIGCONT)
            await trio.sleep(self._random.random() * CALM)
            node.signal(signal.SIGSTOP)

    async def _swallow(self, node: LoadNode) -> None:
        """Lose each answer to a commit of a node for a second, and one at least.

        Raises TargetError if none comes, as on an encrypted connection, in which answers are not known.
        """
        if node.wire is None:
            return
        node.wire.swallows, before = True, node.wire.swallowed
        await trio.sleep(BLIP)
        with trio.move_on_after(GIVE_UP):
            while node.wire.swallowed == before:  # noqa: ASYNC110 - it is a matter of a moment
                await trio.sleep(THINK)
        self._mend(node)
        if node.wire.swallowed == before:
            raise TargetError("ANSWERS", f"{node.name} got no answer to a commit that could be lost")

    @staticmethod
    def _mend(node: LoadNode) -> None:
        if node.wire is not None:
            node.wire.mend()

    async def _victim(self) -> tuple[LoadNode, set[str]]:
        """Return the node that has most sessions, and these."""
        with trio.fail_after(GIVE_UP):
            while True:
                owned: dict[str, set[str]] = {}
                for ledger in self.ledgers:
                    holder = await self.store.read(SessionHolder(ledger.session_id, ANY_TENANT))
                    if ledger.turns and holder is not None:
                        owned.setdefault(holder.name, set()).add(ledger.session_id)
                living = [node for node in self.nodes if node.name in owned]
                if living:
                    node = max(living, key=lambda each: (len(owned[each.name]), -each.number))
                    return node, owned[node.name]
                await trio.sleep(CALM)

    async def _first_turn(self, sessions: set[str], begun: float) -> float | None:
        """Return the seconds from a fault to the first answer, of a request after it, in one of the sessions."""
        owned = [ledger for ledger in self.ledgers if ledger.session_id in sessions]
        with trio.move_on_after(GIVE_UP):
            while True:
                later = [turn.at for each in owned for turn in each.turns[-1:] if turn.since > begun]
                if later:
                    return min(later) - begun
                await trio.sleep(THINK)
        return None

    # -- the end

    async def stored(self, ledger: SessionLedger) -> Stored:
        """Read a session at the end, at a node that answers."""
        service = self.services[0]
        prompts, offset = list[str](), 0
        while True:
            page = await service.history(ledger.session_id, offset=offset, limit=PAGE)
            prompts += [each.message.content for each in page.messages if isinstance(each.message, UserMessage)]
            offset += PAGE
            if offset >= page.total:
                break
        record = await self.store.read(SessionRow(ledger.session_id, ANY_TENANT))
        last = 0 if record is None else record.last_seq
        numbers, ends = list[int](), list[int]()
        async with service.subscribe(ledger.session_id, after_seq=0) as events:
            async for envelope in events:
                numbers.append(envelope.seq)
                if not isinstance(envelope.event, TextDelta | ReasoningDelta):
                    ends.append(envelope.seq)
                if envelope.seq >= last:
                    break
        return Stored(prompts, numbers, ends)

    async def caught_up(self, stored: Sequence[Stored]) -> None:
        """Wait until the followers have had the time to read the last events."""
        with trio.move_on_after(GIVE_UP):
            for ledger, log in zip(self.ledgers, stored, strict=True):
                while log.ends and (not ledger.followed or ledger.followed[-1] < log.ends[-1]):  # noqa: ASYNC110 - it is behind for a moment
                    await trio.sleep(THINK)
