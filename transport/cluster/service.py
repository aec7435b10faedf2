"""`ClusterService`: the sessions of all nodes that share a store, whichever node has them."""

import copy
import logging
import math
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

import attrs
import trio

from warren.actors.calls.history import added
from warren.actors.calls.local import OfSession
from warren.actors.calls.service import Service
from warren.actors.eventlog import LogReader
from warren.actors.runtime import Runtime
from warren.actors.supervision import supervised_nursery
from warren.actors.watching import Watch
from warren.base.backoff import Backoff
from warren.base.end_budget import EndBudget
from warren.base.errors import AgentError, LeasedError, StoreError, WarrenError
from warren.base.nodes import Node
from warren.base.principals import READ, Principal, check_right
from warren.calls.base import Call
from warren.calls.facade import Capabilities, Health, RuntimeService, made
from warren.calls.reading import SubscribeRequest
from warren.calls.streams import EventReader
from warren.calls.turns import (
    ContextRequest,
    InputsRequest,
    SessionCall,
    TurnCall,
)
from warren.conversation.events import SessionMoved
from warren.conversation.views import SessionPage, SessionSummary, TurnResult
from warren.models.tools import Tool
from warren.reports.audit import AuditEntry
from warren.reports.metrics import History, Metrics
from warren.reports.statistics import RuntimeStatistics
from warren.storage import leased
from warren.storage.queries import (
    ANY_TENANT,
    Holders,
    LivingNodes,
    LostEvents,
    SessionHolder,
    SessionRow,
    WaitingInputs,
)
from warren.transport.client.connection import OTHER_VERSION
from warren.transport.client.readers import RemoteReader
from warren.transport.client.service import RemoteService
from warren.transport.cluster.door import NodeService
from warren.transport.cluster.fanout import Fanout, ForeignReader
from warren.transport.cluster.health import by_worker, together
from warren.transport.cluster.peers import Peers
from warren.transport.cluster.reader import Continuation, MovingReader
from warren.transport.cluster.token import NodeTokens
from warren.transport.rpc.feeds import session_over

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from warren.storage import Store

T = TypeVar("T")
Place = Service | RemoteService
"""A runtime that may have a session: that of this process, or that of another node."""
PlaceCall = Callable[[Place], Awaitable[T]]
HEALTH_TIMEOUT: Final = 1.0
"""Seconds within which a node has to answer for its health and its metrics."""
NODE: Final = "node"
"""The name of the caller when a node calls another one for itself."""
LOOK: Final = 0.5
"""Seconds between two looks for sessions that have moved and nodes that are gone."""
BACKOFF: Final = Backoff(first=0.02, longest=0.5, jitter=0.5)
"""The waits before a session is looked up again."""
MARGIN: Final = 1.0
"""Seconds beyond a lease for which a call waits for the session of a node that cannot be reached."""
logger: Final = logging.getLogger(__name__)


