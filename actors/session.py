"""The session actor: owns one conversation, runs its turns one at a time, and answers all else while one runs."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import attrs
import trio

from warren import codec
from warren.actors.compaction import CompactionPlan, prefix_of
from warren.actors.eventlog import EventLog
from warren.actors.outcome import Outcome
from warren.actors.protocol import Compact, Interrupt, Loaded, Retire, StartTurn
from warren.actors.storage import StorageActor
from warren.actors.turn import Turn, TurnPlan
from warren.budget import Meter
from warren.compaction import CompactionConfig, Compactor, DefaultCompactor
from warren.config import Config
from warren.errors import AgentError, SessionNotFoundError, StoreError, WarrenError
from warren.events import Envelope, RunFailed
from warren.mailbox import Admission, Mail, Mailbox, Signal, State
from warren.messages import Message, SystemMessage
from warren.model import Providers
from warren.records import CompactionEntry, MessageRow, SessionRecord
from warren.service import OnEvent
from warren.storage import Archive, Commit, Delete, LookUp
from warren.tools import Tool
from warren.transcript import Transcript
from warren.views import HistoryEntry, HistoryPage, SessionSummary, SessionView, summary_of, view_of
from warren.windows import window_of

logger: Final = logging.getLogger("warren.session")
IndexMessages = Callable[[str, SessionRecord, int, Sequence[Message]], Awaitable[None]]
"""Takes messages of a session, the first at that position, into the memory: all or none. Raises WarrenError."""


@attrs.frozen
class Shared:
    """What all sessions of a runtime share.

    Attributes:
        config: its settings.
        providers: resolves models.
        tools: the runtime's tools, by name.
        storage: None without the session-store capability.
        tool_threads: bounds sync tools that run at once.
        new_compactor: makes the policy of one session of its settings and its model's window.
        index: takes discarded messages into the memory; None without one.
    """

    config: Config
    providers: Providers
    tools: Mapping[str, Tool]
    storage: StorageActor | None
    tool_threads: trio.CapacityLimiter
    new_compactor: Callable[[CompactionConfig, int | None], Compactor] = DefaultCompactor
    index: IndexMessages | None = None


@attrs.define(eq=False)
class SessionActor:
    """One live session.

    Attributes:
        shared: what it shares with the others.
        log: its event stream.
        turn_ended: told when a turn that was admitted has ended.
        own_tools: tools that only this session has.
        record: the session as of its last finished turn; replaced whole, so that it may be read at any time. None
            until it is loaded.
        mailbox: where everything is asked of it.
    """

    shared: Shared
    log: EventLog
    turn_ended: Callable[[], None]
    own_tools: Mapping[str, Tool]
    record: SessionRecord | None = None
    mailbox: Mailbox = attrs.field(init=False)
    _admission: Admission = attrs.field(init=False)
    # The context of the next model call; beyond the record's message_count it is a running turn's. None: not loaded.
    _transcript: Transcript | None = None
    # What no store keeps: the messages before the head, when each message was added, and how the head moved.
    _past: list[bytes] = attrs.field(factory=list)
    _times: list[datetime] = attrs.field(factory=list)
    _compactions: list[CompactionEntry] = attrs.field(factory=list)
    _out_of_date: bool = False
    _in_hand: list[Mail[Any]] = attrs.field(factory=list)
    _turn: Turn | None = None
    _starter: Mail[Any] | None = None
    _interrupters: list[Mail[None]] = attrs.field(factory=list)
    _retirers: list[Mail[None]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._admission = Admission(self.log.session_id)
        self.mailbox = Mailbox(self.shared.config.limits.mailbox, self._admission)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.log.session_id

    # -- what may be read at any time, without asking

    @property
    def turn_runs(self) -> bool:
        """Whether a turn was admitted and has not ended."""
        return self._admission.turn_runs

    def view(self) -> SessionView:
        """Return the session as of its last finished turn; it has to be loaded."""
        return view_of(self._record, live=True, active=self.turn_runs)

    def summary(self) -> SessionSummary:
        """Return the session's row in `list`; it has to be loaded."""
        return summary_of(self._record, live=True, active=self.turn_runs)

    def history(self, offset: int, limit: int) -> HistoryPage:
        """Return messages of finished turns of a session that no store holds."""
        total, transcript = self._record.message_count, self._transcript or Transcript()
        page = range(offset, min(offset + limit, total))
        bodies = [*self._past, *transcript.rows]
        found = tuple(HistoryEntry(at, self._times[at], codec.decode_message(bodies[at])) for at in page)
        moved = tuple(entry for entry in self._compactions if offset < entry.head <= offset + limit)
        return HistoryPage(self.session_id, found, offset, total, moved)

    # -- the life of the actor

    async def create(self, record: SessionRecord, system_prompt: str | None) -> None:
        """Begin a new session: it is saved before anything is told of it. Raises StoreError: then there is none."""
        self._transcript = Transcript()
        if system_prompt is not None:
            self._transcript.append(SystemMessage(system_prompt))
        record = attrs.evolve(record, message_count=self._transcript.end)
        await self._store(record, 0)
        self.record = record

    async def load(self) -> None:
        """Begin with what the store has. Raises SessionNotFoundError, StoreError."""
        storage = self.shared.storage
        stored = await storage.store.load(self.session_id) if storage is not None else None
        if stored is None:
            raise SessionNotFoundError("there is no such session", session_id=self.session_id)
        self.log.begin(stored.record.last_seq, stored.seq_floor)
        self.record, self._transcript, self._out_of_date = stored.record, None, False
        if stored.record.turn_open:
            await self._close_open_turn(stored.record, storage)

    async def _close_open_turn(self, record: SessionRecord, storage: StorageActor | None) -> None:
        """End a turn that a compaction had stored the beginning of, and that nobody has ended since."""
        lost = self.log.stamp(RunFailed(self.session_id, "the process ended during the turn", "crash"))
        self.record = attrs.evolve(record, turn_open=False, turns=record.turns + 1, last_seq=lost.seq)
        if storage is not None:
            await storage.write(Commit(self.record, (), self.log.unstored(lost)))
        self.log.publish(lost)
        self.log.stored()

    async def run(self) -> None:
        """Read mail until retired. An error leaves the session as it was last committed."""
        while self._admission.state is not State.CLOSED:
            await self._read_mail()
            while self._turn is not None:
                await self._serve_turn(self._turn)
            if self._record.archived and self._admission.state is State.IDLE:
                self._admission.move(Signal.RETIRE)
            if self._admission.state is State.RETIRING:
                await self._retire()
            elif self._out_of_date:
                await self.load()

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
        await self._load_transcript()
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
                mail.answer(self._record)

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
        self._turn = Turn(plan, self._record, self._context, self.log.stamp, publish, self._commit_compaction)

    # -- a turn

    def _plan(self, message: StartTurn | Compact) -> TurnPlan:
        record, shared = self._record, self.shared
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
        index = partial(shared.index, self.session_id, record) if shared.index is not None else None
        return CompactionPlan(shared.new_compactor(config, window), window, index)

    def _tools(self, record: SessionRecord) -> Mapping[str, Tool]:
        known = {**self.shared.tools, **self.own_tools}
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

    async def _run_turn(self, turn: Turn) -> None:
        """Commit, then notify, then reply; a cancellation from outside ends the turn without a trace."""
        outcome = await turn.run()
        terminal = self._last_words(turn, outcome)
        record = outcome.settled(turn.record, self._record, terminal, self.log.last_seq, self._context.end)
        error = await self._commit(record, terminal)
        if error is not None:  # the session stands where it stood, but for what the turn has cost
            outcome = outcome.failed(error)
            terminal = self._last_words(turn, outcome)
            record = outcome.charged(turn.record, self._record)
            self._context.truncate(record.message_count)
        self.record = record
        self._finish(turn, outcome, terminal, stored=error is None)

    def _last_words(self, turn: Turn, outcome: Outcome) -> Envelope | None:
        """Return the turn's terminal event; None where it only compacted, and was no turn to anybody who watches."""
        return self.log.stamp(outcome.terminal(self.session_id)) if turn.begun else None

    async def _commit_compaction(self, turn: Turn, entry: CompactionEntry) -> None:
        """Store a new head with all that the turn has added so far; without a store keep what leaves the context."""
        now, context = self._record, self._context
        record = turn.so_far().compacted(turn.record, now, entry, self.log.last_seq, context.end)
        try:
            await self._store(record, now.message_count, None, entry)
        except StoreError as exc:
            if not await self._stored_after_all(exc, record):
                raise
        if self.shared.storage is None:
            self._past.extend(context.since(context.head)[: entry.head - context.head])
            self._compactions.append(entry)
        else:
            self.log.stored()
        self.record = record

    async def _commit(self, record: SessionRecord, terminal: Envelope | None) -> WarrenError | None:
        try:
            await self._store(record, self._record.message_count, terminal)
        except StoreError as exc:
            self._out_of_date = exc.cause in ("crash", "conflict")
            return None if await self._stored_after_all(exc, record) else exc
        except WarrenError as exc:
            self._out_of_date = True
            return exc
        return None

    async def _stored_after_all(self, error: StoreError, record: SessionRecord) -> bool:
        """Ask, behind the commit, what came of it, where the storage actor crashed before it could say.

        It may crash again over the question: then it is asked again, for as long as it is restarted.
        """
        storage = self.shared.storage
        while storage is not None and error.cause == "crash":
            try:
                with trio.CancelScope(shield=True):
                    stored = await storage.write(LookUp(self.session_id))
            except StoreError as exc:
                error = exc
            else:
                return stored is not None and (stored.turns, stored.last_seq) == (record.turns, record.last_seq)
        return False

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

    # -- the store

    @property
    def _record(self) -> SessionRecord:
        if self.record is None:
            raise AgentError("the session is not loaded", session_id=self.session_id, cause="crash")
        return self.record

    @property
    def _context(self) -> Transcript:
        if self._transcript is None:
            raise AgentError("the transcript is not loaded", session_id=self.session_id, cause="crash")
        return self._transcript

    async def _load_transcript(self) -> None:
        """Fetch the messages once a turn needs them; archiving or watching a session does not."""
        storage = self.shared.storage
        if self._transcript is None and self.turn_runs and storage is not None:
            self._transcript = await self._stored_context(storage)

    async def _stored_context(self, storage: StorageActor) -> Transcript:
        record = self._record
        stored = await storage.store.context(self.session_id, record.head, record.message_count)
        return Transcript(stored.rows, head=record.head, prefix=prefix_of(stored.first, stored.compaction))

    async def _store(
        self,
        record: SessionRecord,
        first: int,
        terminal: Envelope | None = None,
        compaction: CompactionEntry | None = None,
    ) -> None:
        """Commit the record, the messages from position `first` on, the events up to the terminal one, a new head."""
        storage, bodies = self.shared.storage, self._context.since(first)
        if storage is None:
            self._times.extend([record.updated_at] * len(bodies))
            return
        rows = tuple(MessageRow(first + index, record.updated_at, body) for index, body in enumerate(bodies))
        await storage.write(Commit(record, rows, self.log.unstored(terminal), compaction))

    async def _retire(self) -> None:
        """Archive or delete as asked, answer those who asked, and close; where the store refuses, live on."""
        retired = self._record.archived
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
            if self._out_of_date:
                await self.load()

    async def _answer_retirers(self, retirers: list[Mail[None]]) -> bool:
        """Do what they asked for and tell them; return whether any of it was done."""
        try:
            await self._retire_in_store({mail.message for mail in retirers})
        except WarrenError as exc:
            self._out_of_date |= exc.cause == "crash"  # then it may have been done all the same
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
        elif Retire("archive") in wanted:
            await storage.write(Archive(self.session_id))
