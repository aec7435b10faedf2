"""The session actor: owns one conversation, runs its turns one at a time, and answers all else while one runs."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
import trio

from warren.actors.eventlog import EventLog
from warren.actors.messages import Interrupt, Load, Retire, StartTurn
from warren.actors.storage import StorageActor
from warren.actors.turn import Turn, TurnPlan, cause_of
from warren.budget import Meter
from warren.config import Config
from warren.errors import SessionNotFoundError, WarrenError
from warren.events import Envelope, Event, RunCompleted, RunFailed
from warren.mailbox import Admission, Mail, Mailbox, Signal, State
from warren.messages import SystemMessage
from warren.model import Providers
from warren.records import MessageRow, SessionRecord
from warren.service import OnEvent
from warren.storage import Archive, Commit, Delete
from warren.tools import Tool
from warren.transcript import Transcript
from warren.views import TurnResult

logger: Final = logging.getLogger("warren.session")


@attrs.frozen
class Shared:
    """What all sessions of a runtime share.

    Attributes:
        config: its settings.
        providers: resolves models.
        tools: the runtime's tools, by name.
        storage: None without the session-store capability.
        tool_threads: bounds sync tools that run at once.
    """

    config: Config
    providers: Providers
    tools: Mapping[str, Tool]
    storage: StorageActor | None
    tool_threads: trio.CapacityLimiter


@attrs.frozen
class TurnEnd:
    """How a turn came out: the session after it, its terminal event, and the error if it has no answer."""

    record: SessionRecord
    terminal: Envelope
    error: WarrenError | None
    stored: bool = True


@attrs.define(eq=False)
class SessionActor:
    """One live session.

    Attributes:
        shared: what it shares with the others.
        log: its event stream.
        turn_ended: told when a turn that was admitted has ended.
        record: the session as of its last finished turn; replaced whole, so that readers may take it at any time.
            None until it is loaded.
        system_prompt: of a new session.
        own_tools: tools that only this session has.
        transcript: the context of the next model call; beyond `record.message_count` it is a running turn's.
        times: when each message was added, where no store knows it.
    """

    shared: Shared
    log: EventLog
    turn_ended: Callable[[], None]
    record: SessionRecord | None = None
    system_prompt: str | None = None
    own_tools: Mapping[str, Tool] = attrs.field(factory=dict)
    transcript: Transcript = attrs.field(factory=Transcript)
    times: list[datetime] = attrs.field(factory=list)
    admission: Admission = attrs.field(init=False)
    mailbox: Mailbox = attrs.field(init=False)
    _turn: Turn | None = None
    _starter: Mail[TurnResult] | None = None
    _interrupters: list[Mail[None]] = attrs.field(factory=list)
    _retirers: list[Mail[None]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.admission = Admission(self.log.session_id)
        self.mailbox = Mailbox(self.shared.config.limits.mailbox, self.admission)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.log.session_id

    @property
    def _record(self) -> SessionRecord:
        if self.record is None:
            raise RuntimeError("mail is read only once the session is loaded")
        return self.record

    async def run(self) -> None:
        """Live until retired. A crash leaves the session as it was last committed."""
        await self._begin()
        while self.admission.state is not State.CLOSED:
            await self._read_mail()
            while self._turn is not None:
                await self._serve_turn(self._turn)
            if self._record.archived and self.admission.state is State.IDLE:
                self.admission.move(Signal.RETIRE)
            if self.admission.state is State.RETIRING:
                await self._retire()

    def died(self, error: Callable[[], WarrenError]) -> None:
        """Answer everybody who waits and end an open turn on the stream: the actor's task is over."""
        self.mailbox.abandon(error)
        if self.admission.turn_runs:
            self.turn_ended()
        if self._turn is not None:
            self._turn.publish(self.log.next(RunFailed(self.session_id, error().message, "crash")))
        for mail in (self._starter, *self._interrupters, *self._retirers):
            if mail is not None:
                mail.refuse(error())

    # -- becoming live

    async def _begin(self) -> None:
        """Save a new session, or load a stored one; the id exists before anything is told of it."""
        if self.record is None:
            await self._load()
        else:
            await self._save_new(self.record)

    async def _load(self) -> None:
        storage = self.shared.storage
        stored = await storage.store.load(self.session_id) if storage is not None else None
        if stored is None:
            raise SessionNotFoundError("there is no such session", session_id=self.session_id)
        self.transcript = Transcript(stored.messages)
        self.log.journal.start_above(stored.seq_floor)
        self.record = stored.record

    async def _save_new(self, record: SessionRecord) -> None:
        if self.system_prompt is not None:
            self.transcript.append(SystemMessage(self.system_prompt))
        self.record = record = attrs.evolve(record, message_count=len(self.transcript))
        await self._store(record, 0)

    # -- mail

    async def _read_mail(self) -> None:
        for mail in await self.mailbox.receive():
            self._handle(mail)

    def _handle(self, mail: Mail[Any]) -> None:
        match mail.message:
            case StartTurn():
                self._start(mail, mail.message)
            case Interrupt():
                self._interrupt(mail)
            case Retire(how=how):
                self._retirers.append(mail)
                if self._turn is not None and how != "archive":
                    self._turn.interrupt()
            case Load():
                mail.answer(self.record)

    def _interrupt(self, mail: Mail[None]) -> None:
        if self._turn is None:  # it ended between the admission and now
            mail.answer(None)
        else:
            self._interrupters.append(mail)
            self._turn.interrupt()

    def _start(self, mail: Mail[TurnResult], message: StartTurn) -> None:
        try:
            plan = self._plan(message)
        except WarrenError as exc:
            self.admission.move(Signal.TURN_ENDED)
            self.turn_ended()
            exc.session_id = self.session_id
            mail.refuse(exc)
            return
        self._starter = mail
        self._turn = Turn(plan, self._record, self.transcript, self.log.next, self._publisher(message.on_event))

    # -- a turn

    def _plan(self, message: StartTurn) -> TurnPlan:
        record, shared = self._record, self.shared
        if record.archived:
            raise SessionNotFoundError("the session is archived: it can be read, not continued", cause="archived")
        model = message.model or record.model
        provider = message.provider or (None if message.model else record.provider)
        limits = shared.config.limits
        return TurnPlan(
            prompt=message.prompt,
            choice=shared.providers.resolve(model, provider),
            max_tokens=message.max_tokens or record.max_tokens,
            tools=self._tools(record),
            meter=Meter(message.budget or limits.turn, record.budget, record.spent),
            retry=shared.config.retry,
            limits=limits,
            tool_threads=shared.tool_threads,
        )

    def _tools(self, record: SessionRecord) -> Mapping[str, Tool]:
        known = {**self.shared.tools, **self.own_tools}
        if record.tools is None:
            return known
        return {name: known[name] for name in record.tools if name in known}

    def _publisher(self, on_event: OnEvent | None) -> Callable[[Envelope], None]:
        if on_event is None:
            return self.log.publish

        def publish(envelope: Envelope) -> None:
            self.log.publish(envelope)
            try:
                on_event(envelope)
            except Exception:  # the callback is the host's code: its bug is not the session's
                logger.exception("the on_event callback of session %s raised", self.session_id)

        return publish

    async def _serve_turn(self, turn: Turn) -> None:
        """Run the turn in a task of its own and go on reading mail until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_turn, turn)
            while self._turn is turn:
                await self._read_mail()

    async def _run_turn(self, turn: Turn) -> None:
        """Commit, then notify, then reply; a cancellation from outside ends the turn without a trace."""
        error = await turn.run()
        end = self._ended(turn, error)
        with trio.CancelScope(shield=True):
            try:
                await self._store(end.record, self._record.message_count, end.terminal)
            except WarrenError as exc:
                end = self._not_stored(turn, exc)
        self._finish(turn, end)

    def _ended(self, turn: Turn, error: WarrenError | None) -> TurnEnd:
        event = self._terminal(turn, error)
        terminal = self.log.next(event)
        record = self._booked(turn)
        record = attrs.evolve(
            record,
            updated_at=max(terminal.timestamp, record.updated_at),
            turns=record.turns + 1,
            message_count=len(self.transcript),
            last_seq=terminal.seq,
            last_assistant_text=turn.text or record.last_assistant_text,
        )
        return TurnEnd(record, terminal, error)

    def _not_stored(self, turn: Turn, error: WarrenError) -> TurnEnd:
        """The store refused: the session stands where it stood, but for what the turn has cost."""
        del self.transcript.bodies[self._record.message_count :]
        error.details["text"] = turn.text
        return TurnEnd(self._booked(turn), self.log.next(self._terminal(turn, error)), error, stored=False)

    def _booked(self, turn: Turn) -> SessionRecord:
        record = self._record
        return attrs.evolve(
            record,
            usage=record.usage + turn.usage,
            spent=record.spent + turn.plan.meter.spent,
            steps=record.steps + turn.steps,
        )

    def _terminal(self, turn: Turn, error: WarrenError | None) -> Event:
        if error is None:
            return RunCompleted(self.session_id, turn.text, turn.usage)
        return RunFailed(self.session_id, error.message, cause_of(error))

    def _finish(self, turn: Turn, end: TurnEnd) -> None:
        """End the turn: no checkpoint from here until everybody knows."""
        starter, self._starter, self._turn = self._starter, None, None
        interrupters, self._interrupters = self._interrupters, []
        self.record = end.record
        turn.publish(end.terminal)
        if end.stored:
            self.log.stored()
        self.admission.move(Signal.TURN_ENDED)
        self.turn_ended()
        if starter is not None and end.error is None:
            starter.answer(self._result(turn))
        elif starter is not None and end.error is not None:
            end.error.session_id = self.session_id
            starter.refuse(end.error)
        for mail in interrupters:
            mail.answer(None)
        self.mailbox.wake()

    def _result(self, turn: Turn) -> TurnResult:
        return TurnResult(self.session_id, turn.text, turn.steps, turn.tool_calls, turn.usage, turn.stop_reason)

    async def _store(self, record: SessionRecord, first: int, terminal: Envelope | None = None) -> None:
        """Commit the record, the messages from position `first` on, and the events up to the terminal one."""
        storage = self.shared.storage
        if storage is None:
            self.times.extend([record.updated_at] * (len(self.transcript) - first))
            return
        bodies = self.transcript.bodies[first:]
        rows = tuple(MessageRow(first + index, record.updated_at, body) for index, body in enumerate(bodies))
        events = () if terminal is None else self.log.journal.rows(terminal)
        await storage.write(Commit(record, rows, events))

    # -- retiring

    async def _retire(self) -> None:
        """Archive or delete as asked, answer those who asked, and close; where the store refuses, live on."""
        while True:
            retirers, self._retirers = self._retirers, []
            try:
                await self._retire_in_store(retirers)
            except WarrenError as exc:
                self.admission.move(Signal.RETIRE_FAILED)
                for mail in retirers:
                    mail.refuse(exc.again())
                return
            for mail in retirers:
                mail.answer(None)
            for mail in self.mailbox.take():
                self._handle(mail)
            if not self._retirers:
                break
        self.admission.move(Signal.RETIRED)
        self.mailbox.abandon(self._gone)
        self.log.close()

    async def _retire_in_store(self, retirers: list[Mail[None]]) -> None:
        storage = self.shared.storage
        wanted = {mail.message.how for mail in retirers if isinstance(mail.message, Retire)}
        if storage is None:
            return
        if "delete" in wanted:
            await storage.write(Delete(self.session_id))
        elif "archive" in wanted:
            await storage.write(Archive(self.session_id))

    def _gone(self) -> WarrenError:
        return SessionNotFoundError("the session was retired", session_id=self.session_id, cause="retired")