class _Sessions(RuntimeService):
    """The methods of a node: those about a session's actor run at the place that `_at` finds, all others here."""

    def __init__(self, runtime: Runtime) -> None:
        self._local = runtime.service
        self._supervisor = runtime.supervisor
        self._readers: set[MovingReader] = set()

    @property
    def principal(self) -> Principal:
        """The caller: all calls have its rights, and find its tenant's sessions."""
        return self._local.principal

    def as_(self, principal: Principal) -> Self:
        """See RuntimeService."""
        bound = copy.copy(self)
        bound._local = self._local.as_(principal)  # noqa: SLF001 - a copy of this object
        return bound

    async def _at(self, session_id: str, call: PlaceCall[T], *, begins: bool = False, stored: bool = False) -> T:
        """Run a call at the node that has a session.

        Args:
            session_id: the session.
            call: the call.
            begins: whether it begins work, which a node that is about to end does not take.
            stored: whether the store knows enough if that node cannot be reached.
        """
        raise NotImplementedError

    async def perform(self, call: Call[T]) -> T:
        """Carry a call out where its facts say. The scope is checked before the store is asked where the session is."""
        facts = call.facts
        if facts.at == "here" or not self._local.allows(call):  # it refuses the call, and notes that
            return await self._local.perform(call)
        if isinstance(call, SessionCall):
            return cast("T", await self._create(call))
        if isinstance(call, TurnCall):
            return cast("T", await self._start_turn(call))
        if isinstance(call, ContextRequest) and call.idempotency_key is None and not self._is_here(call.session_id):
            call = cast("Call[T]", attrs.evolve(call, idempotency_key=new_key()))
        session_id = cast("OfSession", call).session_id
        stored = facts.at == "session or store"
        return await self._at(session_id, lambda place: place.perform(call), begins=facts.begins, stored=stored)

    async def _create(self, call: SessionCall) -> TurnResult:
        """Create a session at the node that has room."""
        raise NotImplementedError

    async def _start_turn(self, call: TurnCall) -> TurnResult:
        """Run a turn at the node of its session."""
        made = call.mode != "busy" and call.idempotency_key is None and not self._is_here(call.session_id)
        if made:
            call = attrs.evolve(call, idempotency_key=new_key())  # so that it is taken once, wherever it is sent
        try:
            return await self._at(call.session_id, lambda place: self._run(place, call), begins=True)
        except WarrenError as exc:
            if made:
                exc.forget_key()
            raise

    async def _run(self, place: Place, call: TurnCall | SessionCall) -> TurnResult:
        """Run a turn at a node; its events come with its answers."""
        if isinstance(place, Service) or call.on_begin is None:
            return await place.perform(call)
        begin = call.on_begin
        return await place.perform(attrs.evolve(call, on_begin=lambda reader: begin(self.reading(reader))))

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        """See SessionService."""
        check_right(self.principal, READ)
        reader = self.reading(await self._follow(session_id, after_seq))
        try:
            yield reader
        finally:
            reader.close()

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[Watch]:
        """See SessionService. Another node watches the sessions of this one: it puts all of them together."""
        async with self._local.watch(labels=labels, include_archived=include_archived) as watch:
            yield watch

    async def _follow(self, session_id: str, after_seq: int | None) -> EventReader:
        async def follow(place: Place) -> EventReader:
            return await self._follow_at(place, session_id, after_seq)

        return await self._at(session_id, follow)

    async def _follow_at(self, place: Place, session_id: str, after_seq: int | None) -> EventReader:
        return await place.follow(session_id, after_seq=after_seq)

    def reading(self, upstream: EventReader) -> MovingReader:
        """Return a reader that goes on at the place of another one, and stays with the session."""
        session_id = upstream.session_id
        again = partial(self._again, session_id)
        reader = MovingReader(session_id, upstream.cursor, again, self._readers.discard, upstream)
        self._readers.add(reader)
        return reader

    async def _again(self, session_id: str, cursor: int) -> Continuation | None:
        """Follow a session once more; see `MovingReader`."""
        raise NotImplementedError

    # -- the runtime of this process

    def note(self, entry: AuditEntry) -> None:
        """See RuntimeService."""
        self._local.note(entry)

    def capabilities(self) -> Capabilities:
        """See SessionService."""
        return self._local.capabilities()

    async def drain(self) -> None:
        """See RuntimeService."""
        await self._local.drain()

    async def stop(self, budget: EndBudget | None = None) -> None:
        """See RuntimeService."""
        await self._local.stop(budget)
        self._end_readers()

    @property
    def ready(self) -> bool:
        """See RuntimeService."""
        return self._local.ready

    def health(self) -> Health:
        """See RuntimeService."""
        return self._local.health()

    def statistics(self) -> RuntimeStatistics:
        """See RuntimeService."""
        return self._local.statistics()

    def load(self) -> History:
        """See RuntimeService. It is that of this process."""
        return self._local.load()

    def metrics(self) -> Metrics:
        """See RuntimeService."""
        return self._local.metrics()

    def _end_readers(self) -> None:
        for reader in tuple(self._readers):
            reader.end()

    # -- whose a session is

    def _is_here(self, session_id: str) -> bool:
        """Return whether this process has a session of the tenant, and need not ask the store to know it."""
        return self._has_current(session_id) and self._local.local.has_live(session_id)

    def _has_current(self, session_id: str) -> bool:
        """Return whether this process has a session, of whichever tenant."""
        actor = self._supervisor.find(session_id)
        return actor is not None and actor.current

    async def store(self) -> "Store":
        """Return the store that the nodes share. Raises StoreError(cause="closed") at the end of the runtime."""
        return await self._supervisor.shared.storage.reader()

    async def _elsewhere(self, session_id: str) -> Node | None:
        """Return the node that has a session of the tenant, if that is another one, which can be called."""
        if self._is_here(session_id) or self._supervisor.stopping:
            return None
        store = await self.store()
        holder = await store.read(SessionHolder(session_id, self.principal.tenant))
        return holder if _is_other(holder, store) and not self._supervisor.stopping else None

    def _followed_here(self) -> Sequence[MovingReader]:
        """Return the readers of logs of this process whose sessions another process may have by now."""
        if self._supervisor.stopping:
            return []
        return [
            each
            for each in self._readers
            if isinstance(each.upstream, LogReader)
            and not isinstance(each.upstream, ForeignReader)
            and not self._has_current(each.session_id)
        ]


