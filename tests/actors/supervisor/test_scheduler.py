"""The scheduler alone: any changes in any order, and each decision is held against a model of the sessions."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from warren.actors.limits.tenancy import Tenancy
from warren.actors.supervisor.scheduler import (
    AHEAD,
    BACKOFF,
    RELIEF,
    Begin,
    Decline,
    Evict,
    Recover,
    Scheduler,
)
from warren.base.errors import AgentError, CapacityExceededError
from warren.base.tenant_limits import TenantLimits
from warren.settings.config import Limits

IDS = [f"s{number}" for number in range(5)]
TENANT_OF = {"s0": "a", "s1": "a", "s2": "a", "s3": "b", "s4": "c"}
IDLE_AFTER = 10.0


@attrs.define
class Session:
    """A session as its actor knows it."""

    live: bool = False
    runs: bool = False
    told_to_leave: bool = False
    wanted: bool = False
    refuses: bool = False
    needed_at: float = 0.0
    backoff_to: float = 0.0


class Sessions(RuleBasedStateMachine):
    """Sessions that start, work, wait, leave, decline and crash, on a clock of their own."""

    def __init__(self) -> None:
        """Begin without sessions."""
        super().__init__()
        self.now = 100.0
        self.sessions = {each: Session() for each in IDS}
        self.queue: list[str] = []
        self.rounds: list[str] = []  # the tenants with sessions in the queue, the one whose turn it is first
        self.found: set[str] = set()
        self.short = self.closed = False

    @initialize(
        turns=st.integers(1, 3), live=st.integers(1, 4), evicts=st.booleans(), share=st.sampled_from([None, 1, 2])
    )
    def open(self, turns: int, live: int, *, evicts: bool, share: int | None) -> None:
        """Choose the limits; those of one tenant, too."""
        self.limits = Limits(max_sessions=turns, max_live=live, idle_after=IDLE_AFTER)
        self.share = share
        tenancy = Tenancy({} if share is None else {"a": TenantLimits(running_turns=share)})
        self.scheduler = Scheduler(self.limits, evicts, tenancy)

    def may_begin(self, tenant: str) -> bool:
        """Return whether a tenant runs fewer turns than it may."""
        running = [name for name, each in self.sessions.items() if each.runs and TENANT_OF[name] == tenant]
        return tenant != "a" or self.share is None or len(running) < self.share

    def join(self, name: str) -> None:
        """Let a session wait."""
        if name not in self.queue:
            self.queue.append(name)
            if TENANT_OF[name] not in self.rounds:
                self.rounds.append(TENANT_OF[name])

    def leave(self, name: str) -> None:
        """Let a session wait no longer."""
        self.queue.remove(name)
        if not self.waiting_of(TENANT_OF[name]):
            self.rounds.remove(TENANT_OF[name])

    def waiting_of(self, tenant: str) -> list[str]:
        """Return the sessions of a tenant that wait, in order."""
        return [name for name in self.queue if TENANT_OF[name] == tenant]

    def any(self, accept: Callable[[Session], bool]) -> list[str]:
        """Return the sessions that a rule can be about."""
        return [name for name, each in self.sessions.items() if accept(each)]

    def running(self) -> int:
        """Return how many turns run."""
        return len(self.any(lambda each: each.runs))

    # -- the decisions

    def assign(self) -> None:
        """Do what the scheduler says, as the supervisor does, until it says no more."""
        changed = True
        while actions := self.scheduler.assign(self.now):
            assert changed, "nothing has changed since the last decisions"
            changed = False
            for action in actions:
                session = self.sessions[action.session_id]
                match action:
                    case Begin(name):
                        changed |= not self.begin(name, session)
                    case Evict():
                        changed |= not self.evict(session)
                    case Decline():
                        assert session.wanted
                        assert not session.told_to_leave
                        session.wanted = False
                    case Recover(name):
                        self.recover(name, session)
                        changed = True

    def begin(self, name: str, session: Session) -> bool:
        """Begin the turn of the session that waits longest among its tenant's; one that retires refuses."""
        tenant = next(each for each in self.rounds if self.may_begin(each))
        assert TENANT_OF[name] == tenant, "the tenants take turns"
        assert self.waiting_of(tenant)[0] == name, "first come, first served"
        self.rounds.remove(tenant)
        self.rounds.append(tenant)
        self.leave(name)
        assert session.live
        assert not session.runs
        assert not self.closed
        assert self.running() == 0 or not self.short
        session.runs = not session.refuses
        if session.refuses:
            session.needed_at = self.now
            self.scheduler.turn_ended(name, self.now)
        return session.runs

    def evict(self, session: Session) -> bool:
        """Tell a session without work to leave; one whose mailbox is full is not told."""
        assert session.live
        assert not session.runs
        assert not session.told_to_leave
        assert self.scheduler.evicts
        live = len(self.any(lambda each: each.live and not each.told_to_leave))
        overdue = session.needed_at + IDLE_AFTER <= self.now
        assert overdue or live > self.limits.max_live or self.short or session.wanted
        session.told_to_leave = True
        if session.refuses:
            self.answer(session)
        return session.told_to_leave

    def answer(self, session: Session) -> None:
        """Let a session decline to leave."""
        (name,) = [name for name, each in self.sessions.items() if each is session]
        session.told_to_leave = False
        session.needed_at = self.now
        self.scheduler.stays(name, self.now)

    def recover(self, name: str, session: Session) -> None:
        """Start a session that nobody has, or wake one that has no work here."""
        assert not any((session.runs, session.told_to_leave, name in self.queue))
        assert name in self.found
        assert session.backoff_to <= self.now
        assert not self.closed
        assert self.running() < self.limits.max_sessions
        assert self.running() == 0 or not self.short
        if not session.live:
            session.live, session.needed_at = True, self.now
            self.scheduler.started(name, self.now)
        self.scheduler.recovered(name)

    # -- the changes

    @precondition(lambda self: self.any(lambda each: not each.live))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A session is created or loaded."""
        name = data.draw(st.sampled_from(self.any(lambda each: not each.live)))
        self.sessions[name] = Session(live=True, needed_at=self.now, backoff_to=self.sessions[name].backoff_to)
        self.scheduler.started(name, self.now)
        self.assign()

    @precondition(lambda self: self.any(lambda each: each.live and not each.runs))
    @rule(data=st.data())
    def start_turn(self, data: st.DataObject) -> None:
        """Somebody asks for a turn, and is admitted or refused at once."""
        name = data.draw(st.sampled_from(self.any(lambda each: each.live and not each.runs)))
        self.sessions[name].needed_at = self.now
        self.scheduler.needed(name, self.now)
        self.assign()
        if self.sessions[name].runs:
            return
        running = self.running()
        account = self.scheduler.tenancy.of_tenant(TENANT_OF[name])
        by = () if account is None else (account,)
        busy = {each for each in IDS if TENANT_OF[each] == "a" and (self.sessions[each].runs or each in self.queue)}
        if self.closed:
            with pytest.raises(AgentError):
                self.scheduler.check_turn(by, name)
        elif running == self.limits.max_sessions or (self.short and running):
            with pytest.raises(CapacityExceededError) as caught:
                self.scheduler.check_turn(by, name)
            assert (caught.value.cause == "memory") is (running < self.limits.max_sessions)
        elif by and self.share is not None and name not in busy and len(busy) >= self.share:
            with pytest.raises(CapacityExceededError, match="'a' runs") as caught:
                self.scheduler.check_turn(by, name)
            assert caught.value.cause == "tenant_running_turns"
        elif name not in self.queue:
            self.scheduler.check_turn(by, name)
            self.sessions[name].runs = True
            assert not any(self.may_begin(TENANT_OF[each]) for each in self.queue)
            self.scheduler.begun(name, by)
            self.assign()

    @precondition(lambda self: self.any(lambda each: each.live and not each.runs))
    @rule(data=st.data())
    def ask_for_turn(self, data: st.DataObject) -> None:
        """A session has an input that begins a turn."""
        name = data.draw(st.sampled_from(self.any(lambda each: each.live and not each.runs)))
        self.join(name)
        self.scheduler.asks(name, TENANT_OF[name])
        self.assign()

    @precondition(lambda self: self.any(lambda each: each.runs))
    @rule(data=st.data())
    def end_turn(self, data: st.DataObject) -> None:
        """A turn ends."""
        name = data.draw(st.sampled_from(self.any(lambda each: each.runs)))
        session = self.sessions[name]
        session.runs, session.needed_at = False, self.now
        self.scheduler.turn_ended(name, self.now)
        self.assign()

    @precondition(lambda self: self.any(lambda each: each.live))
    @rule(data=st.data())
    def need(self, data: st.DataObject) -> None:
        """Somebody asks a session for something that is no turn."""
        name = data.draw(st.sampled_from(self.any(lambda each: each.live)))
        self.sessions[name].needed_at = self.now
        self.scheduler.needed(name, self.now)
        self.assign()

    @precondition(lambda self: self.any(lambda each: each.told_to_leave))
    @rule(data=st.data(), stays=st.booleans())
    def answer_eviction(self, data: st.DataObject, *, stays: bool) -> None:
        """A session that was told to leave does, or has work meanwhile."""
        name = data.draw(st.sampled_from(self.any(lambda each: each.told_to_leave)))
        session = self.sessions[name]
        if stays or session.runs or name in self.queue:
            self.answer(session)
        else:
            self.end(name)
        self.assign()

    @precondition(lambda self: self.any(lambda each: each.live))
    @rule(data=st.data(), times=st.integers(1, 3))
    def crash(self, data: st.DataObject, times: int) -> None:
        """An actor crashes, perhaps again and again."""
        name = data.draw(st.sampled_from(self.any(lambda each: each.live)))
        for _ in range(times):
            self.scheduler.failed(name, self.now)
        self.end(name)
        self.sessions[name].backoff_to = self.now + BACKOFF.first
        self.assign()

    def end(self, name: str) -> None:
        """Let an actor end."""
        self.sessions[name] = Session(backoff_to=self.sessions[name].backoff_to)
        if name in self.queue:
            self.leave(name)
        self.scheduler.ended(name)

    @rule(name=st.sampled_from(IDS))
    def ask_for_session(self, name: str) -> None:
        """Another process asks for a session."""
        self.sessions[name].wanted = True
        self.scheduler.wanted(name)
        self.assign()

    @rule(name=st.sampled_from(IDS))
    def refuse(self, name: str) -> None:
        """A session takes no messages from now on, or takes them again."""
        self.sessions[name].refuses = not self.sessions[name].refuses

    @rule(short=st.booleans())
    def look_at_memory(self, *, short: bool) -> None:
        """The gauge reports."""
        self.short = short
        self.scheduler.memory(short=short)
        self.assign()
        if short:
            left = self.any(lambda each: each.live and not (each.runs or each.told_to_leave or each.refuses))
            assert not self.scheduler.evicts or set(left) <= set(self.queue), "all have left that could"

    @rule(found=st.sets(st.sampled_from(IDS)))
    def look_for_work(self, found: set[str]) -> None:
        """The store is asked for sessions with work that no process has."""
        for name, session in self.sessions.items():
            if name not in found:
                session.backoff_to = 0.0
        self.found = found
        self.scheduler.found_waiting({name: TENANT_OF[name] for name in found}, self.now)
        self.assign()

    @rule(seconds=st.sampled_from([0.5, 5.0, 9.5, 10.0, 31.0, 65.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; the scheduler is run when it asks for it."""
        until = self.now + seconds
        while (due := self.scheduler.next_due(self.now)) <= until:
            self.now = due
            self.assign()
        self.now = until

    @rule(really=st.integers(0, 9))
    def drain(self, really: int) -> None:
        """The runtime is told to end, seldom."""
        self.closed = self.scheduler.closed = self.closed or really == 0
        self.assign()

    # -- promises

    @invariant()
    def counts_are_right(self) -> None:
        """The scheduler knows of each session what the session knows, and no more turns run than may."""
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.live == set(self.any(lambda each: each.live))
        assert self.scheduler.running == set(self.any(lambda each: each.runs))
        assert list(self.scheduler.waiting.in_order()) == [
            name for each in self.rounds for name in self.waiting_of(each)
        ]
        account = self.scheduler.tenancy.of_tenant("a")
        if account is not None:
            running = {name for name in IDS if TENANT_OF[name] == "a" and self.sessions[name].runs}
            assert account.moment.running == len(running) <= (self.share or 0)
            assert {*account.moment.busy} == running | {*self.waiting_of("a")}
        assert set(self.scheduler.leaving) == set(self.any(lambda each: each.told_to_leave))
        assert self.running() <= self.limits.max_sessions
        assert not self.scheduler.idle.keys() & (self.scheduler.running | {*self.queue, *self.scheduler.leaving})

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        """A session waits only while others run as many turns as may run, or its tenant does."""
        if any(self.may_begin(TENANT_OF[name]) for name in self.queue) and not self.closed:
            assert self.running() == self.limits.max_sessions or (self.short and self.running())

    @invariant()
    def nobody_idles_for_too_long(self) -> None:
        """A session without work is told to leave when its time is over."""
        if not hasattr(self, "scheduler") or not self.scheduler.evicts:
            return
        for name, session in self.sessions.items():
            works = session.runs or session.told_to_leave or name in self.queue
            assert not session.live or works or self.now <= session.needed_at + IDLE_AFTER

    @invariant()
    def other_processes_get_an_answer(self) -> None:
        """A process that asked for a session was declined, or the session was told to leave and will answer."""
        assert all(each.told_to_leave for each in self.sessions.values() if each.wanted)

    def teardown(self) -> None:
        """Nobody waits for ever: when turns end, one after another, each session that waits has its own."""
        if self.closed or not hasattr(self, "scheduler"):
            return
        for _ in range(2 * len(IDS)):
            for name in self.any(lambda each: each.runs):
                self.sessions[name].runs = False
                self.sessions[name].needed_at = self.now
                self.scheduler.turn_ended(name, self.now)
                self.assign()
        assert self.queue == []
        assert self.running() == 0


