"""`Placed`: the sessions of all nodes that share a store, each call where its facts say."""

import logging
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs
import trio

from warren.actors.calls.handlers.turns import approvals
from warren.actors.calls.history import added
from warren.actors.calls.local import OfSession
from warren.actors.events.eventlog import utc_now
from warren.actors.events.watching import Watch
from warren.actors.runtime import Runtime
from warren.actors.supervision import supervised_nursery
from warren.base.backoff import Backoff
from warren.base.errors import AgentError, LeasedError, StoreError, WarrenError
from warren.base.nodes import Node
from warren.base.principals import Principal
from warren.base.values import define
from warren.calls.base import MAX_PAGE, Call, made
from warren.calls.facade import Health
from warren.calls.reading import SubscribeRequest
from warren.calls.streams import EventReader
from warren.calls.turns import ApprovalsRequest, ContextRequest, SessionCall, TurnCall, WaitRequest
from warren.conversation.events import Envelope, SessionMoved
from warren.conversation.views import ApprovalPage, SessionPage, TurnResult
from warren.models.tools import Tool
from warren.reports.metrics import History, Metrics
from warren.storage.queries import ANY_TENANT, Holders, LivingNodes, LostEvents, SessionHolder, SessionRow
from warren.storage.refusals import leased
from warren.transport.client.connection import OTHER_VERSION
from warren.transport.client.service import RemoteService, new_key
from warren.transport.cluster.door import NodeService
from warren.transport.cluster.fanout import Fanout
from warren.transport.cluster.health import by_worker, together
from warren.transport.cluster.own import NodeSessions, OwnSessions, is_other
from warren.transport.cluster.peers import Peers
from warren.transport.cluster.token import NodeTokens
from warren.transport.cluster.watching import LOOK, OtherWatches
from warren.transport.rpc.feeds import session_over

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from warren.storage.store import Store