class OwnSessions(_Sessions):
    """The sessions of this node for other nodes. No call is passed on: one that is not for this node is refused."""

    async def perform(self, call: Call[T]) -> T:
        """See Performer. The session takes inputs that have come to the store, before it looks there itself."""
        # A session of another tenant is told nothing.
        if isinstance(call, InputsRequest) and self._local.allows(call) and self._is_here(call.session_id):
            for each in await (await self.store()).read(WaitingInputs(call.session_id, ANY_TENANT)):
                self._supervisor.inboxes.found(call.session_id, each)
        return await super().perform(call)

    async def _create(self, call: SessionCall) -> TurnResult:
        self._check_room()
        with _not_owned():
            return await self._local.perform(call)

    async def _at(self, session_id: str, call: PlaceCall[T], *, begins: bool = False, stored: bool = False) -> T:
        del stored
        holder = await self._elsewhere(session_id)
        if holder is not None:
            raise not_owner(session_id, holder.name)
        if begins:
            self._check_room(session_id)
        with _not_owned(session_id):
            return await call(self._local)

    def _check_room(self, session_id: str | None = None) -> None:
        if self._supervisor.scheduler.closed:
            raise not_owner(session_id, None)

    def load(self) -> History:
        """See RuntimeService. It has the buckets, by which the other node adds it up."""
        return self._local.load_for_nodes()

    async def _again(self, session_id: str, cursor: int) -> Continuation | None:
        """The other node follows the session itself."""
        del session_id, cursor
        await trio.lowlevel.checkpoint()
        return None


