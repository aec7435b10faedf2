"""The scheduler: which sessions begin a turn, which leave memory, and how long each of them waits. No I/O.

All of its state is in one place, and all decisions are made in `Scheduler.assign`, which is run again after each
change. A change is noted in constant time; a run costs as much as the actions that it returns, however many sessions
there are, because it only ever looks at the first of an ordered queue.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import attrs

from warren.actors.limits.tenancy import NOBODY, Acceptance, Accounts, Tenancy
from warren.actors.supervisor.rounds import Rounds
from warren.base.backoff import Backoff
from warren.base.errors import AgentError, CapacityExceededError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import define, frozen, value
from warren.settings.config import Limits

BACKOFF: Final = Backoff(first=30.0, longest=3600.0)
"""How long a session is left alone after its crashes, as each try may cost a call of a model."""
DECLINED: Final = 1.0
"""Seconds for which a session that has declined to leave memory is not told to again, if none may be idle at all."""
AHEAD: Final = 100
"""Sessions of a tenant with limits that are loaded before their turns may begin, at most: more wait in the store."""
RELIEF: Final = 100
"""Sessions that are evicted at once when memory is short. The next look at the memory shows if that was enough."""


@value
class Begin:
    """Let the session begin the turn that it waits for. The turn counts as running from now on."""

    session_id: str


@value
class Evict:
    """Tell the session to leave memory. It answers by its end or by `Scheduler.stays`."""

    session_id: str


@value
class Decline:
    """Tell the process that asked for the session that it has work here."""

    session_id: str


@value
class Recover:
    """Wake the session, which may have to be started: an input waits for it, and no other process has the session."""

    session_id: str


REASONS: Final = ("max_sessions", "memory", "shutting_down")
"""The reasons for which turns and sessions are refused."""
Action = Begin | Evict | Decline | Recover


@frozen
class Pause:
    """The pause of a session whose turns crash or cannot be stored.

    Attributes:
        failures: the crashes in a row.
        until: its end.
    """

    failures: int
    until: float


@define(eq=False)
class Scheduler:
    """Shares out the turns and the memory of one process among its sessions.

    The methods below note one change each; call `assign` after them, and do its actions. Times are in seconds, on one
    clock that never goes back.

    A live session is in at most one of `running`, `waiting`, `idle` and `leaving`, and one in `held` is not idle. The
    exception is a session that begins or asks for a turn before it answers the eviction: it is also in `leaving` until
    then.

    Attributes:
        limits: how many turns may run, how many sessions may be live, how long one may be idle.
        evicts: whether sessions can leave memory at all; without a store they cannot.
        tenancy: the limits of tenants and tokens, and what counts against them.
        closed: whether no more turns begin.
        releases: whether idle sessions leave at once, so that other nodes can have them.
        memory_short: whether the process uses more memory than it may.
        live: sessions that have an actor.
        running: sessions whose turn was admitted and has not ended.
        resting: those of them whose turn waits in its task for a child session: they take no room from it.
        waiting: sessions that wait for room to begin a turn: tenants take turns, and within one the first comes first.
        held: sessions of which calls run in the background: they stay in memory.
        idle: sessions without work, each with the time since which it is idle, the longest idle first.
        leaving: sessions that were told to leave and have not answered; True if another process asked for the session.
        recovering: sessions that were told to recover, and have not asked for their turns as yet.
        evictions: evictions so far.
        refused: the turns and sessions that were refused for want of room so far, by the reason.
    """

    limits: Limits
    evicts: bool = True
    tenancy: Tenancy = attrs.field(factory=Tenancy)
    closed: bool = False
    releases: bool = False
    memory_short: bool = False
    live: set[str] = attrs.field(factory=set)
    running: set[str] = attrs.field(factory=set)
    resting: set[str] = attrs.field(factory=set)
    waiting: Rounds = attrs.field(factory=Rounds)
    held: set[str] = attrs.field(factory=set)
    # An ordered dict, not a dict: the first key of a dict is found in linear time when many were deleted before it.
    idle: OrderedDict[str, float] = attrs.field(factory=OrderedDict)
    leaving: dict[str, bool] = attrs.field(factory=dict)
    recovering: Rounds = attrs.field(factory=Rounds)
    evictions: int = 0
    refused: Counter[str] = attrs.field(factory=lambda: Counter(dict.fromkeys(REASONS, 0)))
    _stayed: set[str] = attrs.field(factory=set)  # idle sessions that declined to leave since a session was needed last
    _relief: int = 0
    _accounts: dict[str, Accounts] = attrs.field(factory=dict)  # those for which a session's turn counts now
    _wanted: list[str] = attrs.field(factory=list)
    _declined: list[str] = attrs.field(factory=list)
    _stranded: Rounds = attrs.field(factory=Rounds)
    _pauses: dict[str, Pause] = attrs.field(factory=dict)

    # -- decisions

    def assign(self, now: float) -> list[Action]:
        """Return the actions that are due now; the state is as if all of them had been done already.

        Note the start of a recovered session with `started`, and with `recovered` that it has looked for its work. If a
        session refuses an action, note that as the change that it is, `turn_ended` for a `Begin` and `stays` for an
        `Evict`, and run this again.
        """
        actions: list[Action] = [*self._begin_waiting()] if self.waiting else []
        # Other processes have asked for sessions: an idle one is handed over, one that has work is not.
        while self._wanted:
            session_id = self._wanted.pop()
            if session_id in self.idle:
                actions.append(self._evict(session_id, handed_over=True))
            elif session_id in self.leaving:
                self.leaving[session_id] = True  # its answer to the eviction is the answer to the other process
            else:
                actions.append(Decline(session_id))
        while self._declined:
            actions.append(Decline(self._declined.pop()))
        # Nobody waits for the room here, so sessions that nobody has may use it: as many at once as there is room for.
        while self._stranded and self._has_room_beside(self.recovering) and not self.closed:
            tenant = next(filter(self._may_recover, self._stranded.tenants()), None)
            if tenant is None:
                break
            session_id = self._stranded.pop_of(tenant)
            # A session that only has subscribers here is idle, and had its work in a process that is dead.
            # Without a store no session ever leaves memory, and it is not known which of them are idle.
            idle = session_id in self.idle if self.evicts else session_id not in self.waiting
            rests = (idle or session_id in self.held) and session_id not in self.running
            if session_id not in self.live or rests:
                self.live.add(session_id)
                self.recovering.add(session_id, tenant)
                actions.append(Recover(session_id))
                if self.memory_short:  # one after each look at the store has to do
                    self._stranded = Rounds()
        # Only the session that is idle longest is looked at: if that one may stay, so may all the others.
        while self.idle and self._must_leave(*next(iter(self.idle.items())), now):
            self._relief -= 1
            actions.append(self._evict(next(iter(self.idle))))
        self._relief = 0  # used up or not: the next look at the memory gives more if it is needed
        return actions

    def _may_recover(self, tenant: str) -> bool:
        """Return whether one more session of a tenant may be loaded: not beside many whose turns may not begin yet."""
        ahead = self.waiting.count(tenant) + self.recovering.count(tenant)
        return ahead < AHEAD or self.tenancy.of_tenant(tenant) is None

    def _begin_waiting(self) -> Iterator[Begin]:
        """Let turns begin that wait: one has ended, or memory is no longer short."""
        while self.has_room and not self.closed:
            session_id = self.waiting.pop_next(self.tenancy.may_begin)
            if session_id is None:  # nobody waits, or their tenants run as many turns as they may
                break
            self._runs(session_id)
            yield Begin(session_id)

    def _must_leave(self, session_id: str, since: float, now: float) -> bool:
        """Return whether the session that is idle longest has to leave memory."""
        # Its time is over; not in the instant in which it was needed, though, if the limit is zero seconds.
        if since < now and since + self._idle_after <= now:
            return True
        # Too many are live. The session that was needed last stays, as its caller is about to send to it; and so do
        # those that just declined to leave, else two of them would be told to leave in turns, for ever.
        crowded = len(self.live) - len(self.leaving) > self.limits.max_live
        if crowded and len(self.idle) > 1 and session_id not in self._stayed:
            return True
        # Memory is short.
        return self._relief > 0

    def _evict(self, session_id: str, *, handed_over: bool = False) -> Evict:
        del self.idle[session_id]
        self._stayed.discard(session_id)
        self.leaving[session_id] = handed_over
        self.evictions += 1
        return Evict(session_id)

    def next_due(self, now: float) -> float:
        """Return the time at which `assign` has to run if nothing changes before.

        It is never too late for a session that becomes idle meanwhile, as no session has a shorter time than another.
        """
        since = next(iter(self.idle.values()), now)
        return since + self._idle_after

    @property
    def _idle_after(self) -> float:
        return 0 if self.releases else self.limits.idle_after

    # -- admission of turns and sessions that callers wait for: these never wait

    @property
    def has_room(self) -> bool:
        """Whether one more turn may run. While memory is short one turn at a time may, so that work gets done."""
        return self._has_room_beside(())

    def _has_room_beside(self, others: Collection[str]) -> bool:
        """Return whether one more turn may run beside those of other sessions that are about to begin."""
        taken = self._taken + len(others)
        return not taken or (taken < self.limits.max_sessions and not self.memory_short)

    @property
    def _taken(self) -> int:
        return len(self.running) - len(self.resting)

    @property
    def restricted(self) -> bool:
        """Whether no turn may begin now, or only one at a time."""
        return self.closed or self.memory_short or self._taken >= self.limits.max_sessions

    def check_turn(self, by: Accounts = NOBODY, session_id: str | None = None, now: float = 0.0) -> None:
        """Check that one more turn may run.

        Args:
            by: the accounts of its caller.
            session_id: its session; None if the session is new.
            now: the time.

        Raises:
            AgentError: if the runtime drains or ends; the cause is `shutting_down`.
            CapacityExceededError: if as many turns run as may run, memory is short, or a limit of its caller is
                reached.
        """
        if self.closed:
            self.refused["shutting_down"] += 1
            raise shutting_down()
        if self._taken >= self.limits.max_sessions:
            self.refused["max_sessions"] += 1
            raise CapacityExceededError(f"{self.limits.max_sessions} turns run already")
        if self.memory_short and self._taken:
            self.refused["memory"] += 1
            raise _memory_short()
        if by:
            self.tenancy.check_turn(by, session_id, now)

    def check_session(self, by: Accounts = NOBODY) -> None:
        """Check that one more session may be live.

        Raises CapacityExceededError if memory is short beside others, or a limit of its caller is reached.
        """
        if self.memory_short and self.live:
            self.refused["memory"] += 1
            raise _memory_short()
        if by:
            self.tenancy.check_session(by)

    # -- changes: turns

    def begun(
        self, session_id: str, by: Accounts = NOBODY, accepted: Acceptance | None = None, now: float = 0.0
    ) -> None:
        """Note that a turn was admitted after `check_turn`.

        Args:
            session_id: its session.
            by: the accounts of its caller.
            accepted: the turn, if it counts for their rates already.
            now: the time.
        """
        if by:
            if accepted is not None:
                accepted.take()  # from here on it is given back by its end
            else:
                self.tenancy.begin_turn(by, now)
            self.tenancy.unbegun[session_id] = by
            self._counts(session_id, by, runs=1)
        elif self._accounts:
            self._runs(session_id)
        if self.waiting:  # its tenant may have had to wait while there was room
            self.waiting.discard(session_id)
        self.running.add(session_id)
        self.idle.pop(session_id, None)
        self._stayed.clear()

    def asks(self, session_id: str, tenant: str = DEFAULT_TENANT) -> None:
        """Note that a session of a tenant has a turn to begin; `assign` returns `Begin` when it may."""
        self.idle.pop(session_id, None)
        if session_id not in self.running:
            self.waiting.add(session_id, tenant)
            # Its sender may leave before it ends: it counts for the sender's token until then.
            by = self.tenancy.senders.get(session_id)
            account = self.tenancy.of_tenant(tenant)
            if by is not None:
                self._counts(session_id, by)
            elif account is not None:
                self._counts(session_id, (account,))

    def turn_ended(self, session_id: str, now: float) -> None:
        """Note that a turn has ended, or could not begin."""
        if self.tenancy.unbegun or self.tenancy.spending:
            self.tenancy.ended_turn(session_id)
        if self._accounts:
            self._runs_no_more(session_id)
        self.running.discard(session_id)
        self.resting.discard(session_id)
        self._stayed.clear()
        if self.evicts:
            self._rest(session_id, now)

    def rests(self, session_id: str, *, rests: bool) -> None:
        """Note whether a running turn waits in its task for a child, which may need the room.

        A turn that goes on does not wait for room: until others have ended, more may run than `limits.max_sessions`, or
        than its tenant may have.
        """
        now = rests and session_id in self.running
        if now == (session_id in self.resting):
            return
        for account in self._accounts.get(session_id, NOBODY):
            account.moment.running += -1 if now else 1
        if now:
            self.resting.add(session_id)
        else:
            self.resting.discard(session_id)

    def suspended(self, session_id: str) -> None:
        """Note that a session waits for something outside, maybe for long: it leaves memory before all others."""
        if session_id in self.idle:
            self.idle[session_id] = -math.inf
            self.idle.move_to_end(session_id, last=False)

    def _counts(self, session_id: str, by: Accounts, runs: int = 0) -> None:
        """Let the turn of a session count for accounts from now on, and for no others; `runs` is 1 if it does."""
        if session_id in self._accounts:
            self._counts_no_more(session_id)
        self._accounts[session_id] = by
        for account in by:
            moment = account.moment
            busy = moment.busy
            busy[session_id] = busy.get(session_id, 0) + 1
            moment.running += runs

    def _counts_no_more(self, session_id: str) -> None:
        for account in self._accounts.pop(session_id, NOBODY):
            account.moment.let_go(session_id)

    def _runs(self, session_id: str) -> None:
        self.running.add(session_id)
        for account in self._accounts.get(session_id, NOBODY):
            account.moment.running += 1

    def _runs_no_more(self, session_id: str) -> None:
        """Let a session neither run nor wait, for its accounts."""
        runs = session_id in self.running and session_id not in self.resting
        for account in self._accounts.pop(session_id, NOBODY):
            moment = account.moment
            moment.running -= runs
            busy = moment.busy
            if busy[session_id] == 1:
                del busy[session_id]
            else:
                busy[session_id] -= 1

    # -- changes: sessions in memory

    def holds(self, session_id: str) -> None:
        """Note that a call of a session runs in the background."""
        self.held.add(session_id)
        self.idle.pop(session_id, None)

    def lets_go(self, session_id: str, now: float) -> None:
        """Note that no call of a session runs in the background any more."""
        self.held.discard(session_id)
        if self.evicts:
            self._rest(session_id, now)

    def started(self, session_id: str, now: float) -> None:
        """Note that a session has an actor."""
        self.live.add(session_id)
        self.needed(session_id, now)

    def needed(self, session_id: str, now: float) -> None:
        """Note that a session was needed just now: if it has no work it is idle from now on."""
        self._stayed.clear()
        if self.evicts:
            self._rest(session_id, now)

    def stays(self, session_id: str, now: float) -> None:
        """Note that a session that was told to leave has declined, or could not be told."""
        if self.leaving.pop(session_id, False):
            self._declined.append(session_id)
        if self.evicts:  # with a limit of zero seconds it would be told again at once, as long as callers wait for it
            self._rest(session_id, now if self._idle_after else now + DECLINED)
        self._stayed.add(session_id)

    def ended(self, session_id: str) -> None:
        """Note that the actor of a session has ended."""
        self.live.discard(session_id)
        self.tenancy.ended_turn(session_id)
        if self._accounts:
            self._runs_no_more(session_id)
        self.running.discard(session_id)
        self.resting.discard(session_id)
        self.waiting.discard(session_id)
        self.held.discard(session_id)
        self.idle.pop(session_id, None)
        self.leaving.pop(session_id, None)
        self.recovering.discard(session_id)

    def _rest(self, session_id: str, now: float) -> None:
        working = session_id in self.running or session_id in self.waiting or session_id in self.held
        if session_id in self.live and not working and session_id not in self.leaving:
            self.idle[session_id] = now
            self.idle.move_to_end(session_id)

    # -- changes: the rest of the world

    def wanted(self, session_id: str) -> None:
        """Note that another process has asked for a session."""
        self._wanted.append(session_id)

    def memory(self, *, short: bool) -> None:
        """Note a look at the memory of the process."""
        self.memory_short = short
        self._relief = RELIEF if short else 0

    def recovered(self, session_id: str) -> None:
        """Note that a session that was told to recover has asked for its turn, or has nothing to do."""
        self.recovering.discard(session_id)

    def failed(self, session_id: str, now: float) -> None:
        """Note that the work of a session came to nothing: it crashed, or its turn could not be stored."""
        failures = self._pauses[session_id].failures + 1 if session_id in self._pauses else 1
        self._pauses[session_id] = Pause(failures, now + BACKOFF.delay(failures))
        self._stranded.discard(session_id)

    def found_waiting(self, sessions: Mapping[str, str], now: float) -> None:
        """Note all sessions for which something waits in the store and that no process works on, with their tenants.

        Those of this process are among them if they crashed or left. The backoff of a session that is not among them
        ends: its work is done.
        """
        self._pauses = {each: pause for each, pause in self._pauses.items() if each in sessions}
        self._stranded = Rounds()
        for session_id, tenant in sessions.items():
            if session_id not in self._pauses or now >= self._pauses[session_id].until:
                self._stranded.add(session_id, tenant)


def shutting_down() -> AgentError:
    """Return the error for a request to a runtime that ends."""
    return AgentError("the runtime is shutting down", cause="shutting_down", retryable=True)


def _memory_short() -> CapacityExceededError:
    return CapacityExceededError("the process uses as much memory as it may", cause="memory")