def test_any_changes_in_any_order() -> None:
    """Turns are bounded and fair, sessions with work stay, idle ones leave in time, and nobody waits for ever."""
    run_state_machine_as_test(Sessions)


def opened(*names: str, **limits: Any) -> Scheduler:
    """Return a scheduler with live sessions that are idle since the times 0, 1, 2, ..."""
    scheduler = Scheduler(Limits(**{"idle_after": 1e9, **limits}))
    for now, name in enumerate(names):
        scheduler.started(name, now)
        assert scheduler.assign(now) == []
    return scheduler


def test_too_many_sessions() -> None:
    """The one that is idle longest leaves; the one that was needed last stays, also if it is the only one."""
    scheduler = opened("a", "b", max_live=2)
    scheduler.needed("a", 2)
    scheduler.started("c", 3)
    assert scheduler.assign(3) == [Evict("b")]
    for each in ("a", "c"):
        scheduler.begun(each)
    scheduler.ended("b")
    scheduler.started("d", 4)
    assert scheduler.assign(4) == []


def test_sessions_that_decline_to_leave() -> None:
    """Two of them are not told to leave in turns: they are asked again when a session was needed."""
    scheduler = opened("a", "b", "c", max_live=3)
    scheduler.started("d", 3)
    assert scheduler.assign(3) == [Evict("a")]
    scheduler.stays("a", 3)
    assert scheduler.assign(3) == [Evict("b")]
    scheduler.stays("b", 3)
    assert scheduler.assign(3) == [Evict("c")]
    scheduler.stays("c", 3)
    assert scheduler.assign(3) == [Evict("d")]
    scheduler.stays("d", 3)
    assert scheduler.assign(3) == []
    scheduler.needed("d", 4)
    assert scheduler.assign(4) == [Evict("a")]