class ClusterService(_Sessions, NodeService):
    """The sessions of a cluster, at one of its nodes. `clustered` makes it.

    It is in front of the runtime of this process, and keeps the promises of `SessionService` for every session of the
    store. A session that another node has is not taken from it: the call is passed on, once. If that node cannot be
    reached, the call waits until the store counts it as dead, and then goes on here.

    A prompt in the mode `busy` may fail with AgentError(cause="connection_lost"): the node of its session was lost
    after it had got the prompt, and the outcome is unknown.
    """

    def __init__(self, runtime: Runtime, tokens: NodeTokens, peers: Peers) -> None:
        super().__init__(runtime)
        self.tokens = tokens
        self._peers = peers
        self._own = OwnSessions(runtime)
        registry = runtime.supervisor.registry
        self.fanout: Fanout = Fanout(peers.tasks, self.store, registry.read_log, registry.last_stored)

        runtime.supervisor.inboxes.on_elsewhere = lambda session_id: peers.tasks.start_soon(self._hint, session_id)

    async def _hint(self, session_id: str) -> None:
        """Let the node of a session look into its inbox at once. If it is not reached, it looks there by itself."""
        with suppress(WarrenError):
            store = await self.store()
            holder = await store.read(SessionHolder(session_id, ANY_TENANT))
            if holder is None or not _is_other(holder, store):
                return
            record = await store.read(SessionRow(session_id, ANY_TENANT))
            if record is not None:  # on behalf of its tenant: for any other one the node does not have it
                of_tenant = Principal(record.tenant, NODE, frozenset({"session:read"}))
                await self._peers.service(holder).as_(of_tenant).inputs(session_id)

    @property
    def own(self) -> OwnSessions:
        """See NodeService."""
        return self._own

    def remote(self, node: Node) -> RemoteService:
        """Return the client of another node, on behalf of the principal."""
        return self._peers.service(node).as_(self.principal)

    @property
    def is_first(self) -> bool:
        """See NodeService."""
        node = self._supervisor.shared.config.node
        return node is None or node.worker in (None, 1)

    @property
    def number(self) -> int | None:
        """See NodeService."""
        return self.tokens.key

    async def pass_on(self, number: int, scope: "Scope", receive: "Receive", send: "Send") -> bool:
        """See NodeService."""
        store = await self.store()
        for node in await store.read(LivingNodes()):
            if node.key == number and _is_other(node, store):
                return await self._peers.passing(node, scope["path"]).run(scope, receive, send)
        return False

    def proof_for(self, token: str) -> str | None:
        """See NodeService."""
        return self.tokens.proof(token) if self.tokens.accepts(token) else None

    async def health_of_group(self) -> Health:
        """See NodeService."""
        others = await self._ask_group(RemoteService.health)
        return self.health() if others is None else together(self.health(), others)

    async def metrics_of_group(self, own: Metrics) -> Metrics:
        """See NodeService."""
        others = await self._ask_group(RemoteService.metrics)
        return own if others is None else by_worker([own, *(each for each in others if each is not None)])

    async def load_of_nodes(self) -> History:
        """See NodeService."""
        own = self._local.load_for_nodes()
        others = await self._ask_each(RemoteService.load, lambda _: True)
        return added([own, *(each for each in others if each is not None)])

    async def _ask_group(self, ask: Callable[[RemoteService], Awaitable[T]]) -> Sequence[T | None] | None:
        """Return the answers of the other nodes of this one's group; None without a group."""
        node = self._supervisor.shared.storage.node
        if node is None or node.group is None:
            return None
        group = node.group
        return await self._ask_each(ask, lambda other: other.group == group)

    async def _ask_each(
        self, ask: Callable[[RemoteService], Awaitable[T]], wanted: Callable[[Node], bool]
    ) -> Sequence[T | None]:
        """Return the answers of other nodes that are wanted, None for each that gives none in time."""
        found: list[T | None] = []

        async def put_to(other: Node) -> None:
            answer = None
            with trio.move_on_after(HEALTH_TIMEOUT), suppress(WarrenError):
                answer = await ask(self.remote(other))
            found.append(answer)

        with suppress(StoreError):  # the own health says so
            store = await self.store()
            others = [each for each in await store.read(LivingNodes()) if wanted(each) and each.key != store.key]
            async with trio.open_nursery() as nursery:
                for other in others:
                    nursery.start_soon(put_to, other)
        return found

    async def asked_to_drain(self) -> None:
        """See NodeService."""
        node = self._supervisor.shared.storage.node
        if node is None:
            await trio.sleep_forever()
        else:
            await node.asked.wait()

    async def perform(self, call: Call[T]) -> T:
        """See Performer. The rows of sessions at other nodes name these."""
        result = await super().perform(call)
        return cast("T", await self._named(result)) if isinstance(result, SessionPage) else result

    async def _create(self, call: SessionCall) -> TurnResult:
        """Create a session. If this node takes no more work, the less loaded of two others does it."""
        objects = call.compactor is not None or any(isinstance(each, Tool) for each in call.tools or ())
        node = None if objects else await self._better_place()
        made = node is not None and call.idempotency_key is None
        if node is not None:
            call = attrs.evolve(call, idempotency_key=call.idempotency_key or new_key())
            try:
                return await self._run(self._passed_on_to(node), call)
            except WarrenError as exc:
                if not _is_passing(exc):
                    if made:
                        exc.forget_key()
                    raise
        try:
            return await self._local.perform(call)
        except LeasedError as exc:
            if call.idempotency_key is None or exc.session_id is None:
                raise
            session_id = exc.session_id  # of an earlier call with this key: its node runs the first turn
        return await self._at(session_id, lambda place: self._run(place, call))

    async def _at(self, session_id: str, call: PlaceCall[T], *, begins: bool = False, stored: bool = False) -> T:
        self._supervisor.check_loop()
        pauses, deadline = iter(BACKOFF), math.inf
        while True:
            node = await self._elsewhere(session_id)
            placed = node is None and begins and not self._is_here(session_id)
            if placed:
                node = await self._better_place()
            try:
                return await call(self._local if node is None else self._passed_on_to(node))
            except WarrenError as exc:
                if not (_is_passing(exc) if node is not None else await self._is_leased(exc)):
                    raise
                refusal, problem = leased(session_id, node.name) if node is not None else exc, exc.message
                if node is not None and exc.details.get("status") == OTHER_VERSION:
                    refusal, deadline = other_version(session_id, node), -math.inf
            if stored or (placed and node is not None):
                return await call(self._local)
            now = trio.current_time()
            deadline = min(deadline, now + (await self.store()).lease + MARGIN)
            if now >= deadline:
                if node is not None:
                    logger.warning("node %s cannot be called: %s", node.name, problem)
                raise refusal
            await trio.sleep(next(pauses))

    def _passed_on_to(self, node: Node) -> RemoteService:
        """Return the client of another node, for a call that is counted."""
        self._supervisor.shared.counters.forwarded += 1
        return self.remote(node)

    async def _is_leased(self, error: WarrenError) -> bool:
        """Return whether a call has failed here because another node has taken the session meanwhile."""
        return (
            isinstance(error, LeasedError)
            and error.session_id is not None
            and await self._elsewhere(error.session_id) is not None
        )

    async def _better_place(self) -> Node | None:
        """Return the node that is to take new work; None if that is this one, also if all others are full."""
        if not self._supervisor.scheduler.restricted or self._supervisor.stopping:
            return None
        store = await self.store()
        others = [
            node
            for node in await store.read(LivingNodes())
            if node.key != store.key and node.address is not None and not (node.draining or node.load.full)
        ]
        two = random.sample(others, min(2, len(others)))
        return min(two, key=lambda node: node.load.running_turns, default=None)

    async def _named(self, page: SessionPage) -> SessionPage:
        """Return a page of the list of sessions; its rows name the nodes that have the sessions."""
        elsewhere = {row.session_id for row in page.sessions if row.lifecycle == "stored"}
        store = await self.store()
        nodes = (
            {node.key: node.name for node in await store.read(LivingNodes()) if _is_other(node, store)}
            if elsewhere
            else {}
        )
        held = await store.read(Holders(elsewhere)) if nodes else {}
        at = {session_id: nodes.get(found.holder) for session_id, found in held.items() if found.holder is not None}
        rows = (attrs.evolve(row, node=at.get(row.session_id, row.node)) for row in page.sessions)
        return attrs.evolve(page, sessions=tuple(rows)) if at else page

    async def _follow_at(self, place: Place, session_id: str, after_seq: int | None) -> EventReader:
        if isinstance(place, RemoteService):
            made(SubscribeRequest, session_id, after_seq=after_seq)
            return await self.fanout.follow(place, session_id, after_seq, self._local.place)
        return await place.follow(session_id, after_seq=after_seq)

    async def _again(self, session_id: str, cursor: int) -> Continuation | None:
        if self._supervisor.stopping or await session_over(self, session_id):
            return None
        reader = await self._follow(session_id, cursor)
        try:
            wanted = LostEvents(session_id, self.principal.tenant, cursor) if cursor else None
            lost = None if wanted is None else await (await self.store()).read(wanted)
        except BaseException:
            reader.close()
            raise
        return Continuation(reader, SessionMoved(lost.first, cursor) if lost is not None and lost.final else None)

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[Watch]:
        """See SessionService. Each node tells of its own sessions."""
        async with super().watch(labels=labels, include_archived=include_archived) as watch:
            scope = trio.CancelScope()
            self._peers.tasks.start_soon(self._watch_others, watch, scope)
            try:
                yield watch
            finally:
                scope.cancel()

    async def _watch_others(self, watch: Watch, scope: trio.CancelScope) -> None:
        """Watch the other nodes for a watcher: those of now, and those that come."""
        watched = set[int]()
        with scope:
            async with trio.open_nursery() as nursery:
                while True:
                    with suppress(StoreError):  # the next look finds the same
                        store = await self.store()
                        for node in await store.read(LivingNodes()):
                            if _is_other(node, store) and node.key not in watched:
                                watched.add(node.key)
                                nursery.start_soon(self._watch_at, node, watch, watched)
                    await trio.sleep(LOOK)

    async def _watch_at(self, node: Node, watch: Watch, watched: set[int]) -> None:
        """Watch another node for a watcher, until the node ends or cannot be reached."""
        begun, running = False, dict[str, SessionSummary]()
        wanted = watch.wanted
        try:
            async with self.remote(node).watch(
                labels=wanted.labels, include_archived=wanted.include_archived
            ) as reader:
                begun = True
                watch.miss()  # of what came before
                async for changes in reader:
                    watch.merge(changes)
                    for row in changes.sessions:
                        if row.is_active:
                            running[row.session_id] = row
                        else:
                            running.pop(row.session_id, None)
        except WarrenError as exc:
            logger.info("the sessions of node %s are no longer watched: %s", node.name, exc)
        finally:
            watched.discard(node.key)
            for session_id, row in running.items():
                last = attrs.evolve(row, is_active=False, pending_approvals=0, lifecycle="stored")
                watch.changed(session_id, last, leaves=False)
            if begun:
                watch.miss()

    async def look_loop(self) -> None:
        """Notice in the store that nodes are gone and that sessions have moved, for ever."""
        while True:
            await trio.sleep(LOOK)
            with suppress(StoreError):  # the next look finds the same
                await self.look(await self.store())

    async def look(self, store: "Store") -> None:
        """Let the readers of sessions that have left this process find them again."""
        if self.tokens.key != store.key:  # also after the store has gone back, which may have another secret
            self.tokens.secret = await store.secret()
            self.tokens.key = store.key
        nodes = await store.read(LivingNodes())
        self._peers.forget_others({node.key for node in nodes})
        elsewhere = {node.key for node in nodes if node.key != store.key and node.address is not None}
        readers = [*self._followed_here(), *self._own._followed_here()]  # noqa: SLF001 - the two are one node
        followed = {*(each.session_id for each in readers), *self.fanout.sessions}
        held = await store.read(Holders(followed)) if followed else {}
        self.fanout.stored(held)
        alone = [each for each in self._readers if isinstance(each.upstream, RemoteReader) and each.upstream.subscribed]
        several = Counter(each.session_id for each in alone)
        for reader in alone:  # those that can go on with the others do so
            session_id = reader.session_id
            join = several[session_id] > 1 and session_id not in self.fanout.sessions
            if join or self.fanout.covers(session_id, reader.cursor):
                reader.leave()
        for reader in readers:
            found = held.get(reader.session_id)
            if found is not None and found.holder in elsewhere and not self._has_current(reader.session_id):
                reader.leave()

    def end(self) -> None:
        """End all subscriptions, and tell other nodes of inputs no more."""
        self._supervisor.inboxes.on_elsewhere = _tell_nobody
        self._end_readers()
        self._own._end_readers()  # noqa: SLF001 - the two are one node


