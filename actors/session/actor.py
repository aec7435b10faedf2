"""The session actor: one loop that owns a conversation, runs its turns one at a time, and answers all else meanwhile.

The loop moves the session's state, and nothing else does, but for the admission of a turn. Its work has no checkpoint.
The actor's task waits for mail and works, or runs a turn; for mail that comes during a turn a child task does the work.
Errands to the store, one at a time, have a child task that hands their results to the loop. While an errand loads the
conversation, the loop leaves it alone: the machine postpones all requests that need it.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import Token
from datetime import datetime
from enum import IntEnum
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren.actors.events.eventlog import EventLog, utc_now
from warren.actors.events.fence import Guard
from warren.actors.observe.counters import COMPLETED
from warren.actors.protocol import (
    Arrived,
    AwaitTurn,
    BeginNext,
    ClaimsTurn,
    Compact,
    GiveAnswer,
    Interrupt,
    InterruptLeft,
    LeaveMemory,
    Loaded,
    Relabel,
    Retire,
    StartTurn,
    TakeOver,
    Wake,
    Withdraw,
)
from warren.actors.resources.erasing import forget_deleted
from warren.actors.session.answering import Answering
from warren.actors.session.answers import waiting_for
from warren.actors.session.background import BackgroundCalls
from warren.actors.session.comms import Comms
from warren.actors.session.conversation import COMMITTED, Committed, Conversation, cancel_of, leaves_unsure
from warren.actors.session.ending import Ending, encode_ending, goes_on, withdrawal
from warren.actors.session.host import SessionHost
from warren.actors.session.inbox import Inbox, WaitingInput
from warren.actors.session.machine import BEGUN, CLAIM, CLOSED, ENDED, IDLE, START, Effect, Machine, Signal, State
from warren.actors.session.planning import Planner
from warren.actors.shared import HostObjects, Shared
from warren.actors.turn.background import Origin
from warren.actors.turn.left import NOTHING_LEFT, cancels, left_elsewhere
from warren.actors.turn.outcome import Outcome, cause_of, title_of
from warren.actors.turn.plan import TurnPlan
from warren.actors.turn.steps import Steps
from warren.actors.turn.toolbox import of_client
from warren.actors.turn.turn import Turn, cancelled, parked, shut_down
from warren.base.errors import (
    AgentError,
    LeasedError,
    SessionBusyError,
    SessionNotFoundError,
    StoreError,
    WarrenError,
)
from warren.base.log_context import LogContext, working_for
from warren.base.values import define, value
from warren.calls.creation import FIRST_PROMPT
from warren.conversation.budget import NO_EXPENSE, Expense
from warren.conversation.events import CompactionCompleted, Envelope, RunFailed, TurnStarted
from warren.conversation.inputs import Input, Numbered
from warren.conversation.open_turn import KeptCall, OpenTurn
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.conversation.views import (
    PendingApproval,
    SessionSummary,
    SessionView,
    TurnView,
    pending_approval,
    summary_of,
    turn_of,
    view_of,
)
from warren.conversation.waits import DECIDED, Wait
from warren.mailbox import Mail, Mailbox, Message
from warren.models.tools import Tool
from warren.reports.audit import AuditEntry
from warren.reports.tracing import TraceContext, context_of, here
from warren.storage.operations import Archive, Attach, Delete, EndInputs, InputOutcome, Sent
from warren.storage.queries import SessionList
from warren.storage.refusals import retired

logger: Final = logging.getLogger("warren.session")


class Need(IntEnum):
    """The share of the store's state that a request needs."""

    NOTHING = 0
    RECORD = 1
    LEASE = 2
    LEASE_ASKED_FOR = 3
    """The lease; another process that has the session idle is asked to hand it over."""


NEEDS: Final[Mapping[type[Message[Any]], Need]] = {
    Loaded: Need.RECORD,
    Relabel: Need.RECORD,
    Wake: Need.LEASE,
    TakeOver: Need.LEASE,
    Arrived: Need.LEASE_ASKED_FOR,
    GiveAnswer: Need.LEASE_ASKED_FOR,
    AwaitTurn: Need.LEASE_ASKED_FOR,
    InterruptLeft: Need.LEASE_ASKED_FOR,
    Withdraw: Need.LEASE_ASKED_FOR,
}
"""The requests that wait until the conversation is loaded. All others are handled without a look at it."""
COMING: Final = (State.LOADING, State.LEAVING)
"""The states in which it is not known, or soon not known any more, whether a turn is open in the store."""
MOST_TOLD: Final = 1_000
"""Children that hear at once of the end of their parent; the others find its notice a little later."""
NO_TOOLS: Final[Mapping[str, Tool]] = {}
NO_TURN: Final = Origin(0, 0, "")
GOES_ON: Final = "the session has a turn that was left open, and that goes on"
Result = Callable[[], None]
"""The result of an errand, as the function that applies it in the loop."""


@value
class Fetched:
    """The result of loading the conversation.

    Attributes:
        need: how much was asked for.
        refused: the error if another process has the lease; the record was loaded all the same.
    """

    need: Need
    refused: LeasedError | None


@value(eq=False)
class TurnEnd:
    """A turn that has ended, with the answer of the store.

    Attributes:
        turn: the turn.
        outcome: its outcome, as the turn's own task saw it.
        ending: the answer for those who wait for it, if the store has taken it.
        terminal: its last event, which is not published yet; None if it only compacted.
        record: the session's record after it; None if the compaction has stored all of it.
        committed: whether the store has taken it.
        suspended: whether it is stored as one whose calls all wait, and has no end as yet.
    """

    turn: Turn
    outcome: Outcome
    ending: Ending
    terminal: Envelope | None
    record: SessionRecord | None
    committed: Committed
    suspended: bool = False