def test_memory_is_given_back_in_steps() -> None:
    """After each look so many leave, the longest idle first; what becomes idle between two looks stays until then."""
    names = [f"s{number}" for number in range(RELIEF + 2)]
    scheduler = opened(*names)
    scheduler.memory(short=True)
    assert scheduler.assign(200) == [Evict(name) for name in names[:RELIEF]]
    assert scheduler.assign(200) == []
    scheduler.memory(short=True)
    assert scheduler.assign(200) == [Evict(name) for name in names[RELIEF:]]
    scheduler.started("last", 200)
    assert scheduler.assign(200) == []
    assert scheduler.evictions == RELIEF + 2


def test_room_when_memory_is_no_longer_short() -> None:
    """Sessions that wait begin at once, not only when the one turn ends that was allowed meanwhile."""
    scheduler = opened("a", "b", "c")
    scheduler.memory(short=True)
    scheduler.begun("a")
    scheduler.asks("b")
    scheduler.asks("c")
    assert scheduler.assign(3) == []
    scheduler.memory(short=False)
    assert scheduler.assign(3) == [Begin("b"), Begin("c")]


def test_backoff_doubles_up_to_an_hour() -> None:
    """Each failure makes the next try later; a session whose work is done begins anew."""
    scheduler, now, waits = Scheduler(Limits()), 0.0, []
    for _ in range(9):
        scheduler.failed("a", now)
        scheduler.ended("a")
        failed_at = now
        while not scheduler.assign(now):
            now += BACKOFF.first
            scheduler.found_waiting({"a": "t"}, now)
        waits.append(now - failed_at)
    assert waits == [min(30.0 * 2**number, 3600.0) for number in range(9)]
    scheduler.found_waiting({}, now)
    scheduler.failed("a", now)
    scheduler.ended("a")
    scheduler.found_waiting({"a": "t"}, now + BACKOFF.first)
    assert scheduler.assign(now + BACKOFF.first) == [Recover("a")]