@contextmanager
def _not_owned(session_id: str | None = None) -> Iterator[None]:
    """Turn the error for a session of another process into the one that lets the caller look it up again."""
    try:
        yield
    except LeasedError as exc:
        raise not_owner(exc.session_id or session_id, exc.details.get("holder")) from None


def _is_other(holder: Node | None, store: "Store") -> bool:
    """Return whether the process that has a session is another node, which can be called."""
    return holder is not None and holder.key != store.key and holder.address is not None


def not_owner(session_id: str | None, holder: str | None) -> AgentError:
    """Return the error of a node for a session that it does not have and does not take."""
    return AgentError(
        f"this node does not have the session: {'ask any node' if holder is None else f'it is at {holder}'}",
        session_id=session_id,
        cause="not_owner",
        retryable=True,
        details={} if holder is None else {"holder": holder},
    )


def _tell_nobody(_session_id: str) -> None:
    """Leave an input to the node of its session, which finds it."""


def other_version(session_id: str, node: Node) -> AgentError:
    """Return the error for a session of a node that this one cannot talk to."""
    problem = (
        f"the session is at node {node.name} of release {node.release}, whose links this release does not speak: "
        "ask that node, or drain it"
    )
    return AgentError(problem, session_id=session_id, cause="unreachable", retryable=True)


def _is_passing(error: WarrenError) -> bool:
    """Return whether an error of another node says that the call has to look for the session again."""
    if not isinstance(error, AgentError):
        return False
    never_begun = error.cause == "shutting_down" and "first_seq" not in error.details
    return error.cause in ("not_owner", "unreachable") or never_begun


def new_key() -> str:
    """Return an idempotency key that nobody else uses."""
    return secrets.token_urlsafe(16)


@asynccontextmanager
async def clustered(runtime: Runtime, links: Callable[..., Peers] = Peers) -> AsyncIterator[ClusterService]:
    """Open the service of a node for a body; `links` makes the clients of the other nodes.

    Raises StoreError if the store cannot be read.
    """
    storage = runtime.supervisor.shared.storage
    store = await storage.reader()
    tokens = NodeTokens(await store.secret(), store.key, "" if storage.node is None else storage.node.name)
    async with supervised_nursery() as nursery:
        peers = links(tokens, runtime.service.capabilities(), nursery, store.lease)
        service = ClusterService(runtime, tokens, peers)
        nursery.start_soon(service.look_loop)
        try:
            yield service
        finally:
            service.end()
            await peers.aclose()
            nursery.cancel_scope.cancel()
