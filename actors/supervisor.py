"""The supervisor: one actor per session, found or revived by id without waiting; crashes stay with their session."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import attrs
import trio

from warren.actors.checks import storable
from warren.actors.eventlog import EventLog
from warren.actors.protocol import Retire
from warren.actors.session import SessionActor, Shared
from warren.actors.supervision import first_error
from warren.errors import AgentError, CapacityExceededError, SessionNotFoundError, WarrenError
from warren.events import Envelope
from warren.journal import envelopes
from warren.mailbox import Message, Reply
from warren.records import SessionRecord
from warren.tools import Tool

R = TypeVar("R")
logger: Final = logging.getLogger("warren.supervisor")
REPLAY_PAGE: Final = 500
LOST_REMEMBERED: Final = 1_000


@attrs.define(eq=False)
class Entry:
    """What the registry has under a session id.

    Attributes:
        log: its event stream.
        tools: tools of its own, which no store can hold.
        actor: None while it is not live.
        scope: ends the actor's task where it does not end by itself.
    """

    log: EventLog
    tools: Mapping[str, Tool] = attrs.field(factory=dict)
    actor: SessionActor | None = None
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))

    @property
    def needed(self) -> bool:
        """Whether there is something here that a new actor could not get from the store."""
        return self.actor is not None or self.log.needed or bool(self.tools)


@attrs.define(eq=False)
class Supervisor:
    """Spawns, finds and buries session actors.

    Attributes:
        shared: what its sessions share.
        running: turns admitted and not ended.
        live: sessions that have an actor.
        stopping: whether the runtime ends: everything new is refused.
    """

    shared: Shared
    _nursery: trio.Nursery
    running: int = 0
    live: int = 0
    stopping: bool = False
    _entries: dict[str, Entry] = attrs.field(factory=dict)
    _lost: dict[str, None] = attrs.field(factory=dict)
    _one_ended: trio.Event = attrs.field(factory=trio.Event)

    def check_open(self) -> None:
        """Raise AgentError(cause="shutting_down") once the runtime ends."""
        if self.stopping:
            raise AgentError("the runtime is shutting down", cause="shutting_down", retryable=True)

    def check_capacity(self) -> None:
        """Raise CapacityExceededError where as many turns run as may."""
        limit = self.shared.config.limits.max_sessions
        if self.running >= limit:
            raise CapacityExceededError(f"{limit} turns run already")

    def find(self, session_id: str) -> SessionActor | None:
        """Return the live session's actor; it may still be loading."""
        entry = self._entries.get(session_id)
        return entry.actor if entry is not None else None

    def loaded(self) -> list[SessionActor]:
        """Return the actors of all live sessions that can be looked at."""
        actors = (entry.actor for entry in self._entries.values())
        return [actor for actor in actors if actor is not None and actor.record is not None]

    def spawn(self, record: SessionRecord, system_prompt: str | None, tools: Mapping[str, Tool]) -> SessionActor:
        """Start the actor of a new session; what is sent to it waits until the session is saved."""
        self.check_open()
        entry = self._entries[record.session_id] = Entry(self._new_log(record.session_id), tools)
        return self._start(entry, lambda actor: actor.held.create(record, system_prompt))

    def revive(self, session_id: str) -> SessionActor:
        """Return the session's actor, started if need be; what is sent to it waits until the session is loaded.

        Raises SessionNotFoundError where nothing could be loaded; an unknown id of a store fails what is sent.
        """
        self.check_open()
        entry = self._entries.get(session_id)
        if entry is not None and entry.actor is not None:
            return entry.actor
        if self.shared.storage is None:
            raise self.not_found(session_id)
        if entry is None:
            entry = self._entries[session_id] = Entry(self._new_log(session_id))
        return self._start(entry, lambda actor: actor.held.load())

    def admit(self, actor: SessionActor, turn: Message[R]) -> Reply[R]:
        """Claim the session for a turn, or refuse at once: busy, retired, or no capacity."""
        if not actor.turn_runs:
            self.check_capacity()
        reply = actor.mailbox.post(turn)
        self.running += 1
        return reply

    def release(self, session_id: str) -> None:
        """Forget what nobody needs any more."""
        entry = self._entries.get(session_id)
        if entry is not None and not entry.needed:
            del self._entries[session_id]

    def not_found(self, session_id: str) -> WarrenError:
        """Return the error for an id that nothing is known of, or that was lost in a crash."""
        if session_id in self._lost:
            problem = "the session crashed and was not stored: it is gone"
            return SessionNotFoundError(problem, session_id=session_id, cause="crash")
        return SessionNotFoundError("there is no such session", session_id=session_id)

    async def stop(self) -> None:
        """End all sessions: turns are interrupted and stored, within the drain time; then they are cut off.

        Trap: a provider or tool that shields itself from cancellation holds this up for as long as it takes.
        """
        self.stopping = True
        for entry in self._entries.values():
            if entry.actor is not None:
                with contextlib.suppress(WarrenError):
                    entry.actor.mailbox.tell(Retire("stop"))
        with trio.move_on_after(self.shared.config.limits.drain):
            await self._all_ended()
        for session_id, entry in self._entries.items():
            if entry.actor is not None:
                logger.warning("session %s has not ended within the drain time and is cut off", session_id)
                entry.scope.cancel()
        await self._all_ended()
        self._close_logs()

    async def _all_ended(self) -> None:
        while self.live:
            self._one_ended = trio.Event()
            await self._one_ended.wait()

    def _close_logs(self) -> None:
        for entry in self._entries.values():
            self._close_log(entry.log)

    def _close_log(self, log: EventLog) -> None:
        log.close()
        if self.shared.storage is not None:
            self.shared.storage.shown_unstored |= log.pending

    def _turn_ended(self) -> None:
        self.running -= 1

    def _start(self, entry: Entry, begin: Callable[[SessionActor], Awaitable[None]]) -> SessionActor:
        entry.actor = actor = SessionActor(self.shared, entry.log, self._turn_ended, entry.tools)
        entry.scope = trio.CancelScope(shield=True)
        self.live += 1
        self._nursery.start_soon(self._run, entry, actor, begin)
        return actor

    async def _run(self, entry: Entry, actor: SessionActor, begin: Callable[[SessionActor], Awaitable[None]]) -> None:
        """Run one actor; whatever ends it, nobody is left waiting."""
        refusal: WarrenError | None = None
        try:
            with entry.scope:
                await begin(actor)
                await actor.run()
        except WarrenError as exc:  # it could not be saved or loaded: its callers' business, not a crash
            refusal = exc
        except Exception as exc:
            logger.exception("session %s crashed", actor.session_id)
            problem = storable(f"the session crashed: {first_error(exc)!r}")
            refusal = AgentError(problem, session_id=actor.session_id, cause="crash")
            self._remember_lost(entry)
        finally:
            actor.bury((refusal or self._ended(actor)).again)
            self._bury(entry)

    def _ended(self, actor: SessionActor) -> WarrenError:
        if self.stopping:
            return AgentError("the runtime is shutting down", session_id=actor.session_id, cause="shutting_down")
        return SessionNotFoundError("the session was retired", session_id=actor.session_id, cause="retired")

    def _bury(self, entry: Entry) -> None:
        entry.actor = None
        self.live -= 1
        self._one_ended.set()
        if self.shared.storage is None or entry.log.closed:
            self._close_log(entry.log)
            self._entries.pop(entry.log.session_id, None)
        else:
            self.release(entry.log.session_id)

    def _remember_lost(self, entry: Entry) -> None:
        if self.shared.storage is None:
            self._lost[entry.log.session_id] = None
            while len(self._lost) > LOST_REMEMBERED:
                del self._lost[next(iter(self._lost))]

    def _new_log(self, session_id: str) -> EventLog:
        read = None if self.shared.storage is None else self._read_log
        return EventLog(session_id, read, self.shared.config.limits.event_log)

    async def _read_log(self, session_id: str, after_seq: int) -> list[Envelope]:
        storage = self.shared.storage
        if storage is None:
            return []
        store = await storage.reader()
        rows = await store.events(session_id, after_seq=after_seq, limit=REPLAY_PAGE)
        return list(envelopes(session_id, rows, after_seq))
