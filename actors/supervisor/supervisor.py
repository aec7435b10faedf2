"""The supervisor: spawns, runs and stops one actor for each session; a crash stays with its session."""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import attrs
import trio

from warren.actors.events.watching import Watchers
from warren.actors.limits.tenancy import NOBODY, Acceptance, Accounts
from warren.actors.protocol import BeginNext, LeaveMemory, Loaded, Retire, Wake
from warren.actors.session.actor import SessionActor
from warren.actors.session.children import Children
from warren.actors.session.comms import Comms
from warren.actors.session.inboxes import Inboxes
from warren.actors.session.reminders import Reminders
from warren.actors.shared import NO_HOST_OBJECTS, HostObjects, Shared
from warren.actors.supervision import first_error
from warren.actors.supervisor.alarm import Alarm
from warren.actors.supervisor.registry import Handle, Registry
from warren.actors.supervisor.scheduler import Action, Begin, Decline, Evict, Recover, Scheduler, shutting_down
from warren.actors.turn.background import Origin
from warren.base.end_budget import EndBudget
from warren.base.errors import AgentError, SessionNotFoundError, WarrenError
from warren.base.fields import encodable
from warren.base.log_context import LogContext, working_for
from warren.base.nodes import NodeLoad
from warren.base.values import define
from warren.conversation.inputs import Input
from warren.conversation.records import SessionRecord
from warren.conversation.waits import Wait
from warren.mailbox import Mail, Mailbox, Message
from warren.models.tools import ToolError
from warren.reports.statistics import RuntimeStatistics
from warren.reports.tracing import here
from warren.storage.operations import Delegate, Lease, Sent
from warren.storage.refusals import went_back

R = TypeVar("R")
logger: Final = logging.getLogger("warren.supervisor")
TICK: Final = 0.01
"""Seconds at least between two looks for sessions that are idle for too long: they are evicted in groups."""
BeginActor = Callable[[SessionActor], Awaitable[None]]


