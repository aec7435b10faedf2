"""The supervisor: one actor per session, found or revived by id without waiting; crashes stay with their session."""

import contextlib
import logging
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from warren.actors.eventlog import EventLog, ReadLog
from warren.actors.messages import Load, Retire, StartTurn
from warren.actors.session import SessionActor, Shared
from warren.errors import AgentError, CapacityExceededError, SessionNotFoundError, WarrenError
from warren.events import Envelope
from warren.journal import envelopes
from warren.mailbox import Reply
from warren.records import SessionRecord
from warren.tools import Tool
from warren.views import TurnResult

logger: Final = logging.getLogger("warren.supervisor")
REPLAY_PAGE: Final = 500
LOST_REMEMBERED: Final = 1_000


@attrs.define(eq=False)
class Entry:
    """What the registry has under a session id.

    Attributes:
        log: its event stream; stays while somebody watches it or it holds what no store has.
        actor: None while only the stream is here.
        scope: ends the actor's task where it does not end by itself.
    """

    log: EventLog
    actor: SessionActor | None = None
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))


@attrs.define(eq=False)
class Supervisor:
    """Spawns, finds and buries session actors.

    Attributes:
        shared: what its sessions share.
        running: turns admitted and not ended.
        stopping: whether the runtime ends: everything new is refused.
    """

    shared: Shared
    _nursery: trio.Nursery
    running: int = 0
    stopping: bool = False
    _entries: dict[str, Entry] = attrs.field(factory=dict)
    _lost: dict[str, None] = attrs.field(factory=dict)
    _actors: int = 0
    _all_ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def live(self) -> int:
        """How many sessions have an actor."""
        return self._actors

    def records(self) -> list[SessionRecord]:
        """Return the records of all live sessions."""
        actors = (entry.actor for entry in self._entries.values())
        return [actor.record for actor in actors if actor is not None and actor.record is not None]

    def find(self, session_id: str) -> SessionActor | None:
        """Return the live session's actor."""
        self._check_open()
        entry = self._entries.get(session_id)
        return entry.actor if entry is not None else None

    def is_active(self, session_id: str) -> bool:
        """Return whether the session runs a turn."""
        actor = self.find(session_id)
        return actor is not None and actor.admission.turn_runs

    def spawn(self, record: SessionRecord, system_prompt: str | None, tools: Mapping[str, Tool]) -> SessionActor:
        """Start the actor of a new session; what is sent to it waits until the session is saved."""
        self._check_open()
        entry = self._entries[record.session_id] = Entry(self._new_log(record.session_id))
        return self._start(entry, SessionActor(self.shared, entry.log, self._turn_ended, record, system_prompt, tools))

    def revive(self, session_id: str) -> SessionActor:
        """Return the session's actor, started if need be; what is sent to it waits until the session is loaded.

        Raises SessionNotFoundError where nothing could be loaded; an unknown id of a store fails what is sent.
        """
        actor = self.find(session_id)
        if actor is not None:
            return actor
        if self.shared.storage is None:
            raise self.not_found(session_id)
        entry = self._entries.setdefault(session_id, Entry(self._new_log(session_id)))
        return self._start(entry, SessionActor(self.shared, entry.log, self._turn_ended))

    def admit(self, actor: SessionActor, turn: StartTurn) -> Reply[TurnResult]:
        """Claim the session for a turn, or refuse at once: busy, retired, or no capacity."""
        if not actor.admission.turn_runs:
            self.check_capacity()
        reply = actor.mailbox.post(turn)
        self.running += 1
        return reply

    def check_capacity(self) -> None:
        """Raise CapacityExceededError where as many turns run as may."""
        limit = self.shared.config.limits.max_sessions
        if self.running >= limit:
            raise CapacityExceededError(f"{limit} turns run already")

    async def log_of(self, session_id: str) -> EventLog:
        """Return a session's event stream, without reviving its actor. Raises SessionNotFoundError."""
        actor = self.find(session_id)
        if actor is not None:
            await actor.mailbox.ask(Load())
            return actor.log
        storage = self.shared.storage
        record = await storage.store.record(session_id) if storage is not None else None
        if record is None:
            raise self.not_found(session_id)
        if entry := self._entries.get(session_id):  # revived meanwhile
            return entry.log
        log = self._new_log(session_id)
        log.journal.start_above(record.last_seq)
        log.closed = record.archived
        if not record.archived:
            self._entries[session_id] = Entry(log)
        return log

    def release_log(self, session_id: str) -> None:
        """A watcher has left: forget a stream that nobody needs."""
        entry = self._entries.get(session_id)
        if entry is not None and entry.actor is None and not entry.log.needed:
            del self._entries[session_id]

    async def stop(self) -> None:
        """End all sessions: turns are interrupted and stored, within the drain time. Idempotent."""
        self.stopping = True
        for entry in list(self._entries.values()):
            if entry.actor is not None:
                with contextlib.suppress(WarrenError):
                    entry.actor.mailbox.tell(Retire("stop"))
        with trio.move_on_after(self.shared.config.limits.drain):
            while self._actors:
                self._all_ended = trio.Event()
                await self._all_ended.wait()
        for entry in list(self._entries.values()):
            entry.scope.cancel()
            entry.log.close()

    def _turn_ended(self) -> None:
        self.running -= 1

    def _start(self, entry: Entry, actor: SessionActor) -> SessionActor:
        entry.actor = actor
        entry.scope = trio.CancelScope(shield=True)
        self._actors += 1
        self._nursery.start_soon(self._run, entry, actor)
        return actor

    async def _run(self, entry: Entry, actor: SessionActor) -> None:
        """Run one actor; whatever ends it, nobody is left waiting."""
        refusal: WarrenError = AgentError(
            "the session was stopped before it answered", session_id=actor.session_id, cause="shutting_down"
        )
        try:
            with entry.scope:
                await actor.run()
        except WarrenError as exc:  # it could not be saved or loaded: the callers' business, not a crash
            refusal = exc
        except Exception as exc:
            logger.exception("session %s crashed", actor.session_id)
            refusal = AgentError(f"the session crashed: {exc!r}", session_id=actor.session_id, cause="crash")
            self._remember_lost(entry)
        finally:
            actor.died(refusal.again)
            self._bury(entry)

    def _bury(self, entry: Entry) -> None:
        entry.actor = None
        if self.shared.storage is None or entry.log.closed:
            entry.log.close()
            self._entries.pop(entry.log.session_id, None)
        self.release_log(entry.log.session_id)
        self._actors -= 1
        self._all_ended.set()

    def _remember_lost(self, entry: Entry) -> None:
        if self.shared.storage is None:
            self._lost[entry.log.session_id] = None
            while len(self._lost) > LOST_REMEMBERED:
                del self._lost[next(iter(self._lost))]

    def not_found(self, session_id: str) -> WarrenError:
        """Return the error for an id that nothing is known of, or that was lost in a crash."""
        if session_id in self._lost:
            return SessionNotFoundError(
                "the session crashed and was not stored: it is gone", session_id=session_id, cause="crash"
            )
        return SessionNotFoundError("there is no such session", session_id=session_id)

    def _check_open(self) -> None:
        if self.stopping:
            raise AgentError("the runtime is shutting down", cause="shutting_down", retryable=True)

    def _new_log(self, session_id: str) -> EventLog:
        return EventLog(session_id, self._read_log(), self.shared.config.limits.event_log)

    def _read_log(self) -> ReadLog | None:
        storage = self.shared.storage
        if storage is None:
            return None

        async def read(session_id: str, after_seq: int) -> list[Envelope]:
            rows = await storage.store.events(session_id, after_seq=after_seq, limit=REPLAY_PAGE)
            return list(envelopes(session_id, rows, after_seq))

        return read