T = TypeVar("T")
HEALTH_TIMEOUT: Final = 1.0
"""Seconds within which a node has to answer for its health and its metrics."""
NODE: Final = "node"
"""The name of the caller when a node calls another one for itself."""
BACKOFF: Final = Backoff(first=0.02, longest=0.5, jitter=0.5)
"""The waits before a session is looked up again."""
MARGIN: Final = 1.0
"""Seconds beyond a lease for which a call waits for the session of a node that cannot be reached."""
logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Placed(NodeSessions, NodeService):
    """The sessions of a cluster, at one of its nodes. `clustered` makes it.

    It is in front of the runtime of this process, and keeps the promises of `SessionService` for every session of the
    store. A session that another node has is not taken from it: the call is passed on, once. If that node cannot be
    reached, the call waits until the store counts it as dead, and then goes on here.

    A prompt in the mode `busy` may fail with AgentError(cause="connection_lost"): the node of its session was lost
    after it had got the prompt, and the outcome is unknown.

    Attributes:
        tokens: those that nodes show each other.
        links: the clients of the other nodes.
        own: see NodeService.
        fanout: the sessions of other nodes that are followed here.
    """

    tokens: NodeTokens = attrs.field(kw_only=True)
    links: Peers = attrs.field(kw_only=True)
    own: OwnSessions = attrs.field(kw_only=True)
    fanout: Fanout = attrs.field(kw_only=True)

    # -- calls

    async def perform(self, call: Call[T]) -> T:
        """Carry a call out where its facts say. The scope is checked before the store is asked where the session is."""
        facts = call.facts
        if isinstance(call, ApprovalsRequest) and self.allows(call):
            return cast("T", await self._approvals(call))
        if facts.at == "here" or not self.allows(call):  # a call that is not allowed is refused there, and noted
            result = await super().perform(call)
            return cast("T", await self._named(result)) if isinstance(result, SessionPage) else result
        if isinstance(call, SessionCall):
            return cast("T", await self._create(call))
        sent, session_id = call, cast("OfSession", call).session_id
        if _is_taken_twice(call) and not self.is_here(session_id):
            sent = attrs.evolve(cast("Any", call), idempotency_key=new_key())  # taken once, whoever gets it
        try:
            stored = facts.at == "session or store"
            begins = facts.begins or isinstance(call, WaitRequest)  # the turn that it waits for begins where it waits
            return await self._at(session_id, lambda node: self._run(node, sent), begins=begins, stored=stored)
        except WarrenError as exc:
            if sent is not call:
                exc.forget_key()
            raise

    async def _run(self, node: Node | None, call: Call[T]) -> T:
        """Carry a call out at another node, or here; the events of a turn come with its answers."""
        if node is None:
            return await super().perform(call)
        self.supervisor.shared.counters.forwarded += 1
        remote = self.remote(node)
        if not isinstance(call, SessionCall | TurnCall) or call.on_begin is None:
            return await remote.perform(call)
        begin = call.on_begin
        turn = attrs.evolve(call, on_begin=lambda reader: begin(self.reading(reader)))
        return cast("T", await remote.perform(turn))

    async def _create(self, call: SessionCall) -> TurnResult:
        """Create a session. If this node takes no more work, the less loaded of two others does it."""
        objects = (
            call.compactor is not None or bool(call.hooks) or any(isinstance(each, Tool) for each in call.tools or ())
        )
        node = None if objects else await self._better_place()
        made = node is not None and call.idempotency_key is None
        if node is not None:
            call = attrs.evolve(call, idempotency_key=call.idempotency_key or new_key())
            try:
                return await self._run(node, call)
            except WarrenError as exc:
                if not _is_passing(exc):
                    if made:
                        exc.forget_key()
                    raise
        try:
            return await self._run(None, call)
        except LeasedError as exc:
            if call.idempotency_key is None or exc.session_id is None:
                raise
            session_id = exc.session_id  # of an earlier call with this key: its node runs the first turn
        return await self._at(session_id, lambda node: self._run(node, call))

    async def _at(
        self, session_id: str, run: Callable[[Node | None], Awaitable[T]], *, begins: bool = False, stored: bool = False
    ) -> T:
        """Run something at the node that has a session; None is this one.

        Args:
            session_id: the session.
            run: what is run.
            begins: whether it begins work, which a node that is about to end does not take.
            stored: whether the store knows enough if that node cannot be reached.
        """
        self.supervisor.check_loop()
        pauses, deadline = iter(BACKOFF), math.inf
        while True:
            node = await self.elsewhere(session_id)
            placed = node is None and begins and not self.is_here(session_id)
            if placed:
                node = await self._better_place()
            try:
                return await run(node)
            except WarrenError as exc:
                if not (_is_passing(exc) if node is not None else await self._is_leased(exc)):
                    raise
                refusal, problem = leased(session_id, node.name) if node is not None else exc, exc.message
                if node is not None and exc.details.get("status") == OTHER_VERSION:
                    refusal, deadline = other_version(session_id, node), -math.inf
            if stored or (placed and node is not None):
                return await run(None)
            now = trio.current_time()
            deadline = min(deadline, now + (await self.store()).lease + MARGIN)
            if now >= deadline:
                if node is not None:
                    logger.warning("node %s cannot be called: %s", node.name, problem)
                raise refusal
            await trio.sleep(next(pauses))

    async def _approvals(self, call: ApprovalsRequest) -> ApprovalPage:
        """List the tool calls that wait for approval; those that a node has in memory alone come from there."""
        self.supervisor.check_loop()
        ask = partial(RemoteService.approvals, limit=MAX_PAGE)
        others = await self._ask_each(ask, lambda other: other.address is not None)
        return await approvals(self.local, call, [row for page in others if page is not None for row in page.approvals])

    async def _is_leased(self, error: WarrenError) -> bool:
        """Return whether a call has failed here because another node has taken the session meanwhile."""
        return (
            isinstance(error, LeasedError)
            and error.session_id is not None
            and await self.elsewhere(error.session_id) is not None
        )

    async def _better_place(self) -> Node | None:
        """Return the node for new work; None for this one, and if all others are full."""
        if not self.supervisor.scheduler.restricted or self.supervisor.stopping:
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
            {node.key: node.name for node in await store.read(LivingNodes()) if is_other(node, store)}
            if elsewhere
            else {}
        )
        held = await store.read(Holders(elsewhere)) if nodes else {}
        at = {session_id: nodes.get(found.holder) for session_id, found in held.items() if found.holder is not None}
        rows = (attrs.evolve(row, node=at.get(row.session_id, row.node)) for row in page.sessions)
        return attrs.evolve(page, sessions=tuple(rows)) if at else page

    # -- events and changes

    async def followed(self, session_id: str, after_seq: int | None) -> EventReader:
        async def follow(node: Node | None) -> EventReader:
            if node is None:
                return await self.follow(session_id, after_seq=after_seq)
            self.supervisor.shared.counters.forwarded += 1
            made(SubscribeRequest, session_id, after_seq=after_seq)
            return await self.fanout.follow(self.remote(node), session_id, after_seq, self.place)

        return await self._at(session_id, follow)

    async def again(self, session_id: str, cursor: int) -> EventReader | None:
        if self.supervisor.stopping or await session_over(self, session_id):
            return None
        reader = await self.followed(session_id, cursor)
        try:
            wanted = LostEvents(session_id, self.principal.tenant, cursor) if cursor else None
            lost = None if wanted is None else await (await self.store()).read(wanted)
        except BaseException:
            reader.close()
            raise
        if lost is not None and lost.final:
            reader.show_first(Envelope(session_id, cursor, utc_now(), SessionMoved(lost.first, cursor)))
        return reader

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[Watch]:
        """Watch the sessions of all nodes: each node tells of its own."""
        async with super().watch(labels=labels, include_archived=include_archived) as watch:
            scope = trio.CancelScope()
            self.links.tasks.start_soon(OtherWatches(self, self.remote, watch).run, scope)
            try:
                yield watch
            finally:
                scope.cancel()

    # -- the other nodes

    async def hint(self, session_id: str) -> None:
        """Let the node of a session look into its inbox at once. If it is not reached, it looks there by itself."""
        with suppress(WarrenError):
            store = await self.store()
            holder = await store.read(SessionHolder(session_id, ANY_TENANT))
            if holder is None or not is_other(holder, store):
                return
            record = await store.read(SessionRow(session_id, ANY_TENANT))
            if record is not None:  # on behalf of its tenant: for any other one the node does not have it
                of_tenant = Principal(record.tenant, NODE, frozenset({"session:read"}))
                await self.links.service(holder).as_(of_tenant).inputs(session_id)

    def remote(self, node: Node) -> RemoteService:
        """Return the client of another node, on behalf of the principal."""
        return self.links.service(node).as_(self.principal)

    @property
    def is_first(self) -> bool:
        node = self.supervisor.shared.config.node
        return node is None or node.worker in (None, 1)

    @property
    def number(self) -> int | None:
        return self.tokens.key

    async def pass_on(self, number: int, scope: "Scope", receive: "Receive", send: "Send") -> bool:
        store = await self.store()
        for node in await store.read(LivingNodes()):
            if node.key == number and is_other(node, store):
                return await self.links.passing(node, scope["path"]).run(scope, receive, send)
        return False

    def proof_for(self, token: str) -> str | None:
        return self.tokens.proof(token) if self.tokens.accepts(token) else None

    async def health_of_group(self) -> Health:
        others = await self._ask_group(RemoteService.health)
        return self.health() if others is None else together(self.health(), others)

    async def metrics_of_group(self, own: Metrics) -> Metrics:
        others = await self._ask_group(RemoteService.metrics)
        return own if others is None else by_worker([own, *(each for each in others if each is not None)])

    async def load_of_nodes(self) -> History:
        own = self.load_for_nodes()
        others = await self._ask_each(RemoteService.load, lambda _: True)
        return added([own, *(each for each in others if each is not None)])

    async def _ask_group(self, ask: Callable[[RemoteService], Awaitable[T]]) -> Sequence[T | None] | None:
        """Return the answers of the other nodes of this one's group; None without a group."""
        node = self.supervisor.shared.storage.node
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
        node = self.supervisor.shared.storage.node
        if node is None:
            await trio.sleep_forever()
        else:
            await node.asked.wait()

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
        self.links.forget_others({node.key for node in nodes})
        elsewhere = {node.key for node in nodes if node.key != store.key and node.address is not None}
        left = [*self.left_behind(), *self.own.left_behind()]
        followed = {*(each.session_id for each in left), *self.fanout.sessions}
        held = await store.read(Holders(followed)) if followed else {}
        self.fanout.stored(held)
        alone = [each for each in self.moving if each.is_alone]
        several = Counter(each.session_id for each in alone)
        for log in alone:  # those that can go on with the others do so
            session_id = log.session_id
            join = several[session_id] > 1 and session_id not in self.fanout.sessions
            if join or self.fanout.covers(session_id, log.reader.cursor):
                log.find_again()
        for log in left:
            found = held.get(log.session_id)
            if found is not None and found.holder in elsewhere and not self.supervisor.has_current(log.session_id):
                log.find_again()

    def end(self) -> None:
        """End all subscriptions, and tell other nodes of inputs no more."""
        self.supervisor.inboxes.on_elsewhere = _tell_nobody
        self.end_readers()
        self.own.end_readers()


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
    never_begun = error.cause == "shutting_down" and not error.begun
    return error.cause in ("not_owner", "unreachable") or never_begun


