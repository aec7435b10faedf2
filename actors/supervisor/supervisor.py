"""The supervisor: one actor per session, found or revived by id without waiting; crashes stay with their session."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import trio

from warren.actors.checks import storable
from warren.actors.eventlog import EventLog, LogPage
from warren.actors.protocol import BeginNext, Passivate, Retire, Wake
from warren.actors.session.comms import Comms
from warren.actors.session.session import SessionActor
from warren.actors.shared import NOTHING_OWN, Own, Shared
from warren.actors.supervision import first_error
from warren.actors.supervisor.idle import Idle
from warren.actors.supervisor.patience import Patience
from warren.actors.supervisor.room import Room, shutting_down
from warren.creation import Creation
from warren.errors import AgentError, SessionNotFoundError, StoreError, WarrenError
from warren.journal import envelopes
from warren.mailbox import Message, Reply
from warren.records import SessionRecord

R = TypeVar("R")
logger: Final = logging.getLogger("warren.supervisor")
REPLAY_PAGE: Final = 500
LEAVE_AT_ONCE: Final = 100
"""Sessions that leave memory at once where it is short."""
LOOK_AROUND: Final = 15.0
"""Seconds between two looks for sessions that nobody has, where the store does not say."""
Begin = Callable[[SessionActor], Awaitable[None]]


@attrs.define(eq=False)
class Entry:
    """What the registry has under a session id.

    Attributes:
        log: its event stream.
        own: its tools and its compactor, which no store can hold.
        actor: None while it is not live.
        scope: ends the actor where it does not end by itself; None while it has not begun.
    """

    log: EventLog
    own: Own = NOTHING_OWN
    actor: SessionActor | None = None
    scope: trio.CancelScope | None = None

    @property
    def needed(self) -> bool:
        """Whether there is something here that a new actor could not get from the store."""
        return self.actor is not None or self.log.needed or bool(self.own)


@attrs.define(eq=False)
class Supervisor:
    """Spawns, finds and buries session actors.

    Attributes:
        shared: what its sessions share.
        live: sessions that have an actor.
        stopping: whether the runtime ends: everything new is refused.
        room: for turns; closed where the runtime is about to end: all else is answered.
        idle: stored sessions that are live and have nothing to do.
        comms: the way into sessions' inboxes.
    """

    shared: Shared
    _nursery: trio.Nursery
    live: int = 0
    stopping: bool = False
    room: Room = attrs.field(init=False)
    idle: Idle = attrs.field(init=False)
    comms: Comms = attrs.field(init=False)
    _entries: dict[str, Entry] = attrs.field(factory=dict)
    _leaving: set[str] = attrs.field(factory=set)
    _wanted: set[str] = attrs.field(factory=set)
    _patience: Patience = attrs.field(factory=Patience)
    _one_ended: trio.Event = attrs.field(factory=trio.Event)
    _cut_off: bool = False
    _loop: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)

    def __attrs_post_init__(self) -> None:
        limits = self.shared.config.limits
        self.room, self.idle = Room(limits), Idle(limits.idle_after)
        self.comms = Comms(self)

    def check_loop(self) -> None:
        """Raise RuntimeError if the caller runs on another event loop than the sessions: a reply could not reach it."""
        try:
            right = trio.lowlevel.current_trio_token() is self._loop
        except RuntimeError:
            right = False
        if not right:
            raise RuntimeError(
                "the runtime was opened on another event loop: call it there, from a thread with "
                "trio.from_thread.run(..., trio_token=...)"
            )

    def check_open(self) -> None:
        """Raise AgentError(cause="shutting_down") once the runtime ends, RuntimeError on another event loop."""
        self.check_loop()
        if self.stopping:
            raise shutting_down()

    def find(self, session_id: str) -> SessionActor | None:
        """Return the live session's actor; it may still be loading."""
        entry = self._entries.get(session_id)
        return entry.actor if entry is not None else None

    def is_live(self, actor: SessionActor | None) -> bool:
        """Return whether a session counts as live: it has an actor, or it is nowhere but in this process."""
        return actor is not None or not self.shared.session_store

    def spawn(
        self,
        record: SessionRecord,
        system_prompt: str | None,
        own: Own,
        creation: Creation | None = None,
    ) -> SessionActor:
        """Start the actor of a new session; what is sent to it waits until the session is saved."""
        self.check_open()
        entry = self._entries[record.session_id] = Entry(self._new_log(record.session_id), own)
        return self._start(entry, lambda actor: actor.held.create(record, system_prompt, creation))

    def lend(self, session_id: str, fork_id: str) -> None:
        """Let a fork have the tools and the compactor of its original, which no store can hold."""
        own = self.own_of(session_id)
        if own:
            self._entries.setdefault(fork_id, Entry(self._new_log(fork_id))).own = own

    def own_of(self, session_id: str) -> Own:
        """Return the tools and the compactor that only this session has."""
        entry = self._entries.get(session_id)
        return NOTHING_OWN if entry is None else entry.own

    def revive(self, session_id: str) -> SessionActor:
        """Return the session's actor, started if need be; what is sent to it waits until the session is loaded.

        An unknown id fails what is sent.
        """
        self.check_open()
        entry = self._entries.get(session_id)
        if entry is not None and entry.actor is not None:
            self._rests(entry.actor)
            return entry.actor
        if entry is None:
            entry = self._entries[session_id] = Entry(self._new_log(session_id))
        return self._start(entry)

    def admit(self, actor: SessionActor, turn: Message[R]) -> Reply[R]:
        """Claim the session for a turn, or refuse at once: busy, retired, or no capacity."""
        if not actor.turn_runs:
            self.room.check()
        reply = actor.mailbox.post(turn)
        self.room.take()
        self.idle.drop(actor.session_id)
        return reply

    def release(self, session_id: str) -> None:
        """Forget what nobody needs any more."""
        entry = self._entries.get(session_id)
        if entry is not None and not entry.needed:
            del self._entries[session_id]

    async def stop(self) -> None:
        """End all sessions: turns are interrupted and stored, within the drain time; then they are cut off.

        Nobody waits for an answer once it returns. Idempotent, also while another call of it is on its way.

        Trap: a provider or tool that shields itself from cancellation holds this up for as long as it takes.
        """
        self.stopping = True
        for entry in self._entries.values():
            if entry.actor is not None:
                with contextlib.suppress(WarrenError):
                    entry.actor.mailbox.tell(Retire("stop"))
        with trio.move_on_after(self.shared.config.limits.drain):
            await self._all_ended()
        self._cut_off = True
        for session_id, entry in self._entries.items():
            if entry.actor is not None:
                logger.warning("session %s has not ended within the drain time and is cut off", session_id)
            if entry.scope is not None:
                entry.scope.cancel()
        await self._all_ended()
        for entry in self._entries.values():
            entry.log.close()

    async def sweep(self) -> None:
        """Let sessions leave memory that were not needed for too long."""
        while True:
            self._passivate(await self.idle.next_due())

    async def go_on(self) -> None:
        """Rouse, again and again, the sessions for which something waits and that nobody has: of processes that died.

        Those of this process, too, whose actors have crashed or left meanwhile; ever later where it is in vain.
        """
        pause = LOOK_AROUND
        while True:
            with contextlib.suppress(StoreError):  # another time
                store = await self.shared.storage.reader()
                pause = store.lease
                found = await store.sessions_that_wait()
                self._patience.forget_others(found)
                for session_id in found:
                    if self.find(session_id) is None and self._patience.may_try(session_id, trio.current_time()):
                        self.rouse(session_id)
                    await trio.lowlevel.checkpoint()
            await trio.sleep(pause)

    async def _all_ended(self) -> None:
        while self.live:
            await self._one_ended.wait()

    def turn_ended(self, session_id: str) -> None:
        """See SessionHost."""
        self.room.give_back()
        actor = self.find(session_id)
        if actor is not None:
            self._rests(actor)
        while (waiting := self.room.next_waiting()) is not None:
            self._let_begin(waiting)

    def may_start(self, session_id: str) -> bool:
        """See SessionHost."""
        may = not self.stopping and self.room.take_or_wait(session_id)
        if may:
            self.idle.drop(session_id)
        return may

    def _let_begin(self, session_id: str) -> None:
        """Give a session room that is free; it has it at once, until it does not need it."""
        with contextlib.suppress(WarrenError):  # it runs already, or is gone
            self.revive(session_id).mailbox.tell(BeginNext())
            self.room.take()
            self.idle.drop(session_id)

    def rouse(self, session_id: str) -> None:
        """Have a session look whether something waits for it that may begin."""
        with contextlib.suppress(WarrenError):
            self.revive(session_id).mailbox.tell(Wake())

    def _rests(self, actor: SessionActor) -> None:
        """Count a session as needed just now; without use, one leaves memory later if that makes room."""
        if self.shared.storage.frees_memory and not actor.turn_runs:
            self._make_room()
            self.idle.touch(actor.session_id)

    def _make_room(self) -> None:
        while self.live - len(self._leaving) > self.shared.config.limits.max_live and self._longest_leaves():
            pass

    def slim(self) -> None:
        """Let sessions that have nothing to do leave memory, some at a time."""
        for _ in range(LEAVE_AT_ONCE):
            if not self._longest_leaves():
                return

    def _longest_leaves(self) -> bool:
        """Let the session that is idle longest leave memory; return whether there is one."""
        longest = self.idle.longest()
        if longest is not None:
            self._passivate(longest)
        return longest is not None

    def _passivate(self, session_id: str) -> None:
        """Let a session leave memory; it answers by its end, or says that it stays."""
        self.idle.drop(session_id)
        actor = self.find(session_id)
        if actor is not None and session_id not in self._leaving:
            with contextlib.suppress(WarrenError):
                actor.mailbox.tell(Passivate())
                self._leaving.add(session_id)

    def watched_elsewhere(self) -> dict[str, int]:
        """Return the sessions that are watched here and written elsewhere, if at all, with the last event shown."""
        logs = [entry.log for entry in self._entries.values() if entry.actor is None or not entry.actor.current]
        return {log.session_id: log.last_seq for log in logs if log.watched}

    def hand_over(self, session_id: str) -> None:
        """Let another process have a session that has nothing to do; decline at once if it is at work."""
        actor = self.find(session_id)
        if actor is None or actor.turn_runs:
            self._decline(session_id)
        else:
            self._wanted.add(session_id)
            self._passivate(session_id)

    def _decline(self, session_id: str) -> None:
        self._wanted.discard(session_id)
        self.shared.storage.decline(session_id)

    def stays(self, session_id: str) -> None:
        """See SessionHost."""
        self._leaving.discard(session_id)
        if session_id in self._wanted:
            self._decline(session_id)
        actor = self.find(session_id)
        if actor is not None and not actor.turn_runs:
            self.idle.touch(session_id)  # no room is made: two that stay would send each other away

    def _start(self, entry: Entry, begin: Begin | None = None) -> SessionActor:
        entry.actor = actor = SessionActor(
            entry.log,
            self.shared,
            self,
            self.comms,
            entry.own,
        )
        self.live += 1
        self._rests(actor)
        self._nursery.start_soon(self._run, entry, actor, begin)
        return actor

    async def _run(self, entry: Entry, actor: SessionActor, begin: Begin | None) -> None:
        """Run one actor; whatever ends it, nobody is left waiting."""
        refusal: WarrenError | None = None
        try:
            async with trio.open_nursery() as turns:
                entry.scope = self._shielded(turns)
                refusal = None if begin is None else await _refusal(begin(actor))
                del begin  # it holds the state that the session has begun with
                refusal = refusal or await _refusal(actor.run(turns))
                if refusal is None:  # a nursery's end is a checkpoint: by then nobody may find an actor that has left
                    self._bury(entry, actor, self._ended(actor))
                else:
                    turns.cancel_scope.cancel()
        except Exception as exc:
            logger.exception("session %s crashed", actor.session_id)
            problem = storable(f"the session crashed: {first_error(exc)!r}")
            refusal = AgentError(problem, session_id=actor.session_id, cause="crash")
            self._patience.set_back(actor.session_id, trio.current_time())
        finally:
            if entry.actor is actor:
                self._bury(entry, actor, refusal or self._ended(actor))

    def _shielded(self, turns: trio.Nursery) -> trio.CancelScope:
        """Let an actor end by itself: the end of the runtime waits for it, until it cuts off who is late."""
        scope = turns.cancel_scope
        scope.shield = True
        if self._cut_off:
            scope.cancel()
        return scope

    def _ended(self, actor: SessionActor) -> WarrenError:
        if self.stopping:
            return AgentError("the runtime is shutting down", session_id=actor.session_id, cause="shutting_down")
        return SessionNotFoundError("the session was retired", session_id=actor.session_id, cause="retired")

    def _bury(self, entry: Entry, actor: SessionActor, error: WarrenError) -> None:
        actor.bury(error.again)
        if actor.held.inbox.paused:
            self._patience.set_back(entry.log.session_id, trio.current_time())
        entry.actor = entry.scope = None
        self.live -= 1
        self.idle.drop(entry.log.session_id)
        self._leaving.discard(entry.log.session_id)
        self._wanted.discard(entry.log.session_id)
        self._one_ended.set()
        self._one_ended = trio.Event()
        if entry.log.closed:
            self._entries.pop(entry.log.session_id, None)
        else:
            self.release(entry.log.session_id)

    def _new_log(self, session_id: str) -> EventLog:
        return EventLog(session_id, self._read_log, self.shared.config.limits.event_log)

    async def _read_log(self, session_id: str, after_seq: int) -> LogPage:
        store = await self.shared.storage.reader()
        page = await store.replay(session_id, after_seq=after_seq, limit=REPLAY_PAGE)
        return LogPage(list(envelopes(session_id, page.rows, after_seq)), page.gone)


async def _refusal(life: Awaitable[None]) -> WarrenError | None:
    """Return why an actor could not be saved or loaded: its callers' business, not a crash."""
    try:
        await life
    except WarrenError as exc:
        return exc
    return None