@define(eq=False)
class Supervisor:
    """Runs the sessions' actors. The scheduler decides which of them work; this class acts on it.

    It is the `SessionHost` and the `Mailboxes` of its sessions.

    Attributes:
        shared: the resources that the sessions share.
        takes_up: whether the work in the store goes on here; if not, children are made, and left to other processes.
        stopping: whether the runtime ends: every new request is refused.
        registry: the sessions of this process, by id.
        scheduler: which sessions run turns and which leave memory.
        inboxes: the way into the inboxes of the sessions.
        comms: the messages between sessions.
        children: makes sessions that work for other sessions.
        watchers: the watches that are told of each changed session.
        parked_turns: the turns of the store that no process runs, as of the newest look at the store.
        waiting_turns: those of which all calls wait, as of the newest look for work, which is once in a lease.
        waking: tells when a suspended turn goes on by itself, or an input is due that has waited for its time.
        alarm: tells when a schedule is due.
        deliveries: tells when a delivery to a webhook is due.
        pending_deliveries: how many of them wait, by the newest count.
    """

    shared: Shared
    _nursery: trio.Nursery
    takes_up: bool = True
    stopping: bool = False
    registry: Registry = attrs.field(init=False)
    scheduler: Scheduler = attrs.field(init=False)
    inboxes: Inboxes = attrs.field(init=False)
    comms: Comms = attrs.field(init=False)
    children: Children = attrs.field(init=False)
    watchers: Watchers = attrs.field(factory=Watchers)
    parked_turns: int = 0
    waiting_turns: int = 0
    waking: Alarm = attrs.field(factory=Alarm)
    alarm: Alarm = attrs.field(factory=Alarm)
    deliveries: Alarm = attrs.field(factory=Alarm)
    pending_deliveries: int = 0
    _progress: trio.Event = attrs.field(factory=trio.Event)  # set when a turn ends after the last, or an actor ends
    _cut_off: bool = False
    _untold: dict[str, None] = attrs.field(factory=dict)  # sessions that are to be told of notices, in order
    _tells: bool = False  # whether a task tells them
    _paused: set[str] = attrs.field(factory=set)  # sessions whose inboxes have paused; some may have gone on since
    _loop: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)

    def __attrs_post_init__(self) -> None:
        limits, storage = self.shared.config.limits, self.shared.storage
        self.registry = Registry(storage, limits.event_log)
        limiter = self.shared.limiter
        self.scheduler = Scheduler(limits, storage.durable, limiter.tenancy)
        self.inboxes = Inboxes(self, storage, limits.inbox, limiter)
        self.comms = Comms(self.inboxes, storage, limits, Reminders(self.inboxes, storage, self._turn_of))
        of_all = self.shared, self.inboxes, self.comms
        self.children = Children(*of_all, self.scheduler.check_session, self._make_child, self.sent)
        self.comms.more, self.comms.of_agent = self.children.tools_of, self.children.tools_of_agent

    # -- for the service

    def check_loop(self) -> None:
        """Raise RuntimeError if the caller runs on another event loop than the sessions: a reply could not reach it."""
        try:
            right = trio.lowlevel.current_trio_token() is self._loop
        except RuntimeError:
            right = False
        if not right:
            raise RuntimeError(
                "the runtime was opened on another event loop: call it there, from a thread with "
                "trio.from_thread.run(..., trio_token=...); for a program on asyncio open it with "
                "warren.aio.open_supervisor"
            )

    def check_open(self) -> None:
        """Raise AgentError(cause="shutting_down") once the runtime ends."""
        if self.stopping:
            raise shutting_down()

    def find(self, session_id: str) -> SessionActor | None:
        """Return the live session's actor; it may still be loading."""
        return self.registry.find(session_id)

    def is_live(self, actor: SessionActor | None) -> bool:
        """Return whether a session counts as live: it has an actor, or it is nowhere but in this process."""
        return actor is not None or not self.shared.storage.durable

    def spawn(
        self, session_id: str, save: BeginActor, host_objects: HostObjects = NO_HOST_OBJECTS, *, by: Accounts = NOBODY
    ) -> SessionActor:
        """Start the actor of a new session; messages to it wait until the session is saved.

        It counts for the accounts `by`, after `Scheduler.check_session`.
        """
        self.check_open()
        tenancy = self.shared.limiter.tenancy

        async def create(actor: SessionActor) -> None:
            with tenancy.creating(by):
                await save(actor)

        handle = self.registry.handle(session_id)
        handle.host_objects = host_objects
        tenancy.creates(by)
        actor = self._start(handle, create)
        self._reassign()
        return actor

    def revive(self, session_id: str) -> SessionActor:
        """Return the session's actor, started if need be; messages to it wait until the session is loaded.

        If the id is unknown, the messages are refused.
        """
        self.check_open()
        actor = self.registry.find(session_id)
        if actor is None:
            actor = self._start(self.registry.handle(session_id))
        else:
            self.scheduler.needed(session_id, trio.current_time())
        self._reassign()
        return actor

    def has_current(self, session_id: str) -> bool:
        """Return whether a session is here, of whichever tenant, and no other process can have it."""
        actor = self.find(session_id)
        return actor is not None and actor.current

    def mailbox(self, session_id: str) -> Mailbox:
        return self.revive(session_id).mailbox

    def admit(
        self, session_id: str, turn: Message[R], by: Accounts = NOBODY, accepted: Acceptance | None = None
    ) -> Mail[R]:
        """Claim a session for a turn, or refuse at once. Its actor is started if need be.

        Args:
            session_id: the session.
            turn: the request for its turn.
            by: the accounts of the caller; their counts of the store are up to date.
            accepted: the turn, if it was held against their limits already.

        Raises:
            SessionBusyError: if it runs a turn.
            SessionNotFoundError: if it retires.
            CapacityExceededError: if as many turns run as may run, memory is short, the mailbox is full, or a limit of
                the caller is reached.
            AgentError: if the runtime drains or ends.
        """
        self.check_open()
        actor = self.registry.find(session_id) or self.revive(session_id)
        now = trio.current_time() if by else 0.0  # only limits look at it
        try:
            if not actor.turn_runs:
                self.scheduler.check_turn(by if accepted is None else NOBODY, session_id, now)
            mail = actor.mailbox.post(turn)
        except WarrenError:  # it was needed all the same
            self.scheduler.needed(session_id, trio.current_time())
            raise
        self.scheduler.begun(session_id, by, accepted, now)
        return mail

    def start_anew(self) -> None:
        """Drop all sessions from memory, as the store has gone back; the next request for one reads it again.

        Turns that run fail, and all callers that wait are answered. There is no checkpoint in here: nobody sees a
        session of before beside the store of now.
        """
        for handle in list(self.registry):
            actor, scope = handle.actor, handle.scope
            if scope is not None:
                scope.cancel()  # first: else the actor would see its mailbox closed
            if actor is not None:
                self._terminate(handle, actor, went_back(handle.session_id))
            handle.log.doubt()
            self.registry.release(handle.session_id)
        self._paused.clear()
        for watch in self.watchers:
            watch.miss()

    async def drain(self) -> None:
        """Let no more turns begin, and return when those that run have ended, and the calls in the background.

        A node tells the others, and releases each session that has no work: they can go on with it meanwhile.
        """
        self.scheduler.closed = True
        node = self.shared.storage.node
        if node is not None:
            node.drain()
            self.scheduler.releases = True
        while self.scheduler.running or self.scheduler.held:
            self._reassign()
            with trio.move_on_after(TICK if self.scheduler.releases else math.inf):
                await self._progress.wait()

    async def stop(self, budget: EndBudget | None = None) -> None:
        """End all sessions: turns are interrupted and stored, within the drain time; then they are cut off.

        When it returns, all requests are answered. Idempotent, also while another call of it is on its way.

        Trap: a commit, and a provider or tool that shields itself from cancellation, hold this up for as long as they
        take, unless there is a budget.

        Args:
            budget: the times of the end of the process; None has the configured drain time.
        """
        self.stopping = self.scheduler.closed = True
        for handle in self.registry:
            if handle.actor is not None:
                with contextlib.suppress(WarrenError):
                    handle.actor.mailbox.tell(Retire("stop"))
        if budget is None:
            cut_off, end = trio.current_time() + self.shared.config.limits.drain, math.inf
        else:
            cut_off, end = budget.cut_off, budget.interrupts
        with trio.move_on_at(cut_off):
            await self._all_ended()
        self._cut_off = True
        for handle in self.registry:
            if handle.actor is not None:
                logger.warning("session %s has not ended within the drain time and is cut off", handle.session_id)
            if handle.scope is not None:
                handle.scope.cancel()
        with trio.move_on_at(end):
            await self._all_ended()
        for handle in tuple(self.registry):
            if handle.actor is not None:
                self._terminate(handle, handle.actor, self._ending(handle.actor))
            handle.log.close()
        self.watchers.close()

    def statistics(self) -> RuntimeStatistics:
        """Return the figures of the runtime at this moment."""
        scheduler = self.scheduler
        mailboxes = [each.actor.mailbox.statistics().waiting for each in self.registry if each.actor is not None]
        return RuntimeStatistics(
            live_sessions=len(scheduler.live),
            running_turns=len(scheduler.running),
            waiting_sessions=len(scheduler.waiting),
            idle_sessions=len(scheduler.idle),
            leaving_sessions=len(scheduler.leaving),
            evictions=scheduler.evictions,
            mailbox_messages=sum(mailboxes),
            largest_mailbox=max(mailboxes, default=0),
            event_logs=len(self.registry),
            event_bytes=sum(each.log.size for each in self.registry),
            subscriptions=self.subscriptions,
            storage=self.shared.storage.statistics(),
        )

    @property
    def subscriptions(self) -> int:
        """The readers of events."""
        return sum(each.log.subscriptions for each in self.registry)

    def load(self) -> NodeLoad:
        """Return the work of this process, as other nodes see it."""
        scheduler = self.scheduler
        return NodeLoad(len(scheduler.live), len(scheduler.running), scheduler.limits.max_sessions)

    # -- for the sessions: SessionHost

    def may_start(self, session_id: str, tenant: str) -> bool:
        self.scheduler.asks(session_id, tenant)
        return Begin(session_id) in self._reassign(asking=session_id)

    def turn_ended(self, session_id: str) -> None:
        scheduler = self.scheduler
        now = trio.current_time() if scheduler.evicts else 0.0
        scheduler.turn_ended(session_id, now)
        if self.watchers:
            self.changed(session_id)
        if scheduler.evicts or scheduler.waiting:  # without a store, only a turn that waits can be due
            self._reassign(now=now)
        if scheduler.closed:
            self._tell_progress()

    def changed(self, session_id: str) -> None:
        # Each turn comes through here twice: the look-up is for the watchers alone.
        actor = self.registry.find(session_id) if self.watchers else None
        if actor is not None:
            self.watchers.changed(actor.record)

    def retired(self, session_id: str, *, deleted: bool) -> None:
        actor = self.registry.find(session_id)
        record = None if actor is None else actor.record
        if record is not None and (deleted or not self.shared.storage.durable):
            self.watchers.gone(session_id, record.tenant)
        elif record is not None:
            self.watchers.changed(record.changed(archived=True), leaves=True)

    def paused(self, session_id: str, *, begun: bool = True) -> None:
        if begun:
            self.scheduler.failed(session_id, trio.current_time())
        self._paused.add(session_id)

    def rests(self, session_id: str, *, rests: bool) -> None:
        self.scheduler.rests(session_id, rests=rests)
        self._reassign()

    def suspended(self, session_id: str, wakes: datetime) -> None:
        self.wakes_at(wakes)
        self.scheduler.suspended(session_id)
        self._reassign()

    def wakes_at(self, due: datetime | None) -> None:
        self.waking.set(due)

    def holds(self, session_id: str) -> None:
        self.scheduler.holds(session_id)

    def lets_go(self, session_id: str) -> None:
        self.scheduler.lets_go(session_id, trio.current_time())
        if self.scheduler.evicts:
            self._reassign()
        if self.scheduler.closed:
            self._tell_progress()

    async def enter(self, session_id: str, input_: Input, lease: Lease | None) -> None:
        await self.inboxes.enter(session_id, input_, lease)

    async def has_entered(self, session_id: str, input_: Input, lease: Lease | None) -> bool:
        return await self.inboxes.is_known(session_id, input_, lease)

    async def ends_of(self, record: SessionRecord, waits: Iterable[Wait]) -> Sequence[Sent]:
        return await self.children.ends_of(record, waits)

    def sent(self, session_ids: Sequence[str]) -> None:
        self._untold.update(dict.fromkeys(session_ids))
        if self._untold and not self._tells:
            with contextlib.suppress(RuntimeError):  # the runtime has ended: the next process finds what was sent
                self._nursery.start_soon(self._tell)
                self._tells = True

    async def _tell(self) -> None:
        """Tell sessions of the notices in their inboxes, here or where they are; what is not told is found later."""
        while self._untold:
            told, self._untold = self._untold, {}
            with contextlib.suppress(WarrenError):
                await self.inboxes.look(told)
        self._tells = False

    async def _make_child(self, operation: Delegate, by: Accounts) -> bool:
        """Store a child, whose turn begins if work goes on here; return False if it is there. Raises WarrenError."""
        actor = self.find(operation.session_id)
        made = actor is None

        async def save(actor: SessionActor) -> None:
            nonlocal made
            made = await actor.conversation.delegate(operation)
            actor.conversation.inbox.paused = not self.takes_up

        if actor is None:
            actor = self.spawn(operation.session_id, save, by=by)
        await actor.mailbox.post(Loaded()).wait_settled()
        return made

    def stays(self, session_id: str) -> None:
        self.scheduler.stays(session_id, trio.current_time())
        self._reassign()

    # -- for the tasks of the runtime

    async def evict_loop(self) -> None:
        """Evict sessions that are idle for too long, for ever."""
        while True:
            now = trio.current_time()
            await trio.sleep_until(max(self.scheduler.next_due(now), now + TICK))
            self._reassign()

    def memory(self, short: bool) -> None:  # noqa: FBT001 - a report of the gauge
        """Take note whether the process uses more memory than it may, and have idle sessions leave if it does."""
        self.scheduler.memory(short=short)
        self._reassign()

    def hand_over(self, session_id: str) -> None:
        """Let another process have a session that has no work; decline at once if it has."""
        self.scheduler.wanted(session_id)
        self._reassign()

    def waiting_tenants(self) -> Iterable[str]:
        """Return the tenants whose turns wait for room."""
        return self.scheduler.waiting.tenants()

    def look_again(self) -> None:
        """Let the turns begin that wait and may."""
        self._reassign()

    async def recover(self, sessions: Mapping[str, str]) -> None:
        """Wake the sessions for which something waits in the store and that no process works on.

        Nor does this process work on its own sessions whose inboxes have paused. Those that run a turn hear of the
        notices in their inboxes again: they may have come, or were to be settled, while the store could not be used.

        Args:
            sessions: the sessions, with their tenants.

        Raises StoreError.
        """
        paused = {each: actor.conversation.known.tenant for each in self._paused if (actor := self._paused_at(each))}
        self._paused = set(paused)
        self.scheduler.found_waiting({**sessions, **paused}, trio.current_time())
        self._reassign()
        if running := [each for each in sessions if each in self.scheduler.running]:
            await self._remind(running)

    async def _remind(self, session_ids: Collection[str]) -> None:
        """Tell sessions of this process of all notices in their inboxes. Raises StoreError."""
        await self.inboxes.look(session_ids)
        for session_id in session_ids:
            actor = self.registry.find(session_id)
            if actor is not None and actor.conversation.inbox.notices:
                self._send(session_id, Wake())

    def _turn_of(self, session_id: str) -> tuple[str, Origin]:
        """Return the tenant of a session whose turn runs here, and what is kept of the turn. Raises ToolError."""
        actor = self.registry.find(session_id)
        if actor is None or actor.record is None:
            raise ToolError("the session is not here any more")
        return actor.record.tenant, actor.origin

    def _paused_at(self, session_id: str) -> SessionActor | None:
        """Return the actor of a session if its inbox has paused."""
        actor = self.registry.find(session_id)
        return actor if actor is not None and actor.conversation.inbox.paused else None

    # -- decisions of the scheduler

    def _reassign(self, asking: str | None = None, now: float | None = None) -> list[Action]:
        """Have the scheduler decide after a change, and act on it without waiting; return its decisions.

        Args:
            asking: the session that gets its room as the answer, not as a message.
            now: the time, if the caller knows it.
        """
        done: list[Action] = []
        now, again = trio.current_time() if now is None else now, True
        while again:
            again = False
            for action in self.scheduler.assign(now):
                done.append(action)
                match action:
                    case Begin(session_id):
                        if session_id != asking and not self._send(session_id, BeginNext()):
                            self.scheduler.turn_ended(session_id, now)
                            again = True
                    case Evict(session_id):
                        if not self._send(session_id, LeaveMemory()):
                            self.scheduler.stays(session_id, now)
                            again = not self.scheduler.releases  # which would choose the same session for ever
                    case Decline(session_id):
                        self.shared.storage.decline(session_id)
                    case Recover(session_id):
                        self._recover(session_id)
        return done

    def _recover(self, session_id: str) -> None:
        """Wake a session, which is started if need be; once it has looked for its work, others may have the room."""
        actor = self.registry.find(session_id) or self._start(self.registry.handle(session_id))

        async def wake() -> None:
            with contextlib.suppress(WarrenError):
                await actor.mailbox.ask(Wake())
            self.scheduler.recovered(session_id)
            self._reassign()

        self._nursery.start_soon(wake)

    def _send(self, session_id: str, message: Message[Any]) -> bool:
        """Send a message to a live session; return whether its mailbox has taken it."""
        actor = self.registry.find(session_id)
        if actor is not None:
            with contextlib.suppress(WarrenError):  # it retires, or its mailbox is full
                actor.mailbox.tell(message)
                return True
        return False

    # -- the life of an actor

    def _start(self, handle: Handle, begin: BeginActor | None = None) -> SessionActor:
        handle.actor = actor = SessionActor(handle.log, self.shared, self, self.comms, handle.host_objects)
        actor.conversation.go_on_from(handle.left)
        handle.left = None
        self.scheduler.started(handle.session_id, trio.current_time())
        self._nursery.start_soon(self._run, handle, actor, begin, name="warren.session")
        return actor

    async def _run(self, handle: Handle, actor: SessionActor, begin: BeginActor | None) -> None:
        """Run one actor. However it ends, nobody is left waiting."""
        if handle.actor is not actor:  # the store has gone back before it began
            return
        working_for.set(LogContext(handle.session_id))
        here.set(None)  # else it would be that of the task in which this one was started
        refusal: WarrenError | None = None
        try:
            async with trio.open_nursery() as turns:
                handle.scope = self._shielded(turns)
                refusal = None if begin is None else await _refusal(begin(actor))
                self.watchers.changed(actor.record)
                del begin  # it holds the state that the session has begun with
                refusal = refusal or await _refusal(actor.run(turns))
                if refusal is None:  # a nursery's end is a checkpoint: by then nobody may find an actor that has left
                    self._terminate(handle, actor, self._ending(actor))
                else:
                    turns.cancel_scope.cancel()
        except Exception as exc:
            logger.exception("session %s crashed", actor.session_id)
            problem = encodable(f"the session crashed: {first_error(exc)!r}")
            refusal = AgentError(problem, session_id=actor.session_id, cause="crash")
            self.scheduler.failed(actor.session_id, trio.current_time())
        finally:
            self._terminate(handle, actor, refusal or self._ending(actor))

    def _shielded(self, turns: trio.Nursery) -> trio.CancelScope:
        """Let an actor end by itself: the end of the runtime waits for it, until `stop` cuts it off."""
        scope = turns.cancel_scope
        scope.shield = True
        if self._cut_off:
            scope.cancel()
        return scope

    def _ending(self, actor: SessionActor) -> WarrenError:
        if self.stopping:
            return AgentError("the runtime is shutting down", session_id=actor.session_id, cause="shutting_down")
        return SessionNotFoundError("the session was retired", session_id=actor.session_id, cause="retired")

    def _terminate(self, handle: Handle, actor: SessionActor, error: WarrenError) -> None:
        """Have an actor that ends answer everybody, and forget it, once. There is no checkpoint in here."""
        if handle.actor is not actor:
            return
        actor.terminate(error.copy)
        handle.actor = handle.scope = None
        handle.left = actor.conversation.left
        self.watchers.changed(actor.record)
        self.scheduler.ended(handle.session_id)
        self.registry.release(handle.session_id)
        self._reassign()
        self._tell_progress()

    # -- the end

    async def _all_ended(self) -> None:
        while self.scheduler.live:
            await self._progress.wait()

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


async def _refusal(life: Awaitable[None]) -> WarrenError | None:
    """Return the error if an actor could not be saved or loaded: it is its callers' business, not a crash."""
    try:
        await life
    except WarrenError as exc:
        return exc
    return None