def test_work_of_dead_processes_waits_for_room() -> None:
    """As many sessions as may run are recovered at once; one that has nothing to do leaves its room to the next."""
    scheduler = opened("a", max_sessions=2)
    scheduler.begun("a")
    scheduler.found_waiting({"x": "t", "y": "t", "z": "t"}, 1)
    assert scheduler.assign(1) == [Recover("x")]
    assert scheduler.assign(1) == []
    scheduler.turn_ended("a", 1)
    assert scheduler.assign(1) == [Recover("y")]
    scheduler.asks("x")
    scheduler.recovered("x")
    assert scheduler.assign(1) == [Begin("x")]
    scheduler.recovered("y")
    assert scheduler.assign(1) == [Recover("z")]
    scheduler.ended("z")
    assert scheduler.assign(1) == []


def test_work_of_dead_processes_of_a_tenant_with_limits() -> None:
    """Most of it waits in the store while its turns may not begin, and other tenants take turns with it."""
    scheduler = Scheduler(Limits(), tenancy=Tenancy({"a": TenantLimits(running_turns=1)}))
    found = {f"a{number}": "a" for number in range(AHEAD + 2)} | {"b": "b", "c": "c"}
    scheduler.found_waiting(found, 1)
    recovered = [each.session_id for each in scheduler.assign(1)]
    assert recovered[:4] == ["a0", "b", "c", "a1"]
    assert recovered[4:] == [f"a{number}" for number in range(2, AHEAD)]
    for each in recovered:
        scheduler.started(each, 1)
        scheduler.asks(each, found[each])
        scheduler.recovered(each)
    assert scheduler.assign(1) == [Begin("a0"), Begin("b"), Begin("c"), Recover(f"a{AHEAD}")]
    scheduler.recovered(f"a{AHEAD}")
    scheduler.turn_ended("a0", 2)
    assert scheduler.assign(2) == [Begin("a1"), Recover(f"a{AHEAD + 1}")]


