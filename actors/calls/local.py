"""The runtime of this process for one caller: what the handlers of calls work with."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self, TypeVar

import attrs
import trio

from warren.actors.calls.checking import StoreChecks
from warren.actors.limits.limiter import FOR_TURN
from warren.actors.limits.tenancy import Acceptance, Accounts
from warren.actors.protocol import Loaded, StartTurn
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.errors import PersistenceDisabledError, SessionNotFoundError, SessionNotRunningError, WarrenError
from warren.base.principals import LOCAL, Principal
from warren.base.values import define
from warren.calls.base import Facts
from warren.calls.sessions import DeleteRequest, ResumeRequest
from warren.conversation.attachments import Blob
from warren.conversation.records import SessionRecord
from warren.conversation.views import (
    SessionSummary,
    SessionView,
    TurnState,
    TurnView,
    pending_approval,
    summary_of,
    turn_of,
    view_of,
)
from warren.conversation.waits import DECIDED, Wait
from warren.mailbox import Message
from warren.reports.audit import Action, AuditEntry
from warren.storage.queries import HasSession, Holders, InTurn, LivingNodes, OpenWaits, Query, SessionRow
from warren.storage.refusals import leased, not_found

if TYPE_CHECKING:
    from warren.actors.session.actor import SessionActor

R = TypeVar("R")
_ONLY_STORED: Final[Mapping[type, str]] = {
    ResumeRequest: "only sessions of this process can be resumed",
    DeleteRequest: "nothing is stored that could be deleted",
}


class OfSession(Protocol):
    """A call about one session."""

    facts: ClassVar[Facts]

    @property
    def session_id(self) -> str:
        """The session."""


class _Nobody:
    """Stands for a session that is not live: its record is nobody's."""

    tenant: Final = ""

    @property
    def record(self) -> Self:
        """The record."""
        return self


_NOBODY: Final = _Nobody()


