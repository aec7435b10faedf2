"""The sessions of this process, as a node of a cluster sees them: for its own clients, and for other nodes."""

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import attrs
import trio

from warren.actors.calls.handlers.turns import in_memory
from warren.actors.calls.local import OfSession
from warren.actors.calls.service import Service
from warren.actors.events.eventlog import EventLog
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.end_budget import EndBudget
from warren.base.errors import AgentError, LeasedError
from warren.base.nodes import Node
from warren.base.principals import READ, check_right
from warren.base.values import define
from warren.calls.base import Call
from warren.calls.streams import EventReader
from warren.calls.turns import ApprovalsRequest, InputsRequest
from warren.conversation.views import ApprovalPage
from warren.reports.metrics import History
from warren.storage.queries import ANY_TENANT, SessionHolder, WaitingInputs
from warren.transport.cluster.fanout import ForeignLog
from warren.transport.cluster.moving import MovingLog

if TYPE_CHECKING:
    from warren.storage.store import Store

R = TypeVar("R")


@define(eq=False)
class NodeSessions(Service):
    """The service of a process that shares its store with others: it knows which sessions these have.

    Attributes:
        moving: the logs of subscriptions, which stay with their sessions wherever these go.
    """

    moving: set[MovingLog] = attrs.field(factory=set, kw_only=True)

    @classmethod
    def over(cls, service: Service, **others: Any) -> Self:
        """Return the node's service over that of its process, with fields of its own."""
        fields = {each.alias or each.name: getattr(service, each.name) for each in attrs.fields(Service) if each.init}
        return cls(**fields, **others)

    # -- whose a session is

    @property
    def supervisor(self) -> Supervisor:
        """The actors of this process."""
        return self.local.supervisor

    def is_here(self, session_id: str) -> bool:
        """Return whether this process has a session of the tenant, and need not ask the store to know it."""
        return self.supervisor.has_current(session_id) and self.local.has_live(session_id)

    async def store(self) -> "Store":
        """Return the store that the nodes share. Raises StoreError(cause="closed") at the end of the runtime."""
        return await self.supervisor.shared.storage.reader()

    async def elsewhere(self, session_id: str) -> Node | None:
        """Return the node that has a session of the tenant, if that is another one, which can be called."""
        if self.is_here(session_id) or self.supervisor.stopping:
            return None
        store = await self.store()
        holder = await store.read(SessionHolder(session_id, self.principal.tenant))
        return holder if is_other(holder, store) and not self.supervisor.stopping else None

    # -- events

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        check_right(self.principal, READ)
        reader = self.reading(await self.followed(session_id, after_seq))
        try:
            yield reader
        finally:
            reader.close()

    async def followed(self, session_id: str, after_seq: int | None) -> EventReader:
        """Return the reader of a subscription at the node that has the session."""
        raise NotImplementedError

    async def again(self, session_id: str, cursor: int) -> EventReader | None:
        """Follow a session once more; see `MovingLog`."""
        raise NotImplementedError

    def reading(self, upstream: EventReader) -> EventReader:
        """Return a reader that goes on at the place of another one, and stays with the session."""
        session_id = upstream.session_id
        log = MovingLog(session_id, upstream.cursor, partial(self.again, session_id), self.moving.discard, upstream)
        self.moving.add(log)
        return log.reader

    def left_behind(self) -> Sequence[MovingLog]:
        """Return those that read a log of this process, and whose sessions another process may have by now."""
        if self.supervisor.stopping:
            return []
        return [
            each
            for each in self.moving
            if each.upstream is not None
            and isinstance(each.upstream.log, EventLog)
            and not isinstance(each.upstream.log, ForeignLog)
            and not self.supervisor.has_current(each.session_id)
        ]

    def end_readers(self) -> None:
        """End all subscriptions."""
        for log in tuple(self.moving):
            log.end()

    async def stop(self, budget: EndBudget | None = None) -> None:
        await super().stop(budget)
        self.end_readers()


@define(eq=False)
class OwnSessions(NodeSessions):
    """The sessions of this node for other nodes. No call is passed on: one that is not for this node is refused."""

    async def perform(self, call: Call[R]) -> R:
        """Perform a call on a session of this node; a read of its inputs first takes in those from the store."""
        facts = call.facts
        if isinstance(call, ApprovalsRequest) and self.allows(call):  # the other node reads the store itself
            await trio.lowlevel.checkpoint()
            return cast("R", ApprovalPage(tuple(itertools.islice(in_memory(self.local), call.limit))))
        if facts.at == "here" or not self.allows(call):  # a call that is not allowed is refused there, and noted
            return await super().perform(call)
        session_id = None if facts.at == "any node" else cast("OfSession", call).session_id
        await self._check_place(session_id, begins=facts.begins)
        # A session of another tenant is told nothing.
        if isinstance(call, InputsRequest) and self.is_here(call.session_id):
            for each in await (await self.store()).read(WaitingInputs(call.session_id, ANY_TENANT)):
                self.supervisor.inboxes.found(call.session_id, each)
        with _not_owned(session_id):
            return await super().perform(call)

    async def followed(self, session_id: str, after_seq: int | None) -> EventReader:
        await self._check_place(session_id, begins=False)
        with _not_owned(session_id):
            return await self.follow(session_id, after_seq=after_seq)

    async def _check_place(self, session_id: str | None, *, begins: bool) -> None:
        """Raise AgentError(cause="not_owner") if another node has a session, or this one takes no more work."""
        holder = None if session_id is None else await self.elsewhere(session_id)
        if holder is not None:
            raise not_owner(session_id, holder.name)
        if begins and self.supervisor.scheduler.closed:
            raise not_owner(session_id, None)

    def load(self) -> History:
        """Return the load with its buckets: another node adds it to its own."""
        return self.load_for_nodes()

    async def again(self, session_id: str, cursor: int) -> EventReader | None:
        """Return None: the other node finds the session again itself."""
        del session_id, cursor
        await trio.lowlevel.checkpoint()
        return None


@contextmanager
def _not_owned(session_id: str | None = None) -> Iterator[None]:
    """Turn the error for a session of another process into the one that lets the caller look it up again."""
    try:
        yield
    except LeasedError as exc:
        raise not_owner(exc.session_id or session_id, exc.details.get("holder")) from None


def is_other(holder: Node | None, store: "Store") -> bool:
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