def test_work_of_dead_processes_while_memory_is_short() -> None:
    """One session is recovered after each look at the store, and only while no turn runs."""
    scheduler = opened("a")
    scheduler.memory(short=True)
    scheduler.begun("a")
    scheduler.found_waiting({"x": "t", "y": "t"}, 1)
    assert scheduler.assign(1) == []
    scheduler.turn_ended("a", 1)
    assert scheduler.assign(1) == [Recover("x")]
    scheduler.recovered("x")
    assert scheduler.assign(1) == []
    scheduler.found_waiting({"x": "t", "y": "t"}, 2)
    assert scheduler.assign(2) == [Recover("y")]


def test_a_session_that_is_only_followed_here_is_recovered() -> None:
    """It has no work here, as that is of a dead process; one with a turn here is left alone."""
    scheduler = opened("a", "b")
    scheduler.begun("b")
    scheduler.found_waiting({"a": "t", "b": "t"}, 1)
    assert scheduler.assign(1) == [Recover("a")]
    assert scheduler.assign(1) == []


@pytest.mark.parametrize("idle_after", [0.0, 60.0])
def test_a_session_is_not_evicted_in_the_instant_in_which_it_is_needed(idle_after: float) -> None:
    """With no time at all to be idle in, too, its caller can send to it first."""
    scheduler = opened("a", idle_after=idle_after)
    due = scheduler.next_due(0)
    assert due == idle_after
    assert scheduler.assign(due + 0.01) == [Evict("a")]


def work_of_a_turn(sessions: int) -> tuple[int, int]:
    """Count the calls of functions, and the blocks of memory that are new, for one turn beside so many sessions."""
    scheduler = opened(*[f"s{number}" for number in range(sessions)], max_live=sessions)
    for number in range(0, sessions, 2):
        scheduler.begun(f"s{number}")
    calls = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal calls
        calls += 1

    gc.collect()
    sys.setprofile(count)
    scheduler.needed("s1", sessions)
    scheduler.assign(sessions)
    scheduler.check_turn()
    scheduler.begun("s1")
    scheduler.turn_ended("s1", sessions)
    scheduler.assign(sessions)
    sys.setprofile(None)
    return calls, len(scheduler.idle)


def test_a_turn_costs_the_same_beside_ten_thousand_sessions() -> None:
    """No change and no decision looks at more sessions than it is about."""
    few, many = work_of_a_turn(10)[0], work_of_a_turn(10_000)[0]
    assert few == many
    assert many < 100
