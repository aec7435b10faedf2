"""The conversation of a session in memory: its record, its context, its lease; how it is loaded and committed."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from warren.actors.events.eventlog import EventLog, utc_now
from warren.actors.events.fence import Guard
from warren.actors.observe.metrics import ABOUT_ONE
from warren.actors.protocol import GiveAnswer, Relabel
from warren.actors.resources.storage import Storage
from warren.actors.session.answers import answers
from warren.actors.session.ending import Ending
from warren.actors.session.inbox import Inbox
from warren.actors.turn.compaction import transcript_of, wanted_of
from warren.actors.turn.left import left_events, left_results
from warren.actors.turn.outcome import LONGEST_TEXT, Outcome, cause_of
from warren.actors.turn.toolbox import SLACK
from warren.base.errors import (
    AgentError,
    LeasedError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.base.fields import encodable
from warren.base.ids import new_session_id
from warren.base.values import define, frozen
from warren.calls.creation import FIRST_PROMPT, Creation
from warren.conversation import codec
from warren.conversation.budget import NO_EXPENSE, Expense
from warren.conversation.delegation import ChildEnd, Delegation
from warren.conversation.events import Envelope, RunFailed, TurnResumed
from warren.conversation.inputs import Input, Numbered
from warren.conversation.messages import SystemMessage
from warren.conversation.open_turn import KeptCall, OpenTurn
from warren.conversation.records import CompactionEntry, MessageRow, SessionRecord
from warren.conversation.transcript import Transcript
from warren.conversation.waits import Wait, WaitKey
from warren.models.tools import bounded
from warren.reports.audit import AuditEntry
from warren.reports.ledger import Charge
from warren.storage.operations import (
    FIRST,
    NOTHING,
    Claimed,
    Commit,
    Delegate,
    EndInputs,
    InputOutcome,
    Lease,
    LeaseHeld,
    Operation,
    Reserve,
    Sent,
    StoreAnswer,
)
from warren.storage.queries import ANY_TENANT, SessionRow, SessionStart, StoredWait, WaitingInputs
from warren.storage.refusals import leased, not_found, taken_over

if TYPE_CHECKING:
    from warren.storage.store import Store

R = TypeVar("R")
MARGIN: Final = 64 * 1024
"""Bytes for which a store that has refused a turn has to have room besides: the next turn may be longer."""
MOST: Final = 64 * 1024 * 1024
"""Bytes for which a store has to have room at most: to ask for more would cost as much as a call of the model."""
logger: Final = logging.getLogger("warren.session")


@frozen
class Committed:
    """The outcome of the commit of a turn.

    Attributes:
        error: why the store has not taken the turn; None if the store has.
        lease_lost: whether the lease has to be asked for again, as the store may have something newer.
    """

    error: WarrenError | None = None
    lease_lost: bool = False


COMMITTED: Final = Committed()


@define(eq=False)
class Conversation:
    """The conversation of one session in memory. One task at a time changes it.

    That is the session's loop; while the conversation is being loaded, the task that loads it; and while a turn runs,
    the turn, which appends to the context and may compact it.

    Attributes:
        log: the session's events.
        storage: the store of the runtime.
        inbox: the session's inputs.
        record: the session as of its last finished turn; replaced whole, so that any task may read it at any time. None
            until it is loaded.
        lease: the right of this process to write the session. None if the process has to ask for it, as the store may
            have a newer record.
        charges: entries that the store's ledger does not have yet.
        calls: the tool calls of an open turn that have a state in the store, by id.
        waits: what tool calls wait for, as the store has it, without what is settled.
        elsewhere: whether another process had the session when this one asked: what is left there is no work here.
        called: whether a client has come back for which a call of the open turn waits.
        sent: called with the sessions for which a change of this one has put notices into their inboxes.
        rewound: whether the store has gone back since the record was written, so that later copies of its messages may
            be in the memory.
    """

    log: EventLog
    storage: Storage
    inbox: Inbox
    record: SessionRecord | None = None
    lease: Lease | None = None
    charges: list[Charge] = attrs.field(factory=list)
    calls: dict[str, KeptCall] = attrs.field(factory=dict)
    waits: dict[WaitKey, Wait] = attrs.field(factory=dict)
    _answering: dict[trio.Event, Collection[WaitKey]] = attrs.field(factory=dict)  # answers on their way to the store
    elsewhere: bool = False
    called: bool = False
    sent: Callable[[Sequence[str]], object] = lambda _session_ids: None
    rewound: bool = False
    _lapses: int = 0
    _put_back: OpenTurn | None = None  # the open turn as it was put back, if the store does not have it so
    _first_step: OpenTurn | None = None  # the running turn, if the store refused the first step, or has it all the same
    _refused: int = 0  # bytes of the newest commit if the store could not take it
    _locked: bool = False  # whether the newest turn was refused because another process kept the store locked
    _has_told: bool = False  # whether the store has the end of the delegated work, which the inbox may not show yet
    _labelled: int = 0  # the number of the store's change that the labels are of
    # What the next model call sees; beyond the record's message_count it is a running turn's. None: not loaded.
    _context: Transcript | None = None

    @property
    def known(self) -> SessionRecord:
        """The record of a session that is loaded."""
        if self.record is None:
            raise AgentError("the session is not loaded", session_id=self.log.session_id, cause="internal")
        return self.record

    @property
    def context(self) -> Transcript:
        """The context, once a turn has had it loaded."""
        if self._context is None:
            raise AgentError("the context is not loaded", session_id=self.log.session_id, cause="internal")
        return self._context

    @property
    def current(self) -> bool:
        """Whether nothing newer can be in the store."""
        return self.record is not None and self.lease is not None and self._lapses == self.storage.lapses

    @property
    def doubt(self) -> WarrenError | None:
        """The error of a request that is refused for what is in memory alone; None if that holds for certain."""
        fence = self.storage.fence
        if fence is None or (self.current and fence.proved):
            return None
        return fence.unproved(self.log.session_id)

    @property
    def held(self) -> Lease:
        """The lease under which this process writes the session."""
        return self.lease or FIRST

    @property
    def archived(self) -> bool:
        """Whether the session is known to be retired."""
        return self.record is not None and self.record.archived

    @property
    def open_turn(self) -> OpenTurn | None:
        """The turn that is open in the store and can be gone on with; None if there is none."""
        return None if self.record is None else self.record.turn

    @property
    def has_work(self) -> bool:
        """Whether a turn is to begin by itself: one that was left open goes on, or an input waits."""
        if self.inbox.paused or self.elsewhere:
            return False
        turn = self.open_turn
        return self.inbox.first() is not None if turn is None else not self.sleeps

    @property
    def sleeps(self) -> bool:
        """Whether nothing can be done of the open turn: each of its calls without a result waits."""
        turn = self.open_turn
        if turn is None or turn.wakes is None or self.called or turn.wakes <= self.storage.now() + SLACK:
            return False
        return not any(map(self._wakes, self.waits.values())) or self.awaits_children()

    def awaits_children(self, *answered: Wait) -> bool:
        """Return whether the open turn waits for more children: it need not go on with the ends of the others before.

        Args:
            answered: waits of children that have their answers besides those that are known to have.
        """
        keys = {wait.key for wait in answered}
        waits = [wait for wait in self.waits.values() if wait.key not in keys]
        if any(self._wakes(wait) and wait.reason != "child" for wait in waits):
            return False
        return any(wait.reason == "child" and wait.state == "waiting" and not self._has_result(wait) for wait in waits)

    def _has_result(self, wait: Wait) -> bool:
        """Return whether a call has a result without its wait, as its tool failed."""
        call = self.calls.get(wait.call_id)
        return call is not None and call.result is not None

    def _wakes(self, wait: Wait) -> bool:
        """Return whether a wait has an answer that its call has not got: one may come for a call that has a result."""
        call = self.calls.get(wait.call_id)
        of_turn = wait.reason not in ("background", "question")  # a question is one of a call that runs, or is gone
        return wait.state == "answered" and of_turn and (call is None or call.result is None)

    @property
    def ready(self) -> bool:
        """Whether a turn can begin: the record is current, the context is here, and the store took the newest turn."""
        there = self._context is not None and self.record is not None and self.lease is not None
        return there and self._lapses == self.storage.lapses and not self._refused and self.storage.fault is None

    def guard(self) -> Guard | None:
        """Return the fence for work that begins under the lease of this process; None if nobody else can have it."""
        storage, session_id = self.storage, self.log.session_id
        if storage.fence is None:
            return None
        guard = Guard(session_id, storage.fence, self.log.emit, partial(storage.has_lease, session_id, self.held))
        guard.lapses = self._lapses  # the leases may have lapsed since this one was taken
        return guard

    def runs_none(self) -> WarrenError:
        """Return the error of a request for the open turn, if there is none, or another process may have one."""
        problem = "the session runs no turn"
        return self.doubt or SessionNotRunningError(problem, session_id=self.log.session_id)

    @property
    def left(self) -> OpenTurn | None:
        """The open turn as it was put back, for the next actor: the store does not have it so, as far as is known."""
        return self._put_back if self.record is None or self._put_back is self.open_turn else None

    def go_on_from(self, left: OpenTurn | None) -> None:
        """Take what an actor of this process has left: its turn has not died of a process."""
        self._put_back = left

    @property
    def pending(self) -> bool:
        """Whether the store is to get something before the session leaves memory.

        That is events, and that the open turn is put back: whoever goes on with it would count a death else.
        """
        return self.log.pending or (self._put_back is not None and self._put_back is self.open_turn)

    # -- loading

    async def create(
        self,
        record: SessionRecord,
        system_prompt: str | None,
        creation: Creation | None,
        audit: AuditEntry | None,
    ) -> None:
        """Store a new session with the key that it is created under and its entry in the audit; hold its lease.

        Raises:
            StoreError: if the store refuses; it names no session, as there is none.
        """
        self._context = Transcript()
        if system_prompt is not None:
            self._context.append(SystemMessage(system_prompt, None if record.agent is None else record.agent.ref))
        record = record.changed(message_count=self._context.end)
        try:
            await self._write(record, 0, creation=creation, audit=audit)
        except WarrenError as exc:
            exc.session_id = None
            raise
        self.record = record
        self._take_lease(FIRST)

    async def delegate(self, operation: Delegate) -> bool:
        """Store a new session that works for another one, with its prompt; hold its lease.

        Returns False if the session is there already: then it is not loaded. Raises WarrenError if the store refuses.
        """
        number = await self.storage.write_or_find(operation, partial(_find, operation.session_id))
        if not number:
            return False
        record: SessionRecord | None = operation.record
        if operation.lends:  # only the store knows its budget
            record = await self.storage.read(SessionRow(operation.session_id, ANY_TENANT))
            if record is None:
                return False
        self._context = Transcript(each.body for each in operation.messages)
        self.record = record
        self._take_lease(FIRST)
        self.inbox.load((Numbered(number, operation.prompt),), number)
        return True

    async def refresh(self) -> None:
        """Load the record without the lease, unless it is current.

        Raises:
            SessionNotFoundError: if the store has no such session.
            StoreError: if the store cannot be read.
        """
        if self.current:
            return
        stored = await self.storage.read(SessionStart(self.log.session_id))
        if stored is None:
            raise self._gone()
        self._begin(self._as_left(stored.record))
        self.log.bound = stored.seq_floor
        if stored.record.turn_open and stored.record.turn is None:
            with contextlib.suppress(LeasedError):
                await self.acquire()

    async def acquire(self, *, ask: bool = False) -> None:
        """Take the lease, and load the record and the inbox with it, unless the record is current.

        Args:
            ask: whether another process that has the session is asked to hand it over, if it is idle there.

        Raises:
            SessionNotFoundError: if the store has no such session.
            LeasedError: if another process has the session.
            StoreError: if the store refuses for another reason.
        """
        if self.current:
            return
        found = await self.storage.claim(self.log.session_id)
        if ask and isinstance(found, LeaseHeld) and await self.storage.ask_for(self.log.session_id):
            found = await self.storage.claim(self.log.session_id)
        match found:
            case None:
                raise self._gone()
            case LeaseHeld(holder):
                self.elsewhere = True
                raise leased(self.log.session_id, holder)
            case Claimed():
                self._take(found)
                if found.record.turn_open and found.record.turn is None:
                    await self._close_open_turn(found.record)

    def _take(self, claimed: Claimed) -> None:
        """Let the conversation be as the store has it, with its lease."""
        record, waits = claimed.record, claimed.waits
        for problem in claimed.lost:
            logger.error("%s: it is passed over", problem)
        self._begin(self._as_left(record))
        self._take_lease(claimed.lease)
        went_back_at = self.storage.went_back_at
        self.rewound = went_back_at is not None and record.updated_at <= went_back_at
        self.calls = {each.call_id: each for each in claimed.calls}
        self.waits = {each.key: each for each in waits}
        for each in waits:
            self.remember(each)  # the process that stored the answer may have ended before it could
        self.inbox.load(claimed.inbox, claimed.inbox_to, () if record.turn is None else record.turn.inputs)

    def _as_left(self, record: SessionRecord) -> SessionRecord:
        """Return a record of the store with its open turn put back if it was here, and nobody has gone on with it."""
        left, kept = self._put_back, record.turn
        if left is None or kept is None or (left.first_seq, left.lives) != (kept.first_seq, kept.lives) or kept.parked:
            return record
        self._put_back = kept.changed(deaths=left.deaths, parked=True)  # as of `roll_back`
        return record.changed(turn=self._put_back)

    async def store_pending(self) -> WarrenError | None:
        """Store what the store refused before, events of a turn or that it is put back; if it refuses again, it stays.

        Return the error of the store, if it refuses.

        A locked store has been waited for when it refused the turn, so it is not waited for as long again.
        """
        for _ in range(2):
            if self.pending:
                try:
                    await self.acquire()
                    record = self.known.changed(last_seq=self.log.last_seq)
                    events, lease = self.log.unstored(None), self.held
                    charges = tuple(self.charges)
                    hurried, base = self._locked, self._base()
                    commit = Commit(record, (), events, lease=lease, charges=charges, hurried=hurried, base=base)
                    await self.write(commit)
                except (LeasedError, SessionNotFoundError) as exc:
                    self._put_back = None  # it is for others to say what becomes of the turn
                    return exc
                except WarrenError as exc:
                    # A storage actor that crashed has restarted by the second try. A full or locked store would only
                    # hold up the end of the session.
                    if exc.cause != "crash":
                        return exc
                else:
                    self.charges.clear()
                    self.keep(record)
                    self._put_back = None
                    self.log.committed()
        return None

    def release(self) -> None:
        """Put the lease back, without waiting. From here on any process may change the session."""
        lease, self.lease = self.lease, None
        # Events that were published and are not stored keep their numbers: the lease stays taken, so that the next
        # process has to wait for its end, and then counts on from higher numbers.
        if lease is not None and not self.log.pending:
            self.storage.release(self.log.session_id, lease)

    def _begin(self, record: SessionRecord) -> None:
        left, kept = self.open_turn, record.turn
        if left is not None and (kept is None or kept.first_seq != left.first_seq):
            self.inbox.ended_elsewhere()
        self.log.begin(record.last_seq)
        self.record, self._context = record, None
        # Nobody knows whether the newest commit came to be: the ledger has what this record has.
        self.charges.clear()

    def _take_lease(self, lease: Lease) -> None:
        self.lease, self.elsewhere = lease, False
        self._lapses = self.storage.lapses

    def _gone(self) -> WarrenError:
        self.log.close()  # its subscribers would wait for ever
        return not_found(self.log.session_id)

    async def load_context(self) -> None:
        """Load the messages of the context, unless they are here. Only turns need them. Raises StoreError."""
        if self._context is None:
            record = self.known
            self._context = transcript_of(record, await self.storage.read(wanted_of(record)))

    async def reserve(self) -> None:
        """Have the store prove that it takes writes, if it could not take the newest one: else a model works in vain.

        Raises StoreError.
        """
        if self._refused or self.storage.fault is not None:
            # The next commit brings the events of the refused turn besides those of its own.
            size = min(2 * self._refused + MARGIN, MOST)
            await self.storage.write(Reserve(self.log.session_id, size))
            self._refused = 0

    async def _close_open_turn(self, record: SessionRecord) -> None:
        """End a turn in the store that cannot be gone on with, as its process died."""
        lost = RunFailed(record.session_id, "the process ended during the turn", "crash")
        # If this process has published events of the turn and could not store them, they end with a terminal event.
        terminal = None if self.log.pending else self.log.stamp(lost)
        last_seq = self.log.last_seq if terminal is None else terminal.seq
        base = self._base()
        turns = record.turns + 1
        self.record = record.changed(turn_open=False, turns=turns, last_seq=last_seq, last_outcome=lost.cause)
        try:
            ended = (Charge(record.model, turns=1),)
            events = self.log.unstored(terminal)
            # Nobody knows whose turn it was; a call gets its first end alone, but a budget would count another one.
            first = record.turns == 0 or (record.delegation is not None and record.delegation.call_id is not None)
            sends = self._told(AgentError(lost.error, cause="crash")) if first else ()
            commit = Commit(self.record, (), events, lease=self.held, charges=ended, base=base, sends=sends)
            await self.write(commit)
            self._sent(sends)
        except StoreError as exc:
            if not await self._stored_after_all(exc, self.record):
                raise
        if terminal is not None:
            self.log.publish(terminal)
        self.log.committed()

    async def end_open_turn(self, error: WarrenError) -> Envelope | None:
        """End an open turn in the store with an error, without running it, with all that it has kept.

        Returns its last event; None if there is no such turn. Readers first take back what they were shown of a step
        that was not kept.

        Raises WarrenError if the store refuses; then the turn is open as before.
        """
        record = self.known
        if record.turn is None:
            return None
        await self.load_context()
        turn, context = record.turn, self.context
        if turn.wakes is None:
            self.log.emit(TurnResumed(turn.resumed + 1, turn.kept_seq))
        if turn.answer is not None:
            context.append(codec.decode_message(turn.answer))
        elif (results := left_results(context, self.calls, self.waits, f"not run: {error.message}")) is not None:
            for event in left_events(context, self.calls, self.waits, results):
                self.log.emit(event)
            context.append(results)
        given_up = [wait.expense for wait in self.waits.values() if not self._has_result(wait)]
        if turn.text:
            error.details["text"] = turn.text[:LONGEST_TEXT]
        terminal = self.log.stamp(RunFailed(record.session_id, error.message, cause_of(error)))
        error.details |= {"first_seq": turn.first_seq, "last_seq": terminal.seq}
        error.session_id = record.session_id
        ended = record.changed(
            turn_open=False,
            turn=None,
            turns=record.turns + 1,
            message_count=context.end,
            updated_at=terminal.timestamp,
            last_seq=terminal.seq,
            last_assistant_text=turn.text or record.last_assistant_text,
            last_outcome=cause_of(error),
            delegated=sum(given_up, record.delegated),
        )
        try:
            charge = Charge(record.model, turns=1, payer=turn.payer)
            await self._write(ended, record.message_count, terminal, ending=error, turns=(charge,), key=turn.key)
        except WarrenError as exc:
            if not (isinstance(exc, StoreError) and await self._stored_after_all(exc, ended)):
                context.truncate(record.message_count)
                self.log.trim()
                raise
        self.charges.clear()
        self.calls = {}
        self._settle_waits()
        self.keep(ended)
        self.log.publish(terminal)
        self.log.committed()
        self.inbox.end_turn(error)
        return terminal

    # -- changing

    async def write(self, operation: Operation[R]) -> R:
        """Write a change of the session; if another process has it, or had, what is here counts no more from now on.

        Raises WarrenError if the store refuses.
        """
        try:
            return await self.storage.write(operation)
        except StoreError as exc:
            if exc.cause in ("leased", "lease_lost"):  # the process need not have noticed: clocks are put back
                self.lease = None
            raise

    async def lost(self) -> StoreError | None:
        """Return the error for a request if the store says that another process has, or had, the session; else None.

        The process need not have noticed: a clock that is put forward ends its leases. Raises StoreError.
        """
        lease = self.lease
        if lease is None or await self.storage.has_lease(self.log.session_id, lease):
            return None
        if self.lease is lease:
            self.lease = None
        return taken_over(self.log.session_id, None)

    def relabel(self, change: Relabel) -> None:
        """Show other labels and another title; ignore a change that the store made before the newest one shown.

        Tools are asked about again in each case: the record may have been loaded before the store had the change.
        """
        known, stored = self.known, change.stored
        allowed = tuple(name for name in known.allowed_tools if name not in change.ask_again)
        if allowed != known.allowed_tools:
            self.record = known.changed(allowed_tools=allowed)
        if stored is not None and stored.change > self._labelled:
            self._labelled, now = stored.change, stored.record
            self.record = self.known.changed(labels=now.labels, title=now.title or self.known.title)

    def remember(self, wait: Wait) -> None:
        """Let the tool of a call run without approval if its answer says so. The next commit stores it."""
        decision, allowed = wait.decision, self.known.allowed_tools
        remembers = decision is not None and decision.remember and not wait.stands_alone
        if remembers and wait.name not in allowed:
            self.record = self.known.changed(allowed_tools=(*allowed, wait.name))

    def keep(self, record: SessionRecord) -> None:
        """Replace the record, but not what may have changed since the new one was made."""
        now = self.known
        labels, title, allowed = now.labels, now.title or record.title, now.allowed_tools
        same = record.labels is labels and record.title == title and record.allowed_tools is allowed
        self.record = record if same else record.changed(labels=labels, title=title, allowed_tools=allowed)

    async def commit(
        self,
        record: SessionRecord,
        terminal: Envelope | None,
        ending: Ending,
        ended: Charge,
        *,
        key: str | None = None,
        sends: tuple[Sent, ...] = (),
    ) -> Committed:
        """Store a turn that has ended: its record, messages and events, and its ending for the inputs that it took.

        With a terminal event, `ended` counts it in the ledger. The `key` is that of its prompt; `sends` has notices for
        other sessions, besides those that follow from its end.

        Changes nothing here: the loop does, by `keep` or `roll_back`.
        """
        self._locked = False
        try:
            turns = () if terminal is None else (ended,)
            first = self.known.message_count
            await self._write(record, first, terminal, ending=ending, turns=turns, key=key, sends=sends)
        except StoreError as exc:
            self._locked = exc.cause == "locked"
            lost = leaves_unsure(exc)
            if not await self._stored_after_all(exc, record):
                return Committed(exc, lost)
            self.charges.clear()
            return Committed(None, lost)
        except WarrenError as exc:
            return Committed(exc, lease_lost=True)
        self.charges.clear()
        if self.calls:
            self.calls = {}
            self._settle_waits()
        return COMMITTED

    def roll_back(self, outcome: Outcome, base: SessionRecord, ended: Charge, deaths: int) -> None:
        """Drop the messages of a turn that the store has refused, or that stays open; the record has its costs alone.

        A turn of which steps are kept stays open. If a compaction has stored the beginning of another one, that was a
        turn: `ended` counts it in the ledger. An open turn has had so many `deaths`, also if no step could store that.
        """
        record = outcome.charged(base, self.known)
        kept, self._first_step = record.turn or self._first_step, None
        if kept is not None:  # the process lives on: whoever goes on with it, it has not died of it
            spent, usage = outcome.spent, outcome.usage
            self._put_back = kept.changed(usage=usage, spent=spent, deaths=deaths, parked=True)
        if record.turn is not None:
            record = record.changed(turn=self._put_back)
        if self.context.system != record.instructed_at:  # instructions of the turn are gone
            self._context = None
        else:
            self.context.truncate(record.message_count)
            self.context.leave_out(record.left_out)  # what the turn had told in words instead is gone
            self.context.parts = [span for span in self.context.parts if span.end <= record.message_count]
        if record.turn_open and record.turn is None:
            record = record.changed(turn_open=False, turns=record.turns + 1, last_outcome="store_error")
            self.charges.append(ended)
        self.keep(record)

    async def store_outcome(self, inputs: InputOutcome, withdrawn: WarrenError | None = None) -> WarrenError | None:
        """Store the outcome of inputs without a turn; return the error if the store refuses.

        Args:
            inputs: the inputs.
            withdrawn: the ending of prompts among them; None if they are notices.
        """
        try:
            ends = withdrawn is not None and not self._has_told and self.inbox.has_first(inputs)
            sends = self._told(withdrawn) if withdrawn is not None and ends else ()
            await self.write(EndInputs(self.log.session_id, inputs, sends, self.held))
        except WarrenError as exc:
            if not (isinstance(exc, StoreError) and await self.storage.after_crash(exc, partial(self._ended, inputs))):
                return exc
        self._has_told |= ends
        self._sent(sends)
        return None

    async def _ended(self, inputs: InputOutcome, store: "Store") -> bool:
        """Return whether a store has the outcome of inputs."""
        waiting = await store.read(WaitingInputs(self.log.session_id, ANY_TENANT))
        return not any(each.number in inputs.numbers for each in waiting)

    @property
    def told_by_end(self) -> tuple[Sent, ...]:
        """The notice that the end of the session brings its parent, if the delegated turn has not ended."""
        turn = self.open_turn
        waits = self.inbox.first_waits and not self._has_told
        unfinished = waits if turn is None else turn.key == FIRST_PROMPT
        return self._told(AgentError("the session was archived or deleted", cause="cancelled")) if unfinished else ()

    def _told(self, ending: Ending, record: SessionRecord | None = None) -> tuple[Sent, ...]:
        """Return the notice of the end of the delegated turn, if a call of the parent waits for it, or its budget."""
        record = record or self.known
        place = record.delegation
        if place is None or (place.call_id is None and place.lent is None):
            return ()
        return (Sent(place.session_id, notice_of(record, place, ending)),)

    async def charge(self, expense: Expense, inputs: InputOutcome) -> WarrenError | None:
        """Count what children have spent of the session's budget, once with the notices that say so; no turn runs.

        Return the error if the store refuses.
        """
        record, turn = self.known, self.open_turn
        counted = record.delegated + expense
        changed = record.changed(delegated=counted)
        if turn is not None:
            start = attrs.evolve(turn.start, delegated=turn.start.delegated + expense)
            changed = changed.changed(turn=turn.changed(start=start))
        commit = Commit(changed, (), self.log.unstored(None), lease=self.held, inputs=inputs, base=self._base())

        async def stored(store: "Store") -> bool:
            found = await store.read(SessionRow(record.session_id, ANY_TENANT))
            return found is not None and found.delegated == counted

        try:
            await self.write(commit)
        except WarrenError as exc:
            if leaves_unsure(exc):
                self.lease = None
            if not (isinstance(exc, StoreError) and await self.storage.after_crash(exc, stored)):
                return exc
        self.keep(changed)
        return None

    async def end_child(self, child: str) -> None:
        """Tell a child that its time limit is over; if the store refuses, it hears that with the others."""
        sends = (cancel_of(child),)
        with contextlib.suppress(WarrenError):
            await self.write(EndInputs(self.log.session_id, NOTHING, sends))
            self._sent(sends)

    def _cancels(self) -> Iterator[Sent]:
        """Yield the notices for the children whose ends nobody waits for, as the calls of the turn are over."""
        for wait in self.waits.values():
            if wait.state == "waiting" and wait.child is not None:
                yield cancel_of(wait.child)

    def _sent(self, sends: Iterable[Sent]) -> None:
        if sends:
            self.sent([each.session_id for each in sends])

    async def commit_step(
        self,
        record: SessionRecord,
        announcement: Envelope | None = None,
        entry: CompactionEntry | None = None,
        calls: Sequence[KeptCall] = (),
        waits: Sequence[Wait] = (),
        *,
        settles: bool = False,
    ) -> None:
        """Store a running turn as it is, with its messages and events so far.

        After a compaction the context is still the old one: the turn replaces it.

        Args:
            record: the record within the turn.
            announcement: the event of a compaction, which is not published yet.
            entry: the compaction.
            calls: the tool calls whose states have changed.
            waits: the waits that are new, or have changed.
            settles: whether the states of all other calls go.

        Raises:
            StoreError, SessionNotFoundError: if the store refuses; nothing is changed.
        """
        try:
            await self._write(
                record,
                self.known.message_count,
                announcement,
                entry,
                calls=tuple(calls),
                waits=tuple(waits),
                settles=settles,
            )
        except StoreError as exc:
            if not await self._stored_after_all(exc, record):
                self._first_step = record.turn if self.open_turn is None else None
                raise
        self.charges.clear()
        if settles:
            self.calls.clear()
            self._settle_waits()
        self.calls.update((each.call_id, each) for each in calls)
        for wait in waits:
            if wait.state == "settled":
                self.waits.pop(wait.key, None)
            elif not (wait.state == "waiting" and self._has_answer(wait)):  # it was stored behind this
                self.waits[wait.key] = wait
        self.inbox.keep_taken()
        self.keep(record)

    async def store_answer(
        self,
        wait: Wait,
        audit: Sequence[AuditEntry] = (),
        others: Sequence[Wait] = (),
        inputs: InputOutcome = NOTHING,
    ) -> None:
        """Store the answer to a wait, and to others, all or none, whatever else the session does.

        The `inputs` are the notices that have brought it.

        Raises WarrenError if the store refuses.
        """

        async def stored(store: "Store") -> bool:
            return await store.read(StoredWait(self.log.session_id, ANY_TENANT, wait.wait_id, (wait.reason,))) == wait

        over, waits = trio.Event(), (wait, *others)
        # By an event, not by a key: a result and the end of its wait may both be on their way.
        self._answering[over] = [each.key for each in waits]
        try:
            sleeps = all(each.reason == "child" for each in waits) and self.awaits_children(*waits)
            given = wait, self.held, tuple(audit), tuple(others), inputs, sleeps
            await self.write(StoreAnswer(self.log.session_id, *given))
        except StoreError as exc:
            if not await self.storage.after_crash(exc, stored):
                raise
        finally:
            del self._answering[over]
            over.set()
        for each in waits:  # before the next answer is looked at, and before who waits for this one goes on
            self.waits[each.key] = each
        turn = self.open_turn
        if turn is not None and turn.wakes is not None and not sleeps and wait.reason != "background":
            # A later change of the record would have the turn sleep on otherwise.
            self.keep(self.known.changed(turn=turn.changed(wakes=min(turn.wakes, self.storage.now()))))
        self.inbox.paused = False

    async def answers(self) -> None:
        """Return once no answer is on its way to the store. No checkpoint lies between the last one and this."""
        while self._answering:
            await next(iter(self._answering)).wait()

    async def without_answered(self, waits: Sequence[Wait]) -> Sequence[Wait]:
        """Return those of some waits that are to be stored: not those that begin and have an answer already.

        A result from outside may come while its call runs, and is stored first.
        """
        if not waits:
            return waits
        keys = {wait.key for wait in waits}
        for over in [over for over, answered in self._answering.items() if not keys.isdisjoint(answered)]:
            await over.wait()
        return [wait for wait in waits if wait.state != "waiting" or not self._has_answer(wait)]

    def _has_answer(self, wait: Wait) -> bool:
        there = self.waits.get(wait.key)
        if there is None or there.state != "answered":
            return False
        return (
            there.same_as(wait)
            if wait.reason in ("child", "peer")
            else there.data == wait.data and wait.reason == "outside"
        )

    @property
    def unanswered(self) -> Sequence[Wait]:
        """The waits that nobody has answered, the oldest first."""
        return sorted((wait for wait in self.waits.values() if wait.state == "waiting"), key=lambda wait: wait.since)

    def find_request(self, request_id: str) -> Wait | None:
        """Return the wait for the response to a request; None if there is none."""
        return next((wait for wait in self.waits.values() if wait.request == request_id), None)

    def find_wait(self, message: GiveAnswer) -> Wait | None:
        """Return the wait that an answer is meant for; None if there is none that is not settled."""
        named = (self.waits.get((reason, message.wait_id)) for reason in message.reasons)
        found = next((wait for wait in named if wait is not None and answers(wait, message)), None)
        if found is not None:  # as a rule: a turn may wait for a thousand children
            return found
        return next((wait for wait in self.waits.values() if answers(wait, message)), None)

    async def earlier_wait(self, message: GiveAnswer) -> Wait | None:
        """Return the wait that an answer was meant for, from the store; None if there was none. Raises StoreError."""
        reasons = message.reasons if message.begins is None else (*message.reasons, "background")
        query = StoredWait(self.log.session_id, ANY_TENANT, message.wait_id, reasons)
        found = await self.storage.read(query)
        return found if found is not None and answers(found, message) else None

    def _settle_waits(self) -> None:
        """Drop the waits of a turn whose calls have their results, or which has ended."""
        for key in [key for key, wait in self.waits.items() if wait.reason != "background"]:
            del self.waits[key]

    async def _write(
        self,
        record: SessionRecord,
        first: int,
        last: Envelope | None = None,
        compaction: CompactionEntry | None = None,
        *,
        ending: Ending | None = None,
        creation: Creation | None = None,
        turns: tuple[Charge, ...] = (),
        audit: AuditEntry | None = None,
        calls: tuple[KeptCall, ...] = (),
        waits: tuple[Wait, ...] = (),
        settles: bool = False,
        key: str | None = None,
        sends: tuple[Sent, ...] = (),
    ) -> None:
        """Commit the record, its messages from position `first` on, the events with a last one, and a new head."""
        places, bodies = range(first, record.message_count), self.context.since(first)
        rows = tuple([MessageRow(place, record.updated_at, body) for place, body in zip(places, bodies, strict=False)])
        inputs = self.inbox.outcome(ending)
        settles = settles or (record.turn is None and bool(self.calls))
        if self.record is not None and record.allowed_tools is not self.record.allowed_tools:
            record = record.changed(allowed_tools=self.record.allowed_tools)
        events = self.log.unstored(last)
        charges = (*self.charges, *turns)
        base, lease = self._base(), self.held
        if settles and self.waits:
            sends = (*sends, *self._cancels())
        if key is not None and record.delegation is not None and key == FIRST_PROMPT and ending is not None:
            sends = (*sends, *self._told(ending, record))
        commit = Commit(
            *(record, rows, events, compaction, lease, inputs, creation, charges),
            audit=audit,
            calls=calls,
            waits=waits,
            settles=settles,
            base=base,
            sends=sends,
        )
        try:
            await self.write(commit)
        except StoreError as exc:
            if exc.cause not in ABOUT_ONE:
                self._refused = commit.size
            raise
        if sends:
            self._sent(sends)

    def _base(self) -> tuple[int, int] | None:
        record = self.record
        return None if record is None else (record.message_count, record.last_seq)

    async def _stored_after_all(self, error: StoreError, record: SessionRecord) -> bool:
        """Look for a commit in the store if the storage actor crashed before it could answer."""

        async def stored(store: "Store") -> bool:
            found = await store.read(SessionRow(record.session_id, ANY_TENANT))
            return found is not None and _state_of(found) == _state_of(record)

        return bool(await self.storage.after_crash(error, stored))


async def _find(session_id: str, store: "Store") -> int | None:
    """Return 0 if a session is in the store, as no input has this number."""
    return None if await store.read(SessionRow(session_id, ANY_TENANT)) is None else 0


def _state_of(record: SessionRecord) -> tuple[object, ...]:
    """Return what each commit of a session changes: one that puts the turn aside may have no event."""
    turn = record.turn
    return record.turns, record.last_seq, turn and (turn.lives, turn.parked)


def cancel_of(child: str) -> Sent:
    """Return the notice for a child that nobody waits for its end any more."""
    return Sent(child, Input(new_session_id(), "cancel", "", utc_now(), starts=False))


def notice_of(record: SessionRecord, place: Delegation, ending: Ending) -> Input:
    """Return the notice of the end of a child for the call that waits for it, or for the budget alone."""
    text = "" if place.call_id is None else end_text(record.session_id, ending)
    failed, lent = isinstance(ending, WarrenError), place.lent or NO_EXPENSE
    end = ChildEnd(record.session_id, place.call_id, place.call_key, failed, expense_of(record), lent)
    return Input(new_session_id(), "answer", text, utc_now(), starts=False, end=end)


def end_text(session_id: str, ending: Ending) -> str:
    """Return the text with which a model learns how a child has ended."""
    if isinstance(ending, WarrenError):
        return encodable(f"the child session {session_id} ended without an answer: {ending.message}")
    data = ending.structured_output
    return bounded(ending.text if data is None else codec.text_of(data))


def expense_of(record: SessionRecord) -> Expense:
    """Return what a session has spent, with its children."""
    spent, cost = record.spent, record.usage.known_cost
    own = Expense(spent.tokens, spent.seconds, spent.tool_calls, spent.steps, 0.0 if cost is None else float(cost))
    return own + record.delegated


def leaves_unsure(refusal: WarrenError) -> bool:
    """Return whether a refusal of the store leaves it unsure what the store has, which needs a new claim."""
    return not isinstance(refusal, StoreError) or refusal.unknown or refusal.cause in ("conflict", "lease_lost")