@define(eq=False)
class SessionActor:
    """One live session.

    Attributes:
        log: its events.
        session_id: its id.
        shared: the resources that it shares with all sessions of the runtime.
        host: the scheduler, which gives room for its turns and tells it when to leave memory.
        comms: the way to its peers.
        host_objects: its tools and its compactor, if it has any of its own.
        conversation: its record, context and inbox in memory; begun by `create`, or loaded when a request needs it.
        mailbox: the queue of requests.
        background: its tool calls that run in the background.
        answering: gives its tool calls their answers.
    """

    log: EventLog
    shared: Shared
    host: SessionHost
    comms: Comms
    host_objects: HostObjects
    session_id: str = attrs.field(init=False)
    conversation: Conversation = attrs.field(init=False)
    mailbox: Mailbox = attrs.field(init=False)
    background: BackgroundCalls = attrs.field(init=False)
    answering: Answering = attrs.field(init=False)
    _machine: Machine[Mail[Any]] = attrs.field(init=False)
    _planner: Planner = attrs.field(init=False)
    _tasks: trio.Nursery = attrs.field(init=False)
    _mail: list[Mail[Any]] = attrs.field(factory=list)
    _in_hand: Mail[Any] | None = None
    _turn: Turn | None = None
    _before_turn: int = 0  # the number of the newest event before those that the turn has published here
    _ended: TurnEnd | None = None
    _ends: WarrenError | None = None  # the error with which an interrupter wants the open turn to end
    _between: Token[LogContext | None] | None = None  # while a turn runs: what log lines tell between turns
    _turn_tools: Mapping[str, Tool] = NO_TOOLS  # those that the caller of the suspended turn has brought
    _proves: bool = False  # whether the lease is being proved, so that notices can be heeded
    _stays: bool = False  # whether no other process can go on with the suspended turn, as long as this one lives
    _errands: list[Callable[[], Awaitable[Result]]] = attrs.field(factory=list)
    _results: list[Result] = attrs.field(factory=list)
    _owed: dict[int, Numbered] = attrs.field(factory=dict)  # notices that the record is to count, by number

    def __attrs_post_init__(self) -> None:
        self.session_id = self.log.session_id
        inbox = Inbox(self.session_id, self.log.beginning, self.shared.storage.now)
        self.conversation = Conversation(self.log, self.shared.storage, inbox)
        self._machine = Machine(self.session_id)
        conversation = self.conversation
        charges, guard = conversation.charges, conversation.guard
        self._planner = Planner(self.shared, self.comms, self.host_objects, self.log, charges, guard)
        self.mailbox = Mailbox(self.shared.config.limits.mailbox, self._admit)
        self.background = BackgroundCalls(self.session_id, self.shared, self._planner, self.conversation, self.host)
        self.conversation.sent = self.host.sent
        changed = partial(self.host.changed, self.session_id)
        late = partial(_come_late, self.comms, self.conversation)
        self.answering = Answering(self.shared, self.conversation, self.background, changed, late)

    # -- what any task may read at any time

    @property
    def record(self) -> SessionRecord | None:
        """The session as of its last finished turn; None until it is loaded."""
        return self.conversation.record

    @property
    def current(self) -> bool:
        """Whether the record is here, and the store can have no newer one."""
        return self.conversation.current

    @property
    def left_behind(self) -> bool:
        """Whether callers wait here for a turn, and another process may have the session by now."""
        conversation, machine = self.conversation, self._machine
        callers = conversation.inbox.has_callers or machine.starter or machine.interrupters or machine.retirers
        return conversation.record is not None and not conversation.current and bool(callers)

    @property
    def turn_runs(self) -> bool:
        """Whether a turn was admitted and is not over."""
        return self._machine.admitted

    @property
    def pending_approvals(self) -> tuple[PendingApproval, ...]:
        """The tool calls of the open turn that wait for approval, and the questions of those that run."""
        waits = (*self.answering.unanswered, *self.background.asked)
        return tuple(pending_approval(wait) for wait in waits if wait.reason in DECIDED)

    @property
    def approvals_in_memory(self) -> Sequence[PendingApproval]:
        """Those of a turn that no store has before its end, and of calls in the background that may have run."""
        if self._turn is not None and self._turn.steps is None:
            return self.pending_approvals
        return tuple(map(pending_approval, self.background.asked))

    def view(self) -> SessionView:
        """Return the session as of its last finished turn, with the title of a first one. It has to be loaded."""
        pending, turn = self.pending_approvals, self.turn
        running = self.background.waits
        return view_of(self._shown, live=True, active=self.turn_runs, pending=pending, turn=turn, waits=running)

    def summary(self, node: str | None) -> SessionSummary:
        """Return the session's row in a list, as `view`. It has to be loaded. `node` is this process if it is one."""
        pending, turn = len(self.pending_approvals), self.turn
        return summary_of(self._shown, live=True, active=self.turn_runs, pending=pending, node=node, turn=turn)

    @property
    def turn(self) -> TurnView | None:
        """The turn that has not ended. The session has to be loaded."""
        turn, conversation = self._turn, self.conversation
        if turn is None or turn.only_compacts:
            return turn_of(conversation.known, conversation.unanswered, runs=False)
        return turn.view()

    @property
    def origin(self) -> Origin:
        """What is kept of the running turn, for a later one that it has asked for."""
        return NO_TURN if self._turn is None else self._turn.origin("", 0)

    @property
    def _shown(self) -> SessionRecord:
        """The record, with the title that the first turn will store."""
        known, turn = self.conversation.known, self._turn
        if turn is None or known.turns or known.title is not None or turn.plan.message.prompt is None:
            return known
        return known.changed(title=title_of(turn.plan.message.prompt))

    # -- the loop

    def _admit(self, message: Message[Any]) -> None:
        """Claim the session for a turn, in the task of its sender: the admission hook of the mailbox.

        The claim cannot wait for the loop: the scheduler counts the turn in the same instant, so that of all senders
        no more are let through than there is room for; and the senders that find the session busy cost it nothing.
        """
        if isinstance(message, ClaimsTurn):
            try:
                self._machine.step(CLAIM)
            except SessionBusyError:
                turn = None if self._turn is None or self._turn.only_compacts else self._turn.view()
                if turn is not None and turn.state == "waiting":
                    raise waiting_for(turn) from None
                raise

    async def run(self, tasks: trio.Nursery) -> None:
        """Handle mail until the session has retired or left memory.

        There is no checkpoint between the last move and the return. So the caller can take the actor out of the
        registry before anybody finds one that has ended.

        Args:
            tasks: the nursery for errands, and for the mail that comes during turns.

        Raises:
            WarrenError: if the session cannot be loaded. It is as it was last committed.
        """
        self._tasks, machine = tasks, self._machine
        self.background.begin(tasks, self._send)
        self.answering.begin(self._send, lambda: self._turn, self._charge)
        try:
            while machine.state is not CLOSED:
                with trio.CancelScope() as scope:
                    await self._take_turns(scope)
                if self._turn is not None:
                    await self._store_turn(self._turn)
                    self._work()
        finally:
            self.background.leave()
            self.answering.leave()
            self._leave_turn()

    async def _take_turns(self, scope: trio.CancelScope) -> None:
        """Handle mail and run turns, until the session ends or the scope of its turns is used up.

        All turns run in one scope: a scope for each turn would cost as much as its commit. Only a turn that runs
        cancels the scope, and the next one needs a new scope then, as does the commit of this one.
        """
        machine = self._machine
        while machine.state is not CLOSED:
            turn = self._turn
            if turn is None or self.mailbox.waiting:
                self._mail.extend(await self.mailbox.receive())
            else:
                self.mailbox.busy = self._listen
                self._between = working_for.set(LogContext(self.session_id, turn.record.tenant, turn.record.turns + 1))
                if turn.place is not None:
                    here.set(turn.place)
                self.log.settling = False
                await turn.run(scope)
                if turn.may_cancel and scope.cancel_called:  # too late for this turn, but not for the next checkpoint
                    return
                await self._store_turn(turn)
            self._work()

    def _leave_turn(self) -> None:
        self.mailbox.busy = None
        if self._between is not None:
            working_for.reset(self._between)
            self._between = None
            here.set(None)

    def _listen(self) -> None:
        """Start a child task for the mail that comes during a turn: the `busy` of the mailbox."""
        self._tasks.start_soon(self._hear)

    async def _hear(self) -> None:
        if self._turn is not None:  # else the actor's task is awake
            self._mail.extend(self.mailbox.take())
            self._work()

    def _work(self) -> None:
        """Handle all mail and all results, and let an idle session go on."""
        machine = self._machine
        while machine.state is not CLOSED:
            # The mail goes first: it was sent before its sender could know of the result, so an interrupt that is in
            # the mailbox when its turn ends is not meant for the next turn.
            if self._mail:
                self._in_hand = self._mail.pop(0)
                self._handle(self._in_hand)
                self._in_hand = None
            elif self._ended is not None:
                self._end_turn(self._ended)
            elif self._results:
                self._results.pop(0)()
            elif not self._go_on():
                return
            if machine.replay:
                self._mail[:0] = machine.take_postponed()

    def _go_on(self) -> bool:
        """Begin the next turn of an idle session, or end a retired one; return whether there is anything to do."""
        conversation, machine = self.conversation, self._machine
        if conversation.inbox.notices and (self._heed() if self._is_proved else self._prove()):
            return True
        # An archived session whose mail waits may be told to be deleted.
        if machine.state is not IDLE or self._errands or (self.mailbox.waiting and conversation.archived):
            return False
        if conversation.archived:
            self._perform(machine.step(Signal.ARCHIVED))
        elif conversation.waits and conversation.current and self.background.take_up():
            return True
        elif not self._has_work:
            if conversation.inbox.awaiting and not conversation.sleeps:
                conversation.inbox.none_waits(conversation.doubt)
            if conversation.inbox.waiting and conversation.open_turn is None:
                self.host.wakes_at(conversation.inbox.due())
            return False
        elif not conversation.current:
            # The lease has lapsed while an input waited. No request may ever come that would ask for it again.
            self._perform(machine.step(Signal.NEED))
        elif self._ends is not None or self.host.may_start(self.session_id, conversation.known.tenant):
            self._perform(machine.step(Signal.NEXT))  # the end of an open turn runs nothing, and needs no room
        else:
            return False
        return True

    @property
    def _has_work(self) -> bool:
        """Whether an open turn is to end, or a turn to begin by itself."""
        return self._ends is not None or self.conversation.has_work

    @property
    def _is_proved(self) -> bool:
        """Whether no other process has the session, as far as is known: a running turn may know more."""
        guard = None if self._turn is None else self._turn.plan.guard
        return self.conversation.current or (guard is not None and guard.open)

    def _prove(self) -> bool:
        """Have a running turn prove the lease, unless it does; its tool may run for long, and asks for no proof.

        If another process has the session, the turn ends here.
        """
        guard = None if self._turn is None else self._turn.plan.guard
        if guard is None or guard.open or guard.refusal is not None or self._proves:
            return False
        self._proves = True
        self._send(partial(self._store_proof, guard))
        return True

    async def _store_proof(self, guard: Guard) -> Result:
        await guard.prove()

        def apply() -> None:
            self._proves = False
            if guard.refusal is not None and self._turn is not None and self._turn.plan.guard is guard:
                self._turn.interrupt(guard.refusal.copy())

        return apply

    def _heed(self) -> bool:
        """Do as the notices of other sessions say; return whether there was one that nothing was done about."""
        found, charges = 0, list[Numbered]()
        for numbered in self.conversation.inbox.take_notices():
            found += 1
            number, notice = numbered.number, numbered.input
            match notice.kind:
                case "lend" | "answer" if notice.end is not None and notice.end.call_id is None:
                    charges.append(numbered)
                case "answer":
                    self.answering.take_notice(number, notice)
                case "look":
                    self._send(partial(self._store_ends, number))
                case "archive" | "delete" as how:
                    if not (how == "archive" and self.conversation.archived):
                        self.mailbox.tell(Retire(how))
                case _ if not self._give_up(number):
                    found -= 1
        self._charge(charges)
        return self._settle_owed() or found > 0

    async def _store_ends(self, number: int) -> Result:
        """Look how children have ended, as a notice of that may have been lost, and have them answer once more."""
        conversation = self.conversation
        waits = [
            each
            for each in self.answering.unanswered
            if (call := conversation.calls.get(each.call_id)) is None or call.state == "waiting"
        ]
        problem: WarrenError | None = None
        try:
            sends = tuple(await self.host.ends_of(conversation.known, waits))
            await conversation.write(EndInputs(self.session_id, InputOutcome((number,)), sends))
        except WarrenError as exc:
            problem = exc

        def apply() -> None:
            if problem is None:
                conversation.inbox.settle(number)
                self.host.sent((self.session_id,))

        return apply

    def _charge(self, notices: Sequence[Numbered]) -> None:
        """Count what children spend of the budget that no call waits for.

        A running turn counts it in memory alone: it stores the record of its own beginning. The notices stay till then.
        """
        for each in notices:
            if each.number not in self._owed:
                self._owed[each.number] = each
                if self._turn is not None:
                    self._turn.plan.meter.charge(_charge_of(each))

    def _settle_owed(self) -> bool:
        """Store what children have spent, once nothing else changes the record; return whether that is done."""
        self._look_owed()
        busy = self._turn is not None or self._machine.state is not IDLE or self._errands or self.conversation.pending
        if not self._owed or busy:
            return False
        self._send(self._store_owed)
        return True

    def _look_owed(self) -> None:
        """Forget what the record counts by now: another process may have had the session since."""
        there = self.conversation.inbox.notices
        self._owed = {number: each for number, each in self._owed.items() if number in there}

    async def _store_owed(self) -> Result:
        owed = tuple(self._owed.values())
        numbers = tuple([each.number for each in owed])
        outcome = InputOutcome(numbers, encode_ending(cancelled()))
        problem = await self.conversation.charge(sum(map(_charge_of, owed), NO_EXPENSE), outcome)

        def apply() -> None:
            for number in numbers:
                self._owed.pop(number, None)
                if problem is None:
                    self.conversation.inbox.settle(number)

        return apply

    def _give_up(self, number: int) -> bool:
        """End the delegated turn, or the prompt of it, as nobody waits for it; return False if that is to be later."""
        conversation, inbox, machine = self.conversation, self.conversation.inbox, self._machine
        turn, kept = self._turn, conversation.open_turn
        if turn is not None and turn.plan.message.key == FIRST_PROMPT:
            inbox.ends_with_turn(number)
            turn.interrupt(cancelled())
        elif turn is None and kept is not None and kept.key == FIRST_PROMPT:
            if machine.state is not IDLE or self._errands:
                inbox.heed_later(number)
                return False
            inbox.ends_with_turn(number)
            self._ends = self._ends or cancelled()
            self._perform(machine.step(Signal.NEXT))
        else:
            prompt = inbox.first_prompt
            self._send(partial(self._store_given_up, number, prompt))
        return True

    async def _store_given_up(self, number: int, prompt: int | None) -> Result:
        conversation, inbox = self.conversation, self.conversation.inbox
        error, prompt = cancelled(), prompt if prompt is not None and prompt == inbox.first_prompt else None
        ended = InputOutcome((number,) if prompt is None else (number, prompt), encode_ending(error))
        problem = await conversation.store_outcome(ended, None if prompt is None else error)

        def apply() -> None:
            if problem is None:
                inbox.settle(number)
                if prompt is not None:
                    inbox.end_waiting(prompt, error)

        return apply

    def _handle(self, mail: Mail[Any]) -> None:
        machine, message = self._machine, mail.message
        try:
            match message:
                case StartTurn() | Compact():
                    self._perform(machine.step(START, mail))
                case BeginNext():
                    self._perform(machine.step(Signal.NEXT))
                case Interrupt():
                    self._interrupt(mail, message)
                case Retire(how=how):
                    self._perform(machine.step(Signal.RETIRE if how == "archive" else Signal.RETIRE_NOW, mail), mail)
                case LeaveMemory():
                    self._perform(machine.step(Signal.EVICT, mail))
                case _ if self._turn is not None or (machine.state is IDLE and self.conversation.current):
                    self._serve(mail)
                case _:
                    self._perform(machine.step(Signal.NEED, mail))
        except WarrenError as exc:
            mail.refuse(exc)

    def _interrupt(self, mail: Mail[Any], message: Interrupt) -> None:
        """Interrupt the running turn, or end one that was left open in the store."""
        machine = self._machine
        if machine.state in COMING or (machine.state is IDLE and not self.conversation.current):
            mail.message = InterruptLeft(message.audit)
            self._perform(machine.step(Signal.NEED, mail))
        elif machine.state is State.CLAIMED and self.conversation.open_turn is not None:
            machine.postponed.append(mail)  # the claim will be refused, and the turn goes on
        elif machine.state is IDLE and self.conversation.open_turn is not None:
            self._ends = cancelled()
            machine.interrupters.append(mail)
            self._perform(machine.step(Signal.NEXT))
        elif machine.state is IDLE and (doubt := self.conversation.doubt) is not None:
            raise doubt
        else:
            self._perform(machine.step(Signal.INTERRUPT, mail), mail)

    def _perform(  # noqa: C901, PLR0912 - one branch for each effect
        self,
        effects: Sequence[Effect],
        mail: Mail[Any] | None = None,
        *,
        ending: Ending | CompactionEntry | None = None,
        fetched: Fetched | None = None,
    ) -> None:
        """Carry out the effects of a move.

        Args:
            effects: the effects, in order.
            mail: the request that has caused the move.
            ending: the answer for the starter if the turn is over, the error for the retirers if they failed.
            fetched: the result for the requests that waited for the store.
        """
        for effect in effects:
            match effect:
                case Effect.FREE:
                    self.host.turn_ended(self.session_id)
                case Effect.REPLY:
                    self._reply(ending)
                case Effect.ANSWER:
                    self._ends = None
                    for each in self._machine.take_interrupters():
                        self._interrupted(each, ending)
                case Effect.PREPARE:
                    self._prepare()
                case Effect.BEGIN:
                    self._begin()
                case Effect.FETCH:
                    self._send(self._fetch)
                case Effect.SERVE if fetched is not None:
                    self._serve_postponed(fetched)
                case Effect.CANCEL if self._turn is not None and mail is not None:
                    stops = isinstance(mail.message, Retire) and mail.message.how == "stop"
                    if stops and self._turn.steps is not None:
                        self._turn.park()
                    else:
                        self._turn.interrupt(shut_down() if stops else cancelled())
                case Effect.RETIRE:
                    self._send(self._retire)
                case Effect.REPORT:
                    for each in self._machine.take_retirers():
                        each.refuse(ending.copy()) if isinstance(ending, WarrenError) else each.answer(None)
                case Effect.HANG_UP:
                    self.log.close()
                case Effect.LEAVE if self.conversation.pending:
                    self._send(self._store_pending)
                case Effect.LEAVE:
                    self._leave()
                case Effect.STAY:
                    self.host.stays(self.session_id)

    def _interrupted(self, mail: Mail[Any], ending: Ending | CompactionEntry | None) -> None:
        """Answer an interrupter, and add its entry to the audit: it may have come too late to change the ending."""
        if isinstance(ending, WarrenError) and self.conversation.open_turn is not None:  # the turn will go on
            mail.refuse(ending.copy())
            return
        entry = mail.message.audit if isinstance(mail.message, Interrupt) else None
        if entry is not None:
            turn = ending.cause or "failed" if isinstance(ending, WarrenError) else "completed"
            self.shared.auditor.add(attrs.evolve(entry, details={"turn": turn}))
        mail.answer(None)

    def _reply(self, ending: Ending | CompactionEntry | None) -> None:
        starter = self._machine.take_starter()
        if isinstance(ending, WarrenError):
            ending.session_id = self.session_id
            if starter is not None:
                starter.refuse(ending)
        elif starter is not None:
            starter.answer(ending)

    # -- errands to the store

    def _send(self, errand: Callable[[], Awaitable[Result]]) -> None:
        """Run an errand after those that are under way."""
        self._errands.append(errand)
        if len(self._errands) == 1:
            self._tasks.start_soon(self._run_errands)

    async def _run_errands(self) -> None:
        while self._errands:
            try:
                result = await self._errands[0]()
            except WarrenError as exc:  # the session cannot be loaded
                result = partial(_raise, exc)
            self._errands.pop(0)
            self._results.append(result)
            self.mailbox.wake()

    async def _fetch(self) -> Result:
        """Load as much as the postponed requests need."""
        # This runs when the loop has handled its batch of mail, so one errand serves all of the batch.
        needs = [NEEDS.get(type(mail.message), Need.NOTHING) for mail in self._machine.postponed]
        fetched = await self._load(max(needs, default=Need.NOTHING) or Need.LEASE)
        return partial(self._apply_fetched, Signal.FETCHED, fetched)

    async def _fetch_for_turn(self) -> Result:
        fetched = await self._load(Need.LEASE_ASKED_FOR)
        if fetched.refused is not None:
            return partial(self._apply_fetched, Signal.LEASE_REFUSED, fetched)
        try:
            await self.conversation.reserve()
        except StoreError as exc:
            return partial(self._wait_for_room, exc)
        await self.conversation.load_context()
        return partial(self._apply_fetched, Signal.PREPARED, fetched)

    async def _load(self, need: Need) -> Fetched:
        refused = None
        if need >= Need.LEASE:
            try:
                await self.conversation.acquire(ask=need is Need.LEASE_ASKED_FOR)
            except LeasedError as exc:
                refused = exc
        await self.conversation.refresh()
        if self.conversation.current:  # it may have got the lease since, to end a turn that nobody can go on with
            refused = None
        if self.conversation.rewound:
            await self._forget_rewound()
        return Fetched(need, refused)

    async def _forget_rewound(self) -> None:
        """Remove the texts from the memory that were remembered in the part of the conversation that is gone."""
        record = self.conversation.known
        with contextlib.suppress(StoreError):  # the memory says so itself, and searches find a text too many
            await self.shared.memory.cut(record.session_id, record.head, record.tenant)
        self.conversation.rewound = False

    def _apply_fetched(self, signal: Signal, fetched: Fetched) -> None:
        if fetched.refused is not None:
            self.conversation.inbox.leave_to(fetched.refused)
            self._turn_tools = NO_TOOLS
            self.background.end()  # the process that has the session goes on with them
        elif self.conversation.current:
            self.background.doubt()
            self.background.take_up()
        error = None if fetched.refused is None else fetched.refused.copy()
        self.host.changed(self.session_id)
        self._perform(self._machine.step(signal), fetched=fetched, ending=error)

    def _serve_postponed(self, fetched: Fetched) -> None:
        """Handle the postponed requests that need no more than was fetched; the others stay postponed."""
        postponed = self._machine.postponed
        needs = [NEEDS.get(type(mail.message), Need.NOTHING) for mail in postponed]
        for mail, need in zip(postponed, needs, strict=True):
            if Need.NOTHING < need <= fetched.need:
                self._serve(mail, fetched.refused)
        # Only now, so that a crash among them leaves no request unanswered.
        self._machine.postponed = [
            mail for mail, need in zip(postponed, needs, strict=True) if need is Need.NOTHING or need > fetched.need
        ]

    def _serve(  # noqa: C901, PLR0912 - one branch for each message
        self, mail: Mail[Any], refused: LeasedError | None = None
    ) -> None:
        """Handle a request that needs the conversation, which is loaded."""
        conversation = self.conversation
        try:
            match mail.message:
                case Arrived() | AwaitTurn() | GiveAnswer() | InterruptLeft() | Withdraw() if refused is not None:
                    mail.refuse(refused.copy())
                case Arrived() | AwaitTurn() | GiveAnswer() if conversation.archived:
                    mail.refuse(retired(self.session_id))
                case Arrived() as message:
                    conversation.inbox.arrive(mail, message)
                    self._tell_begun()
                    self._offer(message.tools)
                case AwaitTurn() as message:
                    conversation.inbox.await_turn(mail)
                    self._offer(message.tools)
                case GiveAnswer() as message:
                    self.answering.take(mail, message)
                case InterruptLeft() if conversation.open_turn is None:
                    mail.refuse(self.conversation.runs_none())
                case InterruptLeft(audit=audit):
                    mail.message = Interrupt(audit)
                    self._mail.insert(0, mail)
                case Withdraw(input_id=input_id):
                    self._send(partial(self._store_withdrawal, conversation.inbox.withdraw(mail, input_id)))
                case Relabel():
                    conversation.relabel(mail.message)
                    mail.answer(conversation.known)
                case Loaded():
                    mail.answer(conversation.known)
                case TakeOver():
                    self._prove()
                    mail.answer(refused is None)
                case Wake():
                    conversation.inbox.heed_again()
                    mail.answer(None)
        except WarrenError as exc:
            mail.refuse(exc)

    def _offer(self, tools: Mapping[str, Tool]) -> None:
        """Let the open turn have the tools of a caller that has come back, if one of its calls waits for them."""
        if not tools:
            return
        waits = [wait for wait in self.conversation.waits.values() if wait.name in tools and of_client(wait)]
        if not waits:
            return
        self._turn_tools = {**self._turn_tools, **tools}
        if self._turn is not None:
            # A call that has not failed yet, as its client has, needs them later: the turn goes on once it suspends.
            self.conversation.called = not self._turn.offered(tools)
        elif any(wait.reason == "client" for wait in waits):
            self.conversation.called = True

    def _tell_begun(self) -> None:
        """Give who repeats an input of the running turn the events of that."""
        if self._turn is not None and self._turn.first_seq is not None:
            self.log.tell_begun(self._turn.first_seq - 1)

    async def _store_withdrawal(self, withdrawn: InputOutcome) -> Result:
        error = await self.conversation.store_outcome(withdrawn, withdrawal(self.session_id))
        return partial(self.conversation.inbox.withdrew, withdrawn.numbers[0], error)

    # -- a turn

    def _prepare(self) -> None:
        # An errand may be changing the conversation, and the result of one that has ended has to be applied before the
        # turn begins.
        if self.conversation.ready and not self._errands and not self._results:
            self._begin()
        else:
            self._send(self._fetch_for_turn)

    def _begin(self) -> None:
        """Begin the turn of the starter, go on with one that was left open, or begin that of the first input."""
        starter, kept = self._machine.starter, self.conversation.open_turn
        if kept is None and self._ends is not None:  # another process has ended it
            self._ends = None
            for each in self._machine.take_interrupters():
                each.refuse(self.conversation.runs_none())
        if starter is not None and kept is not None:
            self.conversation.inbox.paused = False
            self._refuse_turn(self._busy())
        elif starter is not None:
            self._begin_asked(starter)
        elif kept is not None:
            self._go_on_with(kept if kept.parked else kept.changed(deaths=kept.deaths + 1))
        elif (waiting := self.conversation.inbox.first()) is not None:
            self._begin_waiting(waiting)
        else:  # it was withdrawn, or is another process's
            self._perform(self._machine.step(Signal.NOT_BEGUN))

    def _begin_asked(self, starter: Mail[Any]) -> None:
        message: StartTurn | Compact = starter.message  # type: ignore[assignment] # the table gives START to no other
        try:
            plan = self._planner.plan(message, self.conversation.known)
            plan.settings.choice.check_ready()
        except WarrenError as exc:
            self._refuse_turn(exc)
            return
        if isinstance(message, StartTurn) and message.blobs:
            self._send(partial(self._store_files, message, starter))
            return
        if isinstance(message, StartTurn) and message.begun is not None:
            self.log.beginning.append(message.begun)
        self._begin_turn(plan, self.conversation.known)

    def _begin_waiting(self, waiting: WaitingInput) -> None:
        """Begin the turn of an input: it was accepted, so a turn that fails leaves it in the history."""
        self.conversation.inbox.take(waiting)
        input_ = waiting.input
        message = StartTurn(
            input_.text,
            input_.options,
            waiting.tools,
            attachments=input_.attachments,
            payer=input_.payer,
            key=input_.key,
            hops=input_.hops,
            result=input_.kind == "context",
            caller=self._delegated_from(input_.key),
        )
        try:
            plan = self._planner.plan(message, self.conversation.known)
        except WarrenError as exc:
            exc.session_id = self.session_id
            if exc.cause == "agent_missing":  # another process may have it
                logger.warning("session %s: an input waits on: %s", self.session_id, exc.message)
                self._put_back(exc)
                self._refuse_turn(exc)
            else:
                self._send(partial(self._drop, exc))
            return
        self._begin_turn(plan, self.conversation.known)

    def _delegated_from(self, key: str | None) -> TraceContext | None:
        """Return the place in a trace of the call that waits for the turn of a prompt; None if there is none."""
        place = self.conversation.known.delegation if key == FIRST_PROMPT else None
        return None if place is None else context_of(place.traceparent)

    def _go_on_with(self, kept: OpenTurn) -> None:
        """Go on with the open turn, or end it if it is not to be gone on with.

        A turn that the settings do not let begin stays open: a slip in those of a new release would end all turns.
        """
        caller, tools = context_of(kept.traceparent), self._turn_tools
        message = StartTurn("", kept.options, tools, payer=kept.payer, key=kept.key, hops=kept.hops, caller=caller)
        record = self.conversation.known.before_turn(kept)
        try:
            self._check_goes_on(kept.deaths)
        except WarrenError as exc:
            self._send(partial(self._end_open_turn, exc))
            return
        try:
            plan = self._planner.plan(message, record)
        except WarrenError as exc:
            logger.warning("session %s: its open turn cannot go on: %s", self.session_id, exc.message)
            self._put_back(exc)
            self._refuse_turn(exc)
            return
        self.conversation.called = False
        if woken := kept.wakes is not None:
            kept = kept.changed(parked=False, wakes=None, lives=kept.lives + 1)
            self._begin_turn(plan, record, kept, woken=woken)
            return
        self.shared.counters.resumed += 1
        kept = kept.changed(resumed=kept.resumed + 1, parked=False, lives=kept.lives + 1)
        self._begin_turn(plan, record, kept)

    def _busy(self) -> SessionBusyError:
        """Return the error for the prompt of a caller that does not wait for the open turn."""
        turn = self.turn
        if turn is None or turn.state != "waiting":
            return SessionBusyError(GOES_ON)
        return waiting_for(turn)

    def _begin_turn(
        self, plan: TurnPlan, record: SessionRecord, kept: OpenTurn | None = None, *, woken: bool = False
    ) -> None:
        conversation, steps = self.conversation, None
        if kept is not None or (plan.settings.keeps_steps and isinstance(plan.message, StartTurn)):
            kept_messages, rows = conversation.known.message_count, bool(conversation.calls)
            steps = Steps(self._commit_step, conversation.answers, kept_messages, rows)
        self._before_turn = self.log.last_seq
        self._turn = Turn(
            plan,
            record,
            conversation.context,
            conversation.inbox,
            self.log.emit if plan.guard is None else plan.guard.emit,
            self._commit_compaction,
            self._other_waits,
            steps,
            kept,
            NOTHING_LEFT if kept is None else dict(conversation.calls),
            conversation.waits,
            woken,
            lambda: conversation.known.allowed_tools,
            self.background,
            self._end_child,
        )
        if self._owed:
            self._look_owed()
            for each in self._owed.values():
                plan.meter.charge(_charge_of(each))
        if kept is not None:  # else its first event tells those who wait for it
            self._tell_begun()
        if self.shared.limiter.tenancy.unbegun:
            self.shared.limiter.tenancy.begins(self.session_id)
        self._machine.step(BEGUN)
        self.host.changed(self.session_id)

    def _end_child(self, child: str) -> None:
        """Have a child end whose time limit is over."""
        self._send(partial(self._store_cancel, child))

    async def _store_cancel(self, child: str) -> Result:
        await self.conversation.end_child(child)
        return partial(_call_all, ())

    def _other_waits(self) -> None:
        """Tell the host that other calls of the running turn wait in memory."""
        turn = self._turn
        if turn is not None:
            rests = any(wait.reason == "child" for wait in turn.waits_in_memory)
            self.host.rests(self.session_id, rests=rests)
        self.host.changed(self.session_id)

    def _check_goes_on(self, deaths: int) -> None:
        """Raise the error with which an open turn ends that is not to be gone on with."""
        if self._ends is not None:
            raise self._ends
        if deaths > self.shared.config.limits.resumptions:
            problem = f"a process ended {deaths} times during the turn: it is not gone on with (limits.resumptions)"
            raise AgentError(problem, cause="crash")

    async def _end_open_turn(self, error: WarrenError) -> Result:
        """End the open turn in the store without running it; if the store refuses, it stays open."""
        refused: WarrenError | None = None
        try:
            await self._end_left(error)
        except WarrenError as exc:
            refused = exc

        def apply() -> None:
            if refused is not None:
                self._put_back(refused)
            self.host.changed(self.session_id)
            self._perform(self._machine.step(Signal.NOT_BEGUN), ending=refused or error)

        return apply

    async def _end_left(self, error: WarrenError) -> None:
        """End the turn that was left open, and count it. Raises WarrenError if the store refuses."""
        kept, before, unwanted = self.conversation.open_turn, self.log.last_seq, await self._left_elsewhere()
        terminal = await self.conversation.end_open_turn(error)
        _call_all(unwanted)
        self._turn_tools, self.conversation.called = NO_TOOLS, False
        if kept is not None and terminal is not None:
            self._count_left(kept, cause_of(error), terminal.seq - before)

    async def _left_elsewhere(self) -> Sequence[Callable[[], None]]:
        """Return the functions that have the work of calls of the open turn end that goes on elsewhere."""
        conversation = self.conversation
        waits = left_elsewhere(conversation.calls, conversation.waits)
        return await self._cancels(waits) if waits else ()

    async def _cancels(self, waits: Sequence[Wait]) -> Sequence[Callable[[], None]]:
        tools = await self._planner.tools_of(self.conversation.known)
        return cancels(waits, {**tools, **self._turn_tools})

    async def _cancel(self, waits: Sequence[Wait]) -> Result:
        """Have work of a turn that has ended end too, once the MCP servers have connected or failed to."""
        return partial(_call_all, await self._cancels(waits))

    def _count_left(self, kept: OpenTurn, outcome: str, events: int) -> None:
        """Count a turn that has ended without running here."""
        choice, spent = self._planner.choice_of(kept.options, self.conversation.known), kept.spent
        self.shared.counters.turn(choice, outcome, events, spent.seconds, spent.steps)

    async def _store_files(self, message: StartTurn, starter: Mail[Any]) -> Result:
        """Store the files of the admitted turn, which nothing speaks against but the store."""
        try:
            await self.shared.storage.write(Attach(self.session_id, message.blobs))
        except WarrenError as exc:
            return partial(self._refuse_turn, exc)
        starter.message = attrs.evolve(message, blobs=())  # lets go of the bytes
        return self._prepare

    def _refuse_turn(self, error: WarrenError) -> None:
        error.session_id = self.session_id
        self._perform(self._machine.step(Signal.NOT_BEGUN), ending=error)

    def _wait_for_room(self, error: StoreError) -> None:
        """Begin no turn that the store could not take."""
        if self._machine.starter is None:
            self.conversation.inbox.pause(error)
            self.host.paused(self.session_id, begun=False)
        self._refuse_turn(error)

    async def _drop(self, error: WarrenError) -> Result:
        """Take an input out of the store that no turn can begin with; if the store refuses, it waits on."""
        inbox = self.conversation.inbox
        kept = await self.conversation.store_outcome(inbox.outcome(error), error)

        def apply() -> None:
            inbox.end_turn(error) if kept is None else self._put_back(error)
            self.log.beginning.clear()
            self._perform(self._machine.step(Signal.NOT_BEGUN))

        return apply

    async def _commit_compaction(self, entry: CompactionEntry) -> Callable[[], None]:
        """Store the new head of the running turn; return the function that publishes the event of it."""
        turn, conversation = self._turn, self.conversation
        if turn is None:
            raise AgentError("no turn runs that could compact", session_id=self.session_id, cause="internal")
        if turn.plan.guard is not None:
            await turn.plan.guard.wait()  # so that the commit has the events of the attempt, which come before its end
        event = self.log.stamp(CompactionCompleted(entry.summary_tokens, entry.messages_before, entry.messages_after))
        record = self._within(turn, entry.created_at, event.seq)
        record = record.changed(head=entry.head, compactions=record.compactions + 1, last_input_tokens=0)
        settles = turn.steps is not None and turn.steps.rows
        await conversation.commit_step(record, event, entry, settles=settles)
        if turn.steps is not None:
            turn.steps.kept, turn.steps.rows = record.message_count, False
        if turn.plan.spending is not None:
            turn.plan.spending.stored()

        def publish() -> None:
            self.log.publish(event)
            self.log.committed()

        return publish

    def _within(
        self, turn: Turn, at: datetime, seq: int, *, parked: bool = False, wakes: datetime | None = None
    ) -> SessionRecord:
        """Return the record within the running turn, up to an event, as it is stored at a time."""
        conversation = self.conversation
        kept_seq = self._before_answer(turn, seq) if parked and turn.asks_model else seq
        steps, inputs = turn.steps, conversation.inbox.taken
        state = None if steps is None else turn.state(kept_seq, inputs, parked=parked, wakes=wakes)
        return turn.within(conversation.known, at, seq, state)

    def _before_answer(self, turn: Turn, seq: int) -> int:
        """Return the number of the newest event before the step whose answer is under way."""
        newest = reversed(self.log.unstored())
        begun = (each.seq for each in newest if isinstance(each, Envelope) and isinstance(each.event, TurnStarted))
        return next(begun, (turn.kept.kept_seq if turn.kept is not None else seq) + 1) - 1

    async def _commit_step(
        self,
        calls: Sequence[KeptCall],
        waits: Sequence[Wait],
        *,
        settles: bool,
        parked: bool = False,
        suspends: bool = False,
    ) -> None:
        """Store the running turn as it is; one that `suspends` with the time at which it goes on without an answer."""
        turn, conversation = self._turn, self.conversation
        if turn is None or turn.steps is None:
            raise AgentError("no turn runs that keeps its steps", session_id=self.session_id, cause="internal")
        if turn.plan.guard is not None:
            await turn.plan.guard.wait()
        waits = await conversation.without_answered(waits)
        if suspends:  # an answer that the store takes before this would not wake the turn
            await conversation.answers()
        wakes = turn.wakes if suspends else None
        # A look at a call that waits is no news of the session.
        same = suspends and self.log.last_seq == conversation.known.last_seq
        at = conversation.known.updated_at if same else utc_now()
        record = self._within(turn, at, self.log.last_seq, parked=parked, wakes=wakes)
        await conversation.commit_step(record, calls=calls, waits=waits, settles=settles)
        turn.steps.kept = record.message_count
        if turn.plan.spending is not None:
            turn.plan.spending.stored()
        self.log.committed(record.last_seq)  # tools that ran during the commit have published events since

    async def _put_aside(self, turn: Turn, *, suspends: bool = False) -> Committed:
        """Store a turn as far as it has come, for whoever goes on with it; if the store refuses, that is less far."""
        try:
            calls, waits = turn.unkept()
            await self._commit_step(calls, waits, settles=False, parked=True, suspends=suspends)
        except WarrenError as exc:
            return Committed(exc, leaves_unsure(exc))
        return COMMITTED

    async def _store_turn(self, turn: Turn) -> None:
        """Commit a turn that is over. A cancellation from outside ends it without a trace."""
        # A turn that suspends publishes no end for which a connection could hold its events back.
        self.log.settling = not turn.suspends
        conversation, record, committed = self.conversation, None, COMMITTED
        if turn.parks and turn.cut_off:  # one that has shown nothing has not begun, and its prompt waits on
            committed = COMMITTED if turn.first_seq is None else await self._put_aside(turn)
            if committed.error is None:  # the error for its callers
                committed = Committed(shut_down() if turn.first_seq is None else parked())
        elif turn.suspends:
            committed = await self._put_aside(turn, suspends=True)
            if committed.error is None:
                self._leave_turn()
                self._ended = TurnEnd(turn, turn.so_far(), parked(), None, None, committed, suspended=True)
                self._mail.extend(self.mailbox.take())
                return
        refusal: WarrenError | None = None if turn.plan.guard is None else turn.plan.guard.refusal
        if turn.steps is not None:
            refusal = turn.steps.refusal or refusal
            if turn.steps.rows:  # an answer that is on its way would come back into memory after the turn has ended
                await conversation.answers()
        outcome = turn.outcome() if committed.error is None else turn.so_far().failed(committed.error)
        terminal = self._terminal(turn, outcome)
        ending = outcome.ending(self.session_id, turn.first_seq, terminal)
        if turn.compacted is None and committed.error is None:
            record = outcome.record_after(turn.record, conversation.known, terminal, self.log.last_seq, turn.context)
            if refusal is None:
                key = turn.plan.message.key
                sends: tuple[Sent, ...] = ()
                if turn.given_up:
                    sends = tuple(map(cancel_of, turn.given_up))
                committed = await conversation.commit(record, terminal, ending, turn.plan.ended, key=key, sends=sends)
            else:  # its inputs wait on: stored with this error, they would have ended
                committed = Committed(refusal.copy(), leaves_unsure(refusal))
        # No checkpoint from the commit to here: a turn that is stored is never taken for one that was cut off.
        self._leave_turn()
        self._ended = TurnEnd(turn, outcome, ending, terminal, record, committed)
        self._mail.extend(self.mailbox.take())

    def _terminal(self, turn: Turn, outcome: Outcome) -> Envelope | None:
        """Return the terminal event of a turn; None if it only compacted, and published no first event."""
        return self.log.stamp(outcome.terminal(self.session_id)) if turn.first_seq is not None else None

    def _end_turn(self, end: TurnEnd) -> None:
        """Publish the end of a turn, free the session, and answer, in this order: the turn is committed already.

        Whoever has the answer finds the session free, and the events published.
        """
        if end.suspended:
            self._end_suspended(end.turn)
            return
        self._turn_tools, self.conversation.called = NO_TOOLS, False
        ending = self._publish_end(end)
        if end.turn.unreached and self.conversation.open_turn is None:
            # As an errand: it keeps the session in memory, and comes before the end of that, which drops its servers.
            self._send(partial(self._cancel, end.turn.unreached))
        self._perform(self._machine.step(ENDED), ending=end.turn.compacted or self._told(ending))
        self._end_inputs(end, ending)

    def _end_suspended(self, turn: Turn) -> None:
        """Let the session be idle while all calls of its open turn wait. Its callers wait on."""
        self._turn = self._ended = None
        conversation, machine, self._stays = self.conversation, self._machine, turn.stays_here
        self._turn_tools = {**turn.plan.message.tools, **self._turn_tools}
        conversation.inbox.starter = machine.take_starter() or conversation.inbox.starter
        for each in turn.plan.seam.around_turn:
            each.end(turn, None)
        self.log.committed()
        self.log.beginning.clear()
        if machine.interrupters:
            self._ends = cancelled()
        self._perform(machine.step(Signal.SUSPENDED), ending=parked())
        if (kept := conversation.open_turn) is not None and kept.wakes is not None:
            self.host.suspended(self.session_id, kept.wakes)

    def _told(self, ending: Ending) -> Ending:
        """Return the ending of a turn for its caller."""
        if not isinstance(ending, WarrenError):
            return ending
        ending.session_id = self.session_id
        return ending if self.conversation.open_turn is None else goes_on(ending.copy())

    def _publish_end(self, end: TurnEnd) -> Ending:
        """Let the conversation and the events be as the turn leaves them; return the ending of the turn."""
        self._turn = self._ended = None
        conversation, ending, terminal, error = self.conversation, end.ending, end.terminal, end.committed.error
        if end.committed.lease_lost:
            conversation.lease = None
        if error is not None:
            outcome = end.outcome.failed(error)
            # A turn that is open in the store has not ended: whoever goes on with it ends it.
            terminal = None if conversation.open_turn is not None else self._terminal(end.turn, outcome)
            ending = outcome.ending(self.session_id, end.turn.first_seq, terminal)
            deaths = 0 if end.turn.kept is None else end.turn.kept.deaths
            conversation.roll_back(outcome, end.turn.record, end.turn.plan.ended, deaths)
        elif end.record is not None:
            conversation.keep(end.record)
        if conversation.open_turn is None:
            _call_all(end.turn.unwanted)
        if terminal is not None:
            self._count(end.turn, terminal)
            self.log.publish(terminal)
        for each in end.turn.plan.seam.around_turn:
            each.end(end.turn, terminal)
        if error is None:
            self.log.committed()
        else:
            self.log.trim()
        self.log.beginning.clear()  # a turn that published nothing begins for nobody
        return ending

    def _count(self, turn: Turn, terminal: Envelope) -> None:
        """Count a turn that has ended."""
        counters, plan = self.shared.counters, turn.plan
        event, seconds = terminal.event, counters.now() - turn.began
        outcome, events = event.cause if isinstance(event, RunFailed) else COMPLETED, terminal.seq - self._before_turn
        counters.turn(plan.settings.choice, outcome, events, seconds, plan.meter.steps)

    def _end_inputs(self, end: TurnEnd, ending: Ending) -> None:
        """Answer for the inputs that the turn has taken, or let them wait again if the turn is not stored."""
        if end.turn.only_compacts:
            return  # it takes no inputs, and is no turn for those who wait for one
        if end.committed.error is None:
            self.conversation.inbox.end_turn(ending)
        elif isinstance(ending, WarrenError):
            self._put_back(ending)

    def _put_back(self, error: WarrenError) -> None:
        if self.conversation.inbox.put_back(error, stays_open=self.conversation.open_turn is not None):
            self.host.paused(self.session_id)

    # -- the end

    async def _retire(self) -> Result:
        """Store what is left of the session, and archive or delete it if the retirers ask for that."""
        retirers = [mail.message for mail in self._machine.retirers if isinstance(mail.message, Retire)]
        # The first of several that ask for the same is the one that the audit names.
        asked: dict[str, AuditEntry | None] = {each.how: each.audit for each in reversed(retirers)}
        stops, error = asked.keys() == {"stop"}, None
        if stops:
            await self.conversation.store_pending()
        elif (refused := (await self._load(Need.LEASE_ASKED_FOR)).refused) is not None:
            return partial(self._apply_retired, Signal.RETIRE_FAILED, asked, refused)
        else:
            try:
                await self._end_session(asked)
            except WarrenError as exc:
                return partial(self._apply_retired, Signal.RETIRE_FAILED, asked, exc)
        self.background.end(for_good=not stops)
        if "delete" in asked:
            try:
                await forget_deleted(self.session_id, self.shared.storage, self.shared.memory)
            except WarrenError as exc:  # the session is gone all the same
                error = exc
        return partial(self._apply_retired, Signal.RETIRED, asked, error)

    async def _end_session(self, asked: Mapping[str, AuditEntry | None]) -> None:
        """Archive or delete the session in the store. Raises WarrenError if that refuses."""
        conversation, session_id = self.conversation, self.session_id
        refused = await conversation.store_pending()
        if "delete" not in asked and conversation.open_turn is not None:
            await self._end_left(cancelled())
        if isinstance(refused, StoreError) and refused.away:  # the next change would wait for the store as long again
            raise StoreError(refused.message, session_id=session_id, cause="unreachable")
        if "delete" in asked:
            unwanted = await self._left_elsewhere()
            sends, children = conversation.told_by_end, await self._children()
            await conversation.write(Delete(session_id, asked["delete"], sends))
            _call_all(unwanted)
        else:
            sends, children = conversation.told_by_end, await self._children()
            await conversation.write(Archive(session_id, asked["archive"], conversation.held, sends))
        self.host.sent([*(each.session_id for each in sends), *children])

    async def _children(self) -> Sequence[str]:
        """Return the children, which the store tells of the end of the session."""
        query = SessionList(
            self.conversation.known.tenant, 0, MOST_TOLD, include_archived=True, delegated_by=self.session_id
        )
        return [each.session_id for each in await self.shared.storage.read(query)]

    def _apply_retired(self, signal: Signal, asked: Collection[str], error: WarrenError | None) -> None:
        machine = self._machine
        if isinstance(error, StoreError) and error.unknown:
            self.conversation.lease = None  # the store may have done it
        if signal is Signal.RETIRED:
            if "delete" in asked and (kept := self.conversation.open_turn) is not None:
                self._count_left(kept, cause_of(cancelled()), 0)
            if asked != {"stop"}:
                self.host.retired(self.session_id, deleted="delete" in asked)
            for mail in machine.postponed:  # requests that came meanwhile for the same need not be made again
                if isinstance(mail.message, Retire) and mail.message.how in asked:
                    mail.answer(None) if error is None else mail.refuse(error.copy())
        self._perform(machine.step(signal), ending=error)

    async def _store_pending(self) -> Result:
        await self.conversation.store_pending()
        return self._leave

    def _leave(self) -> None:
        """Leave memory, unless something was asked of the session meanwhile or the store still has to get something."""
        machine = self._machine
        conversation = self.conversation
        asked = self._mail or self.mailbox.waiting or self._has_work or conversation.inbox.has_callers
        tools = any(not each.of_client for each in self._turn_tools.values())  # they would be gone
        held = tools or self.background.waits or (self._stays and conversation.current and conversation.sleeps)
        # The mail goes before results: an errand may have ended whose request is not answered yet.
        errands = self._errands or self._results
        leaves = machine.state is State.LEAVING and not (asked or held or errands or conversation.pending)
        self._perform(machine.step(Signal.LEFT if leaves else Signal.STAYS))

    def terminate(self, error: Callable[[], WarrenError]) -> None:
        """Answer all requests that still wait, and end an open turn for its subscribers. Call it when `run` has ended.

        Args:
            error: makes the error for a request, a new one for each.
        """
        admitted, end = self._machine.admitted, self._ended
        if end is not None and end.suspended:
            self._turn = self._ended = None
            self.conversation.inbox.starter = self._machine.take_starter() or self.conversation.inbox.starter
        elif end is not None:
            # The loop did not come to it, but it is stored: it has ended as it says.
            ending = self._publish_end(end)
            self._reply(end.turn.compacted or self._told(ending))
            self._end_inputs(end, ending)
        self.conversation.release()
        self.mailbox.abandon(error)
        if admitted:
            self.host.turn_ended(self.session_id)
        turn_error = error()
        self.answering.abandon(error)
        if self.conversation.open_turn is not None and not isinstance(turn_error, SessionNotFoundError):
            turn_error = goes_on(turn_error)
        elif self._turn is not None and self._turn.first_seq is not None:
            # Of the turn itself nothing more is asked: it may be what is broken.
            terminal = self.log.stamp(RunFailed(self.session_id, turn_error.message, cause_of(turn_error)))
            self._count(self._turn, terminal)
            self.log.publish(terminal)
            for each in self._turn.plan.seam.around_turn:
                each.end(self._turn, terminal)
            turn_error.details |= {"first_seq": self._turn.first_seq, "last_seq": terminal.seq}
        self.log.beginning.clear()
        self.conversation.inbox.close(error(), turn_error)
        starter = self._machine.take_starter()
        if starter is not None:
            starter.refuse(turn_error.copy())
        for mail in (*self._machine.close(), *self._mail, *([] if self._in_hand is None else [self._in_hand])):
            mail.refuse(error())


def _raise(error: WarrenError) -> None:
    raise error


def _charge_of(notice: Numbered) -> Expense:
    end = notice.input.end
    return NO_EXPENSE if end is None else end.charge


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


async def _come_late(comms: Comms, conversation: Conversation, response: Input) -> None:
    await comms.come_late(conversation.known, response)