@define(eq=False)
class Local:
    """The sessions of this process for one caller.

    Attributes:
        supervisor: the sessions' actors.
        principal: the caller.
        checks: examinations of the store, one for all callers.
        by: the accounts of the caller, which its turns and sessions count against.
        payer: the payer of its turns, see `Principal`.
    """

    supervisor: Supervisor
    principal: Principal = LOCAL
    checks: StoreChecks = attrs.field(factory=StoreChecks)
    by: Accounts = attrs.field(init=False)

    @by.default
    def _accounts(self) -> Accounts:
        return self.supervisor.shared.limiter.tenancy.of(self.principal)

    payer: str = attrs.field(default=attrs.Factory(lambda self: self.principal.payer, takes_self=True), init=False)

    # -- the sessions of the caller's tenant

    def has_live(self, session_id: str) -> bool:
        """Return whether a live session is known to be the tenant's. Never waits."""
        # As much work for a session that is not here as for one of another tenant: no caller can tell them apart.
        record = (self.supervisor.registry.find(session_id) or _NOBODY).record
        return record is not None and record.tenant == self.principal.tenant

    async def find_for(self, call: OfSession) -> None:
        """Raise SessionNotFoundError if the session of a call is not the tenant's, or there is none.

        Raises PersistenceDisabledError instead if only a store could have the session, and there is no store.
        """
        try:
            await self.find(call.session_id)
        except SessionNotFoundError:
            if call.facts.needs == "session-store" and not self.supervisor.shared.storage.durable:
                raise no_store(call) from None
            raise

    async def find(self, session_id: str) -> None:
        """Raise SessionNotFoundError if a session is not the tenant's, or there is none.

        A session that was deleted is found, so that it can be deleted again; all other calls refuse it.
        """
        self.supervisor.check_open()
        if not await self.read(HasSession(session_id, self.principal.tenant)):
            raise not_found(session_id)

    async def read(self, query: Query[R]) -> R:
        """Return the store's answer to a query."""
        return await self.supervisor.shared.storage.read(query)

    async def record(self, session_id: str) -> SessionRecord:
        """Return a session's record, loaded if need be."""
        return await self.supervisor.mailbox(session_id).ask(Loaded())

    async def running(self, session_id: str) -> "SessionActor":
        """Return the actor of a session.

        Raises SessionNotFoundError if there is no such session, LeasedError if another process has it, and
        SessionNotRunningError if nobody does and no turn was left open.
        """
        actor = self.supervisor.find(session_id)
        if actor is None:
            self.supervisor.check_open()
            record = await self.read(SessionRow(session_id, self.principal.tenant))
            if record is None:
                raise not_found(session_id)
            rival = await self.supervisor.shared.storage.rival(session_id)
            if rival is not None:
                raise leased(session_id, rival.name)
            if record.turn is None:
                raise SessionNotRunningError("the session runs no turn", session_id=session_id)
            actor = self.supervisor.revive(session_id)
        return actor

    # -- how a session is shown

    async def view(self, session_id: str) -> SessionView:
        """Return a session as of its last finished turn. Raises SessionNotFoundError."""
        self.supervisor.check_open()
        actor = self.supervisor.find(session_id)
        if actor is not None and actor.current:
            await trio.lowlevel.checkpoint()
            return actor.view()
        record = await self.read(SessionRow(session_id, self.principal.tenant))
        if record is None:
            raise not_found(session_id)
        return await self.stored_view(record)

    async def stored_view(self, record: SessionRecord) -> SessionView:
        """Return the view of a session whose record in the store is newer than the one in memory."""
        found: Mapping[str, Sequence[Wait]] = {}
        if self.supervisor.shared.storage.durable:
            found = await self.read(OpenWaits([record.session_id]))
        turn = (await self.open_turns([record], found)).get(record.session_id)
        waits = found.get(record.session_id, ())
        decided = waits if turn is not None and turn.state == "waiting" else ()
        pending = tuple(pending_approval(wait) for wait in decided if wait.reason in DECIDED)
        actor = self.supervisor.find(record.session_id)
        active = actor is not None and actor.turn_runs
        live = self.supervisor.is_live(actor)
        return view_of(record, live=live, active=active, pending=pending, turn=turn, waits=waits)

    async def open_turns(
        self, records: Iterable[SessionRecord], waits: Mapping[str, Sequence[Wait]] | None = None
    ) -> Mapping[str, TurnView]:
        """Return the turns of some sessions that are stored open. The store is asked only if there are any.

        Args:
            records: the sessions.
            waits: the waits that nobody has answered, by session, if they are known.
        """
        asked = {each.session_id: each for each in records if each.turn is not None}
        if not asked or not self.supervisor.shared.storage.durable:
            return {}
        store = await self.supervisor.shared.storage.reader()
        others = {node.key for node in await store.read(LivingNodes()) if node.key != store.key}
        held = await store.read(Holders(asked)) if others else {}
        runs = {session_id for session_id, each in held.items() if each.holder in others}
        if waits is None:
            waiting = [session_id for session_id, each in asked.items() if each.turn is not None and each.turn.wakes]
            waits = await store.read(OpenWaits(waiting)) if waiting else {}
        found = dict[str, TurnView]()
        for session_id, record in asked.items():
            actor = self.supervisor.find(session_id)
            active = actor is not None and actor.turn_runs
            turn = turn_of(record, waits.get(session_id, ()), runs=active or session_id in runs)
            if turn is not None:
                found[session_id] = turn
        return found

    def in_turn(self, state: TurnState) -> InTurn:
        """Return the filter of the sessions whose turns are in a state, here or in the store."""
        here, others = list[str](), list[str]()
        for handle in self.supervisor.registry:
            actor = handle.actor
            if actor is not None and actor.turn_runs:
                turn = actor.turn if actor.current else None
                found = "running" if not actor.current else None if turn is None else turn.state
                (here if found == state else others).append(actor.session_id)
        return InTurn(state, here, others)

    def summary(self, record: SessionRecord, turn: TurnView | None = None) -> SessionSummary:
        """Return the row of a session in the list; `turn` is its turn that is stored open, if known."""
        actor, node = self.supervisor.find(record.session_id), self.supervisor.shared.storage.node
        name = None if node is None else node.name
        if actor is not None and actor.current:
            return actor.summary(name)
        active = actor is not None and actor.turn_runs
        if turn is None:
            turn = turn_of(record, (), runs=active)
        calls = () if turn is None else turn.waiting_for
        pending = sum(each.reason in DECIDED for each in calls)
        live = self.supervisor.is_live(actor)
        return summary_of(record, live=live, active=active, pending=pending, node=name, turn=turn)

    # -- the audit

    def entry(self, action: Action, session_id: str | None = None, **details: str) -> AuditEntry:
        """Return the entry of an action of the caller, which is done now."""
        return self.supervisor.shared.auditor.entry(self.principal, action, session_id, **details)

    def drain_entry(self, name: str) -> AuditEntry:
        """Return the entry of a drain: nodes are of no tenant, so it is in the caller's own, wherever it works now."""
        tenant, who = self.principal.token
        return attrs.evolve(self.entry("drain", node=name), tenant=tenant, who=who, by="principal")

    def note(self, entry: AuditEntry) -> None:
        """Add an entry to the audit. Never waits."""
        self.supervisor.shared.auditor.note(entry)

    # -- turns

    async def turn(
        self,
        session_id: str,
        message: Message[R],
        accepted: Acceptance | None = None,
    ) -> R:
        """Have a session run a turn, or a compaction, and return its result.

        Args:
            session_id: the session.
            message: the message that begins the turn.
            accepted: the turn, if it was held against the limits of the caller already.
        """
        by = self.by
        if by and accepted is None:
            await self.supervisor.shared.limiter.look(by, FOR_TURN)
        try:
            reply = self.supervisor.admit(session_id, message, by, accepted)
        except WarrenError:
            await trio.lowlevel.checkpoint()  # a caller that retries in a loop would starve the turn it waits for
            raise
        begun = message.begun if isinstance(message, StartTurn) else None
        return await (reply.wait() if begun is None else begun.of(reply.wait()))

    async def check_room(self, blobs: Sequence[Blob]) -> None:
        """Raise CapacityExceededError if the caller has no room for files."""
        limiter, by = self.supervisor.shared.limiter, self.by
        if by and blobs:
            await limiter.look(by, ("stored_bytes",))
            limiter.tenancy.check_growth(by, _size_of(blobs))

    async def counted(self, blobs: Sequence[Blob], storing: Awaitable[R]) -> R:
        """Count files as stored while a call stores them; if it fails, they are counted anew, as they may not be."""
        figures = [account.figure("stored_bytes") for account in self.by]
        for figure in figures:
            figure.add(_size_of(blobs))
        try:
            return await storing
        except WarrenError:
            for figure in figures:
                figure.expire()
            raise


def no_store(call: OfSession) -> PersistenceDisabledError:
    """Return the error of a call that only a store could answer."""
    return PersistenceDisabledError(f"session persistence is disabled: {_ONLY_STORED[type(call)]}")


def _size_of(blobs: Sequence[Blob]) -> int:
    return sum(len(each.data) for each in blobs)
