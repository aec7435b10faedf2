"""The session actor: owns one conversation, runs its turns one at a time, and answers all else while one runs."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from warren.actors.lifecycle import Admission, Signal, State
from warren.actors.protocol import (
    Arrived,
    BeginNext,
    Compact,
    Decide,
    Interrupt,
    Passivate,
    Relabel,
    Retire,
    StartTurn,
    Wake,
    Withdraw,
    needs_nothing,
)
from warren.actors.session.comms import Comms
from warren.actors.session.conversation import Conversation
from warren.actors.session.host import SessionHost
from warren.actors.session.inbox import Ending, Inbox, Waiting
from warren.actors.session.planning import plan_of
from warren.actors.session.retiring import Retiring
from warren.actors.session.visible import Visible
from warren.actors.shared import Own, Shared
from warren.actors.turn.outcome import Outcome, cause_of
from warren.actors.turn.turn import Turn, cancelled, shut_down
from warren.errors import AgentError, LeasedError, SessionNotRunningError, WarrenError
from warren.events import CompactionCompleted, RunFailed
from warren.inputs import Input
from warren.journal import Entry
from warren.mailbox import Mail, Mailbox, Message
from warren.records import CompactionEntry
from warren.storage import retired
from warren.views import TurnResult

ASK_FOR_LEASE: Final = (Arrived, Withdraw, Retire)
"""Messages for which another process is asked to hand the session over, as for a turn."""
NEED_LEASE: Final = (*ASK_FOR_LEASE, Wake)
"""Messages that are not handled while another process has the session."""


@attrs.define(eq=False)
class SessionActor(Visible):
    """One live session.

    Attributes:
        shared: what it shares with the others.
        host: gives room for its turns, and tells it when to leave memory.
        comms: by which it speaks to its peers.
        own: its tools and its compactor, if it has any of its own.
        mailbox: where everything is asked of it.
    """

    shared: Shared
    host: SessionHost
    comms: Comms
    own: Own
    mailbox: Mailbox = attrs.field(init=False)
    _turns: trio.Nursery = attrs.field(init=False)
    _in_hand: list[Mail[Any]] = attrs.field(factory=list)
    _turn: Turn | None = None
    _next: Waiting | None = None
    _starter: Mail[Any] | None = None
    _interrupters: list[Mail[None]] = attrs.field(factory=list)
    _retiring: Retiring = attrs.field(init=False)
    _leaves: bool = False
    _lease_refused: LeasedError | None = None

    def __attrs_post_init__(self) -> None:
        inbox = Inbox(self.log.session_id)
        self.held: Conversation = Conversation(self.log, self.shared.storage, inbox)
        self._retiring = Retiring(self.shared, self.held)
        self._admission = Admission(self.log.session_id)
        self.mailbox = Mailbox(self.shared.config.limits.mailbox, self._admission.admit)

    # -- the life of the actor

    async def run(self, turns: trio.Nursery) -> None:
        """Read mail until retired; `turns` is where turns run. An error leaves the session as it was last committed."""
        self._turns = turns
        while self._admission.state is not State.CLOSED:
            if self._next is None:
                await self._read_mail()
            await self._own_again()
            while self._turn is None and self._next is not None:
                await self._begin_next(self._next)
                await self._own_again()
            if self._turn is not None:
                self._stay_if_told_to_leave()
            else:
                await self._end_if_told_to()

    @property
    def _rests(self) -> bool:
        """Whether, after a turn that was stored, there is nothing to do but to wait for mail."""
        idle = self._admission.state is State.IDLE
        return idle and not (self.held.archived or self._leaves) and self.held.inbox.first() is None

    def bury(self, error: Callable[[], WarrenError]) -> None:
        """Answer everybody who still waits and end an open turn on the stream: the actor's task is over."""
        self.held.release()
        self.mailbox.abandon(error)
        if self.turn_runs:
            self.host.turn_ended(self.session_id)
        turn_error = error()
        if self._turn is not None and self._turn.first_seq is not None:
            # Of the turn itself nothing more is asked: it may be what is broken.
            last_seq = self.log.emit(RunFailed(self.session_id, turn_error.message, cause_of(turn_error)))
            turn_error.details |= {"first_seq": self._turn.first_seq, "last_seq": last_seq}
        self.held.inbox.close(error(), turn_error)
        if self._starter is not None:
            self._starter.refuse(turn_error.again())
        for mail in (*self._in_hand, *self._interrupters, *self._retiring.asked):
            mail.refuse(error())

    # -- mail

    async def _read_mail(self) -> None:
        self._in_hand = await self.mailbox.receive()
        if self._turn is None:
            await self._prepare()
        await self._handle_all()
        self._in_hand, self._lease_refused = [], None
        self._claim_next()

    async def _handle_all(self) -> None:
        for mail in self._in_hand:
            self._handle(mail)
        await self.held.drop_withdrawn()

    async def _prepare(self) -> None:
        """Have what the mail in hand needs; a turn that another process's lease forbids takes nothing else with it."""
        if all(needs_nothing(mail.message) for mail in self._in_hand):
            await self.held.settle_if_possible()
        elif self.turn_runs:
            await self._prepare_turn()
        elif any(isinstance(mail.message, NEED_LEASE) for mail in self._in_hand):
            await self._own(ask=any(isinstance(mail.message, ASK_FOR_LEASE) for mail in self._in_hand))
        else:
            await self.held.refresh()

    async def _prepare_turn(self) -> None:
        await self._own(ask=True)
        if self._lease_refused is None:
            await self.held.load_context()

    async def _own(self, *, ask: bool = False) -> None:
        try:
            await self.held.own(ask=ask)
        except LeasedError as exc:
            self._lease_refused = exc
            self.held.inbox.leave_to(exc)
            await self.held.refresh()

    async def _own_again(self) -> None:
        """Ask for a lease that lapsed while something waited: nobody else may come to say so."""
        if self._admission.state is State.IDLE and self.held.inbox.first() is not None and not self.held.current:
            await self._own()
            self._lease_refused = None
            self._claim_next()

    def _leave(self) -> None:
        """Leave memory, unless something was asked of it in the last moment."""
        asked = self.mailbox.waiting or self.held.inbox.first() is not None
        if self._admission.state is State.IDLE and not asked and not self.log.pending:
            # No checkpoint from here until the registry knows: a message that comes later finds a new actor.
            self._admission.move(Signal.PASSIVATE)
        else:
            self._stay_if_told_to_leave()

    def _stay_if_told_to_leave(self) -> None:
        if self._leaves:
            self._leaves = False
            self.host.stays(self.session_id)

    def _handle(self, mail: Mail[Any]) -> None:
        match mail.message:
            case StartTurn() | Compact() as message:
                self._start(mail, message)
            case BeginNext():
                self._next = self.held.inbox.first()
                if self._next is None:
                    self._unclaim()
            case Interrupt():
                self._interrupt(mail)
            case Arrived() | Withdraw() if self._lease_refused is not None:
                mail.refuse(self._lease_refused.again())
            case Arrived() as message:
                self._arrive(mail, message)
            case Retire(how=how):
                self._retiring.asked.append(mail)
                if self._turn is not None and how != "archive":
                    self._turn.interrupt(shut_down() if how == "stop" else cancelled())
            case Passivate():
                self._leaves = True
            case _:
                self._answer(mail)

    def _answer(self, mail: Mail[Any]) -> None:
        """Do what is done at once, but for a withdrawal, which is answered when it is stored."""
        try:
            if isinstance(mail.message, Withdraw):
                self.held.inbox.withdraw(mail, mail.message.input_id)
            else:
                mail.answer(self._done(mail.message))
        except WarrenError as exc:
            mail.refuse(exc)

    def _done(self, message: Message[Any]) -> Any:
        match message:
            case Decide(call_id=call_id, decision=decision):
                if self._turn is None:
                    raise SessionNotRunningError("the session runs no turn", session_id=self.session_id)
                return self._turn.decide(call_id, decision)
            case Relabel(changes=changes, title=title, stored=stored):
                self.held.relabel(changes, title, stored)
        return self.held.known

    def _interrupt(self, mail: Mail[None]) -> None:
        if self._turn is not None:
            self._interrupters.append(mail)
            self._turn.interrupt(cancelled())
        elif self._next is not None and self._admission.state is State.INTERRUPTING:  # it is for that one
            self._interrupters.append(mail)
        else:  # it ended between the admission and now
            mail.answer(None)

    def _start(self, mail: Mail[Any], message: StartTurn | Compact) -> None:
        try:
            if self._lease_refused is not None:
                raise self._lease_refused.again()
            self._begin(message)
        except WarrenError as exc:
            exc.session_id = self.session_id
            self._unclaim()
            mail.refuse(exc)
        else:
            self._starter = mail

    def _arrive(self, mail: Mail[TurnResult | bool], message: Arrived) -> None:
        if self.held.archived:
            mail.refuse(retired(self.session_id))
        else:
            self.held.inbox.arrive(mail, message)

    # -- a turn

    def _begin(self, message: StartTurn | Compact) -> None:
        plan = plan_of(message, self.held.known, self.shared, self.comms, self.own)
        self._turn = Turn(
            plan,
            self.held.known,
            self.held.context,
            self._take_inputs,
            self.log.emit,
            self._commit_compaction,
        )
        self._turns.start_soon(self._run_turn, self._turn)

    def _take_inputs(self, last: bool, has_room: Callable[[], bool]) -> Sequence[Input]:  # noqa: FBT001 - the turn asks
        if self.held.inbox.empty or not has_room():
            return ()
        return [each.input for each in self.held.inbox.take_for_step(last=last)]

    def _claim_next(self) -> None:
        """Claim the session for what waits longest, where no turn runs and the runtime has room for one."""
        found = self.held.inbox.first()
        if (
            found is not None
            and self._admission.state is State.IDLE
            and self.held.current
            and self.host.may_start(self.session_id)
        ):
            self._admission.move(Signal.START)
            self._next = found

    async def _begin_next(self, waiting: Waiting) -> None:
        """Begin the turn that the session was claimed for; one that cannot be begun ends here."""
        await self._prepare_turn()
        self._next, self._lease_refused, said = None, None, waiting.input
        # Meanwhile it may have been withdrawn, be another process's, or the session is to end.
        if not self.held.inbox.holds(waiting) or self._admission.state is State.DRAINING:
            self._unclaim()
            return
        self.held.inbox.take(waiting)
        try:
            self._begin(StartTurn(said.text, said.options, waiting.tools))
        except WarrenError as exc:
            exc.session_id = self.session_id
            await self.held.drop_taken(exc)
            self._unclaim()
        else:
            if self._turn is not None and self._interrupters:
                self._turn.interrupt(cancelled())

    def _unclaim(self) -> None:
        """Free the session of a turn that does not begin, for the next one."""
        self._admission.move(Signal.TURN_ENDED)
        self.host.turn_ended(self.session_id)
        for mail in self._interrupters:
            mail.answer(None)
        self._interrupters.clear()
        self._claim_next()

    async def _commit_compaction(self, entry: CompactionEntry) -> Callable[[], None]:
        """Store the running turn's new head and the event that tells of it; return what publishes that event."""
        turn = self._turn
        if turn is None:
            raise AgentError("no turn runs that could compact", session_id=self.session_id, cause="crash")
        told = self.log.stamp(CompactionCompleted(entry.summary_tokens, entry.messages_before, entry.messages_after))
        now, count = self.held.known, self.held.context.end
        record = turn.so_far().compacted(turn.record, now, entry, told.seq, count, turn_open=turn.first_seq is not None)
        await self.held.commit_compaction(record, entry, told)

        def tell() -> None:
            self.log.publish(told)
            self.log.stored()

        return tell

    async def _run_turn(self, turn: Turn) -> None:
        """Commit, then notify, then reply; a cancellation from outside ends the turn without a trace."""
        outcome = await turn.run()
        terminal, held = self._last_words(turn, outcome), self.held
        record = outcome.settled(turn.record, held.known, terminal, self.log.last_seq, held.context.end)
        # Where it only compacted all of it is stored.
        ending = outcome.ending(self.session_id, turn.first_seq, terminal)
        error = await held.commit(record, terminal, ending) if turn.compacted is None else None
        if error is not None:
            outcome = outcome.failed(error)
            terminal = self._last_words(turn, outcome)
            ending = outcome.ending(self.session_id, turn.first_seq, terminal)
            held.take_back(outcome.charged(turn.record, held.known))
        self._finish(turn, ending, terminal, stored=error is None)

    def _last_words(self, turn: Turn, outcome: Outcome) -> Entry | None:
        """Return the turn's terminal event; None where it only compacted, and was no turn to anybody who watches."""
        return self.log.stamp(outcome.terminal(self.session_id)) if turn.first_seq is not None else None

    def _finish(self, turn: Turn, ending: Ending, terminal: Entry | None, *, stored: bool) -> None:
        """End the turn: no checkpoint from here until everybody knows."""
        starter, self._starter, self._turn = self._starter, None, None
        interrupters, self._interrupters = self._interrupters, []
        if terminal is not None:
            self.log.publish(terminal)
        if stored:
            self.log.stored()
        else:
            self.log.trim()
        self._admission.move(Signal.TURN_ENDED)
        self.host.turn_ended(self.session_id)
        if isinstance(ending, WarrenError):
            ending.session_id = self.session_id
            if starter is not None:
                starter.refuse(ending)
        elif starter is not None:
            starter.answer(turn.compacted or ending)
        if stored:
            self.held.inbox.settle(ending)
        elif isinstance(ending, WarrenError):
            self.held.inbox.put_back(ending)
        for mail in interrupters:
            mail.answer(None)
        self._claim_next()
        if not (stored and self._rests):
            self.mailbox.wake()

    # -- the end

    async def _end_if_told_to(self) -> None:
        if self.held.archived and self._admission.state is State.IDLE:
            self._admission.move(Signal.RETIRE)
        if self._admission.state is State.RETIRING:
            await self._retire()
        elif self._leaves:
            self._leave()

    async def _retire(self) -> None:
        """Archive or delete as asked, answer those who asked, and close; where the store refuses, live on."""
        retired = self.held.archived
        while True:
            retired |= await self._retiring.answer()
            self._in_hand = self.mailbox.take()
            await self._handle_all()
            if not self._retiring.asked:
                break
        if retired:
            self._admission.move(Signal.RETIRED)
            self.log.close()
        else:
            self._admission.move(Signal.RETIRE_FAILED)
            self._claim_next()
