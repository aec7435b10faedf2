"""The session actor: owns one conversation, runs its turns one at a time, and answers all else while one runs."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren.actors.compaction import CompactionPlan
from warren.actors.conversation import Conversation
from warren.actors.eventlog import EventLog
from warren.actors.memory import SEARCH, MemoryActor
from warren.actors.outcome import Outcome
from warren.actors.protocol import Compact, Interrupt, Loaded, Retire, StartTurn
from warren.actors.storage import StorageActor
from warren.actors.turn import Turn, TurnPlan
from warren.budget import Meter
from warren.compaction import CompactionConfig, Compactor, DefaultCompactor
from warren.config import Config
from warren.errors import SessionNotFoundError, WarrenError
from warren.events import CompactionCompleted, Envelope
from warren.mailbox import Admission, Mail, Mailbox, Signal, State
from warren.model import Providers
from warren.records import CompactionEntry, SessionRecord
from warren.service import OnEvent
from warren.storage import Archive, Delete
from warren.tools import Tool
from warren.views import HistoryPage, SessionSummary, SessionView, summary_of, view_of
from warren.windows import window_of

logger: Final = logging.getLogger("warren.session")


@attrs.frozen
class Shared:
    """What all sessions of a runtime share.

    Attributes:
        config: its settings.
        providers: resolves models.
        tools: the runtime's tools, by name.
        storage: None without the session-store capability.
        memory: None without the memory-store capability.
        tool_threads: bounds sync tools that run at once.
        new_compactor: makes the policy of one session of its settings and its model's window.
    """

    config: Config
    providers: Providers
    tools: Mapping[str, Tool]
    storage: StorageActor | None
    memory: MemoryActor | None
    tool_threads: trio.CapacityLimiter
    new_compactor: Callable[[CompactionConfig, int | None], Compactor] = DefaultCompactor


@attrs.define(eq=False)
class SessionActor:
    """One live session.

    Attributes:
        shared: what it shares with the others.
        log: its event stream.
        turn_ended: told when a turn that was admitted has ended.
        own_tools: tools that only this session has.
        held: what the session holds, begun by `create` or `load` before `run`.
        mailbox: where everything is asked of it.
    """

    shared: Shared
    log: EventLog
    turn_ended: Callable[[], None]
    own_tools: Mapping[str, Tool]
    held: Conversation = attrs.field(init=False)
    mailbox: Mailbox = attrs.field(init=False)
    _admission: Admission = attrs.field(init=False)
    _in_hand: list[Mail[Any]] = attrs.field(factory=list)
    _turn: Turn | None = None
    _starter: Mail[Any] | None = None
    _interrupters: list[Mail[None]] = attrs.field(factory=list)
    _retirers: list[Mail[None]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.held = Conversation(self.log, self.shared.storage)
        self._admission = Admission(self.log.session_id)
        self.mailbox = Mailbox(self.shared.config.limits.mailbox, self._admission)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.log.session_id

    # -- what may be read at any time, without asking

    @property
    def record(self) -> SessionRecord | None:
        """The session as of its last finished turn; None until it is loaded."""
        return self.held.record

    @property
    def turn_runs(self) -> bool:
        """Whether a turn was admitted and has not ended."""
        return self._admission.turn_runs

    def view(self) -> SessionView:
        """Return the session as of its last finished turn; it has to be loaded."""
        return view_of(self.held.known, live=True, active=self.turn_runs)

    def summary(self) -> SessionSummary:
        """Return the session's row in `list`; it has to be loaded."""
        return summary_of(self.held.known, live=True, active=self.turn_runs)

    def history(self, offset: int, limit: int) -> HistoryPage:
        """Return messages of finished turns of a session that no store holds."""
        return self.held.history(offset, limit)

    # -- the life of the actor

    async def run(self) -> None:
        """Read mail until retired. An error leaves the session as it was last committed."""
        while self._admission.state is not State.CLOSED:
            await self._read_mail()
            while self._turn is not None:
                await self._serve_turn(self._turn)
            if self.held.known.archived and self._admission.state is State.IDLE:
                self._admission.move(Signal.RETIRE)
            if self._admission.state is State.RETIRING:
                await self._retire()
            elif self.held.out_of_date:
                await self.held.load()

    def bury(self, error: Callable[[], WarrenError]) -> None:
        """Answer everybody who still waits and end an open turn on the stream: the actor's task is over."""
        self.mailbox.abandon(error)
        if self.turn_runs:
            self.turn_ended()
        if self._turn is not None and self._turn.begun:
            last_words = self._turn.so_far().failed(error())
            self._turn.publish(self.log.stamp(last_words.terminal(self.session_id)))
        waiting = [*self._in_hand, *self._interrupters, *self._retirers]
        for mail in waiting if self._starter is None else [self._starter, *waiting]:
            mail.refuse(error())

    # -- mail

    async def _read_mail(self) -> None:
        self._in_hand = await self.mailbox.receive()
        if self.turn_runs:
            await self.held.load_context()
        for mail in self._in_hand:
            self._handle(mail)
        self._in_hand = []

    def _handle(self, mail: Mail[Any]) -> None:
        match mail.message:
            case StartTurn() | Compact() as message:
                self._start(mail, message)
            case Interrupt():
                self._interrupt(mail)
            case Retire(how=how):
                self._retirers.append(mail)
                if self._turn is not None and how != "archive":
                    self._turn.interrupt()
            case Loaded():
                mail.answer(self.held.known)

    def _interrupt(self, mail: Mail[None]) -> None:
        if self._turn is None:  # it ended between the admission and now
            mail.answer(None)
        else:
            self._interrupters.append(mail)
            self._turn.interrupt()

    def _start(self, mail: Mail[Any], message: StartTurn | Compact) -> None:
        try:
            plan = self._plan(message)
        except WarrenError as exc:
            exc.session_id = self.session_id
            self._admission.move(Signal.TURN_ENDED)
            self.turn_ended()
            mail.refuse(exc)
            return
        self._starter = mail
        publish = self._publisher(message.on_event if isinstance(message, StartTurn) else None)
        self._turn = Turn(plan, self.held.known, self.held.context, self.log.stamp, publish, self._commit_compaction)

    # -- a turn

    def _plan(self, message: StartTurn | Compact) -> TurnPlan:
        record, shared = self.held.known, self.shared
        if record.archived:
            raise SessionNotFoundError("the session is archived: it can be read, not continued", cause="archived")
        asked = message if isinstance(message, StartTurn) else StartTurn("")
        provider = asked.provider or (None if asked.model else record.provider)
        limits, choice = shared.config.limits, shared.providers.resolve(asked.model or record.model, provider)
        return TurnPlan(
            prompt=asked.prompt if asked is message else None,
            instructions=message.instructions if isinstance(message, Compact) else None,
            choice=choice,
            max_tokens=asked.max_tokens or record.max_tokens,
            tools=self._tools(record),
            meter=Meter.of(limits.turn.overridden(asked.budget), record.budget, record.spent),
            retry=shared.config.retry,
            limits=limits,
            tool_threads=shared.tool_threads,
            compaction=self._compaction_plan(record, choice.model),
        )

    def _compaction_plan(self, record: SessionRecord, model: str) -> CompactionPlan | None:
        config, shared = record.compaction or self.shared.config.compaction, self.shared
        if config is None or shared.config.compaction is None:
            return None
        window = config.window or window_of(model)
        memory = shared.memory
        index = partial(memory.remember, self.session_id, record) if memory is not None else None
        return CompactionPlan(shared.new_compactor(config, window), window, index)

    def _tools(self, record: SessionRecord) -> Mapping[str, Tool]:
        memory = self.shared.memory
        search = {} if memory is None else {SEARCH: memory.tool_of(self.session_id)}
        known = {**search, **self.shared.tools, **self.own_tools}
        if record.tools is None:
            return known
        return {name: known[name] for name in record.tools if name in known}

    def _publisher(self, on_event: OnEvent | None) -> Callable[[Envelope], None]:
        if on_event is None:
            return self.log.publish
        callback: OnEvent | None = on_event

        def publish(envelope: Envelope) -> None:
            nonlocal callback
            self.log.publish(envelope)
            try:
                if callback is not None:
                    callback(envelope)
            except Exception:  # the callback is the host's code: its bug is not the session's, and is told once
                logger.exception("on_event of session %s raised: it gets no more of this turn", self.session_id)
                callback = None

        return publish

    async def _serve_turn(self, turn: Turn) -> None:
        """Run the turn in a task of its own and go on reading mail until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_turn, turn)
            while self._turn is turn:
                await self._read_mail()

    async def _commit_compaction(self, turn: Turn, entry: CompactionEntry) -> Callable[[], None]:
        """Store a new head and the event that tells of it; return what publishes that event."""
        told = self.log.stamp(CompactionCompleted(entry.summary_tokens, entry.messages_before, entry.messages_after))
        now, count = self.held.known, self.held.context.end
        record = turn.so_far().compacted(turn.record, now, entry, told.seq, count, turn_open=turn.begun)
        await self.held.commit_compaction(record, entry, told)

        def tell() -> None:
            turn.publish(told)
            if self.shared.storage is not None:
                self.log.stored()

        return tell

    async def _run_turn(self, turn: Turn) -> None:
        """Commit, then notify, then reply; a cancellation from outside ends the turn without a trace."""
        outcome = await turn.run()
        terminal, held = self._last_words(turn, outcome), self.held
        record = outcome.settled(turn.record, held.known, terminal, self.log.last_seq, held.context.end)
        error = await held.commit(record, terminal) if turn.compacted is None else None  # then all of it is stored
        if error is not None:
            outcome = outcome.failed(error)
            terminal = self._last_words(turn, outcome)
            held.take_back(outcome.charged(turn.record, held.known))
        self._finish(turn, outcome, terminal, stored=error is None)

    def _last_words(self, turn: Turn, outcome: Outcome) -> Envelope | None:
        """Return the turn's terminal event; None where it only compacted, and was no turn to anybody who watches."""
        return self.log.stamp(outcome.terminal(self.session_id)) if turn.begun else None

    def _finish(self, turn: Turn, outcome: Outcome, terminal: Envelope | None, *, stored: bool) -> None:
        """End the turn: no checkpoint from here until everybody knows."""
        starter, self._starter, self._turn = self._starter, None, None
        interrupters, self._interrupters = self._interrupters, []
        if terminal is not None:
            turn.publish(terminal)
        if stored and self.shared.storage is not None:
            self.log.stored()
        else:
            self.log.trim()
        self._admission.move(Signal.TURN_ENDED)
        self.turn_ended()
        if starter is not None and outcome.error is None:
            starter.answer(turn.compacted or outcome.result(self.session_id))
        elif starter is not None and outcome.error is not None:
            outcome.error.session_id = self.session_id
            starter.refuse(outcome.error)
        for mail in interrupters:
            mail.answer(None)
        self.mailbox.wake()

    # -- the end

    async def _retire(self) -> None:
        """Archive or delete as asked, answer those who asked, and close; where the store refuses, live on."""
        retired = self.held.known.archived
        while True:
            retirers = list(self._retirers)
            retired |= await self._answer_retirers(retirers)
            del self._retirers[: len(retirers)]
            self._in_hand = self.mailbox.take()
            for mail in self._in_hand:
                self._handle(mail)
            if not self._retirers:
                break
        if retired:
            self._admission.move(Signal.RETIRED)
            self.log.close()
        else:
            self._admission.move(Signal.RETIRE_FAILED)
            if self.held.out_of_date:
                await self.held.load()

    async def _answer_retirers(self, retirers: list[Mail[None]]) -> bool:
        """Do what they asked for and tell them; return whether any of it was done."""
        try:
            await self._retire_in_store({mail.message for mail in retirers})
        except WarrenError as exc:
            self.held.out_of_date |= exc.cause == "crash"  # then it may have been done all the same
            for mail in retirers:
                mail.refuse(exc.again())
            return False
        for mail in retirers:
            mail.answer(None)
        return bool(retirers)

    async def _retire_in_store(self, wanted: set[Any]) -> None:
        storage = self.shared.storage
        if storage is None:
            return
        if Retire("delete") in wanted:
            await storage.write(Delete(self.session_id))
            if self.shared.memory is not None:
                await self.shared.memory.forget(self.session_id)
        elif Retire("archive") in wanted:
            await storage.write(Archive(self.session_id))