def _is_taken_twice(call: Call[Any]) -> bool:
    """Return whether a call would have its effect once more if it were sent again."""
    if isinstance(call, TurnCall):
        return call.mode != "busy" and call.idempotency_key is None
    return isinstance(call, ContextRequest) and call.idempotency_key is None


@asynccontextmanager
async def clustered(runtime: Runtime, links: Callable[..., Peers] = Peers) -> AsyncIterator[Placed]:
    """Open the service of a node for a body; `links` makes the clients of the other nodes.

    Raises StoreError if the store cannot be read.
    """
    storage = runtime.supervisor.shared.storage
    store = await storage.reader()
    tokens = NodeTokens(await store.secret(), store.key, "" if storage.node is None else storage.node.name)
    async with supervised_nursery() as nursery:
        peers = links(tokens, runtime.service.capabilities(), nursery, store.lease)
        registry, inboxes = runtime.supervisor.registry, runtime.supervisor.inboxes
        fanout = Fanout(nursery, storage.reader, registry.read_log, registry.last_stored)
        own = OwnSessions.over(runtime.service)
        service = Placed.over(runtime.service, tokens=tokens, links=peers, own=own, fanout=fanout)
        inboxes.on_elsewhere = lambda session_id: nursery.start_soon(service.hint, session_id)
        nursery.start_soon(service.look_loop)
        try:
            yield service
        finally:
            service.end()
            await peers.aclose()
            nursery.cancel_scope.cancel()
