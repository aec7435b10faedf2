"""The checker: a target that keeps its promises passes, and each broken promise is found, by its rule."""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.transport.load.fake import FakeTarget, Faults
from warren.transport.http.shutdown import Shutdown
from warren.transport.load.plan import LoadPlan, Mix
from warren.transport.load.result import CUT_SHORT, Result
from warren.transport.load.run import run_load
from warren.transport.load.target import LOST, OnSeen, RowCounts, Said, Seen, TargetError

pytestmark = pytest.mark.virtual_time
FOLLOWED = Mix(subscribers=1)
PLAN = LoadPlan(sessions=3, turns=3, turn_limit=30, prompt_min=30, prompt_max=60)
EVERYTHING = Mix(interrupts=0.3, busy=0.5, disconnects=0.3, compactions=0.2, subscribers=0.5)


async def run(plan: LoadPlan, faults: Faults | None = None, **settings: Any) -> Result:
    """Run a plan against a fake with faults."""
    async with trio.open_nursery() as tasks:
        result = await run_load(plan, FakeTarget(tasks, faults or Faults(), **settings))
        tasks.cancel_scope.cancel()
    return result


def each(change: Callable[[Seen], Seen]) -> Callable[[list[Seen]], list[Seen]]:
    """Change every event."""
    return lambda events: [change(seen) for seen in events]


def without(kind: str) -> Callable[[list[Seen]], list[Seen]]:
    """Leave out a kind of events."""
    return lambda events: [seen for seen in events if seen.kind != kind]


def twice(kind: str) -> Callable[[list[Seen]], list[Seen]]:
    """Tell a kind of events twice."""
    return lambda events: [again for seen in events for again in [seen] * (2 if seen.kind == kind else 1)]


def shouted(seen: Seen) -> Seen:
    """An event whose delta is another one."""
    return seen._replace(text=seen.text.upper()) if seen.kind == "text_delta" else seen


def backwards(seen: Seen) -> Seen:
    """An event with a number that was there before."""
    return seen._replace(seq=1, first_seq=1) if seen.kind == "text_complete" else seen


def earlier_step(seen: Seen) -> Seen:
    """An event whose step was there before."""
    return seen._replace(ref=0) if seen.kind == "turn_started" else seen


def other_result(seen: Seen) -> Seen:
    """A last event with another answer."""
    return seen._replace(text="42") if seen.kind == "run_completed" else seen


def all_shouted(seen: Seen) -> Seen:
    """An event of a turn that says something else than was said, and agrees with itself."""
    said = seen.kind in ("text_delta", "text_complete", "run_completed")
    return seen._replace(text=seen.text.upper()) if said else seen


def of_another_session(seen: Seen) -> Seen:
    """An event that belongs to somebody else."""
    return seen._replace(session_id="session-99")


def turns_of(events: list[Seen]) -> list[list[Seen]]:
    """Cut a log into its turns."""
    begun = [number for number, seen in enumerate(events) if seen.kind == "run_started"]
    return [events[start:end] for start, end in pairwise([*begun, len(events)])]


def renumbered(turns: Iterable[list[Seen]]) -> list[Seen]:
    """Join turns to a log whose numbers and steps rise."""
    joined = [seen for turn in turns for seen in turn]
    numbered = [seen._replace(seq=number, first_seq=number) for number, seen in enumerate(joined, 1)]
    return [seen._replace(ref=seen.seq) if seen.kind == "turn_started" else seen for seen in numbered]


def with_refused(events: list[Seen]) -> list[Seen]:
    """A log in which what was refused has run as well."""
    turns = turns_of(events)
    tag = turns[-1][0].text.partition(" ")[0]
    again = [
        seen._replace(text=f"{tag} and another thing") if seen.kind == "run_started" else seen for seen in turns[-1]
    ]
    return renumbered([*turns, again])


def refuse(_: Any) -> Any:
    """Give no answer but an error."""
    raise TargetError("SESSION_STORE_ERROR", "the disk is gone")


def dropped(_: Any) -> Any:
    """Hang up."""
    raise TargetError(LOST, "the gateway hung up")


def calls_twice(history: list[Said]) -> list[Said]:
    """A transcript in which two calls have one id."""
    call = [Said("assistant", calls=("c1",)), Said("tool_results", results=("c1",))]
    return [history[0], *call, *call, *history[1:]]


def call_without_result(history: list[Said]) -> list[Said]:
    """A transcript whose last answer calls a tool."""
    return [*history[:-1], attrs.evolve(history[-1], calls=("call-1",))]


def one_less(rows: RowCounts) -> RowCounts:
    """A file that lacks a message."""
    return attrs.evolve(rows, messages=rows.messages - 1)


async def test_a_target_that_keeps_its_promises_passes() -> None:
    """With everything mixed in nothing is found, and all of it has happened."""
    result = await run(attrs.evolve(PLAN, sessions=20, turns=5, mix=EVERYTHING))
    assert result.violations == ()
    happened = {name: result.figures[name] for name in ("busy", "interrupted", "disconnects", "followed")}
    assert min(happened.values()) > 0, happened
    assert result.errors == {}


CASES = [
    pytest.param(Faults(live=without("run_completed")), "reply", id="no end"),
    pytest.param(Faults(live=without("run_started")), "order", id="no beginning"),
    pytest.param(Faults(live=without("turn_started")), "order", id="no step"),
    pytest.param(Faults(live=without("turn_completed")), "order", id="step without end"),
    pytest.param(Faults(live=without("text_delta")), "text", id="deltas missing"),
    pytest.param(Faults(live=each(shouted)), "text", id="other deltas"),
    pytest.param(Faults(live=each(backwards)), "seq", id="number twice"),
    pytest.param(Faults(live=each(earlier_step)), "step", id="step twice"),
    pytest.param(Faults(live=each(other_result)), "text", id="other result"),
    pytest.param(Faults(live=twice("run_completed")), "terminal", id="two ends"),
    pytest.param(Faults(live=each(of_another_session)), "session", id="events of another session"),
    pytest.param(Faults(live=each(all_shouted)), "live", id="live unlike the log"),
    pytest.param(Faults(watch=lambda _: lambda _: None), "watcher", id="follower hears nothing"),
    pytest.param(Faults(watch=lambda hear: lambda seen: hear(all_shouted(seen))), "watcher", id="other words"),
    pytest.param(Faults(watch=lambda hear: lambda seen: hear(of_another_session(seen))), "session", id="mixed up"),
    pytest.param(Faults(live=twice("text_delta")), "text", id="doubled deltas"),
    pytest.param(Faults(log=lambda events: events[:-1]), "terminal", id="end not in the log"),
    pytest.param(Faults(log=lambda events: events[:5]), "lost", id="turns not in the log"),
    pytest.param(Faults(log=lambda events: [*events, *_again(events)]), "twice", id="turns twice in the log"),
    pytest.param(Faults(log=lambda events: renumbered(turns_of(events)[::-1])), "order", id="log in another order"),
    pytest.param(Faults(log=lambda events: renumbered(turns_of(events)[1:])), "lost", id="first turn not in the log"),
    pytest.param(Faults(reply=lambda _: "s9-t9 else"), "answer", id="answer of another session"),
    pytest.param(Faults(reply=lambda text: f"{text}!"), "reply", id="answer unlike its events"),
    pytest.param(Faults(early=True), "reply", id="answer before its events"),
    pytest.param(Faults(history=lambda history: history[:-1]), "history", id="answer not kept"),
    pytest.param(Faults(history=lambda history: history[2:]), "history", id="turn not kept"),
    pytest.param(Faults(history=lambda history: [history[0], *history]), "history", id="prompt kept twice"),
    pytest.param(Faults(history=lambda history: history[1:]), "transcript", id="answer to nothing"),
    pytest.param(Faults(history=call_without_result), "transcript", id="call without result"),
    pytest.param(Faults(history=lambda h: [*h, Said("tool_results", results=("x",))]), "transcript", id="result"),
    pytest.param(Faults(history=lambda h: [*h, Said("system", "be")]), "transcript", id="system message amid"),
    pytest.param(Faults(history=calls_twice), "transcript", id="call id twice"),
    pytest.param(Faults(history=lambda h: [*call_without_result(h), h[0]]), "transcript", id="result too late"),
    pytest.param(Faults(history=refuse), "unreadable", id="history cannot be read"),
    pytest.param(Faults(log=refuse), "unreadable", id="log cannot be read"),
    pytest.param(Faults(count=lambda count: count + 1), "count", id="miscounted"),
    pytest.param(Faults(rows=one_less), "rows", id="message not stored"),
    pytest.param(Faults(rows=lambda rows: attrs.evolve(rows, positions=99)), "rows", id="a hole in the file"),
    pytest.param(Faults(rows=lambda rows: attrs.evolve(rows, claimed=1)), "rows", id="row of the session is wrong"),
    pytest.param(Faults(rows=lambda rows: attrs.evolve(rows, last_seq=1)), "rows", id="events not stored"),
    pytest.param(Faults(rows=lambda rows: attrs.evolve(rows, turns=0)), "rows", id="end not stored"),
]


@pytest.mark.parametrize(("faults", "rule"), CASES)
async def test_a_broken_promise_is_found(faults: Faults, rule: str) -> None:
    """By the rule that it breaks, in a session that is named."""
    result = await run(attrs.evolve(PLAN, mix=FOLLOWED), faults)
    assert rule in {violation.rule for violation in result.violations}, result.violations
    assert {violation.session_id for violation in result.violations} <= {f"session-{n}" for n in range(3)}
    assert not result.passed


def _again(events: list[Seen]) -> list[Seen]:
    last = events[-1].seq if events else 0
    copies = [seen._replace(seq=seen.seq + last, first_seq=seen.seq + last) for seen in events]
    return [seen._replace(ref=seen.seq) if seen.kind == "turn_started" else seen for seen in copies]


async def test_a_refused_turn_that_runs_is_found() -> None:
    """A refused prompt must not be in the log."""
    result = await run(attrs.evolve(PLAN, mix=Mix(busy=1)), Faults(log=with_refused))
    assert "refused" in {violation.rule for violation in result.violations}, result.violations


def test_every_rule_is_shown_to_fail() -> None:
    """The rules of the documentation are those that this file breaks."""
    page = (Path(__file__).parents[3] / "docs/load.md").read_text(encoding="utf-8")
    table = page.partition("## Checks")[2].partition("\n## ")[0]
    documented = {
        word
        for row in re.findall(r"^\| `.*", table, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", row.partition(" | ")[0])
    }
    assert documented == {case.values[1] for case in CASES} | {"refused", "limit", "recovery", "resume"}


async def test_a_second_turn_that_is_let_in_is_found() -> None:
    """Its beginning is within another turn."""
    result = await run(attrs.evolve(PLAN, mix=Mix(busy=1)), Faults(busy=True))
    assert any("within the turn" in violation.detail for violation in result.violations)


@pytest.mark.parametrize(
    ("faults", "rule"),
    [
        pytest.param(Faults(cursor=lambda seq: seq - 1), "seq", id="an event twice"),
        pytest.param(Faults(resume=lambda hear: lambda seen: _unless("text_delta", seen, hear)), "text", id="a gap"),
        pytest.param(Faults(resume=lambda _: lambda _: None), "limit", id="nothing more"),
        pytest.param(Faults(resume=refuse), "resume", id="no way back"),
    ],
)
async def test_what_goes_wrong_with_a_disconnect_is_found(faults: Faults, rule: str) -> None:
    """A client that comes back has to get the rest, all of it, and nothing twice."""
    result = await run(attrs.evolve(PLAN, mix=Mix(disconnects=1)), faults)
    assert rule in {violation.rule for violation in result.violations}, result.violations


def _unless(kind: str, seen: Seen, hear: OnSeen) -> None:
    if seen.kind != kind:
        hear(seen)


async def test_a_turn_that_never_ends_is_found() -> None:
    """After the limit the session is given up, and named."""
    plan = attrs.evolve(PLAN, turn_limit=0.25)
    result = await run(plan)
    assert {violation.rule for violation in result.violations} >= {"limit"}
    assert result.errors == {"TURN_LIMIT": 3}


async def test_refused_turns_leave_no_trace() -> None:
    """Past capacity turns are refused at once and counted; recovery turns afterwards are answered."""
    plan = attrs.evolve(PLAN, sessions=10, recovery=True, mix=FOLLOWED)
    result = await run(plan, capacity=5)
    assert result.passed
    assert result.errors["CAPACITY_EXCEEDED"] > 0
    assert result.figures["refusal p99"] < 1


async def test_a_target_that_does_not_recover_is_found() -> None:
    """A recovery turn after the load that is refused breaks a promise."""
    result = await run(attrs.evolve(PLAN, recovery=True, mix=FOLLOWED), capacity=0)
    assert {violation.rule for violation in result.violations} == {"recovery"}
    assert result.violation_count == 3


async def test_a_lost_connection_is_no_broken_promise() -> None:
    """It is an error; what the client could no longer hear is not held against the target."""
    result = await run(attrs.evolve(PLAN, mix=FOLLOWED), Faults(lose=2))
    assert result.violations == ()
    assert result.errors == {LOST: 3}


async def test_a_session_whose_reading_breaks_off_is_read_again() -> None:
    """A gateway may hang up on a tester that is slow to greet it; a session that cannot be read was not checked."""
    breaks = 2

    def pulled(history: list[Said]) -> list[Said]:
        nonlocal breaks
        breaks -= 1
        if breaks >= 0:
            raise TargetError(LOST, "the cable was pulled")
        return history

    assert (await run(PLAN, Faults(history=pulled))).violations == ()
    breaks = 1_000
    found = await run(PLAN, Faults(history=pulled))
    assert found.violations == ()
    assert found.untried == ("3 of 3 sessions were not checked: CONNECTION_LOST: the cable was pulled",)
    assert not found.passed


async def test_a_client_without_a_connection_tries_again() -> None:
    """A gateway without room drops connections for a moment: sessions are created, and recovery turns answered."""
    plan = attrs.evolve(PLAN, sessions=10, recovery=True, mix=FOLLOWED)
    result = await run(plan, Faults(drop=4))
    assert result.passed
    assert result.figures["tried again"] == 4


async def test_sessions_that_could_not_be_created_fail_the_run() -> None:
    """A run with half of its sessions has not tested what it was to test; the reason is told."""
    result = await run(attrs.evolve(PLAN, sessions=4), Faults(full=2))
    assert (result.kept, result.passed) == (True, False)
    assert result.untried == ("2 of 4 sessions could not be created: CAPACITY_EXCEEDED: too many sessions",)


async def test_a_way_back_that_is_dropped_is_no_violation() -> None:
    """A client that disconnects, and whose further connections an overloaded gateway drops, was not checked."""
    result = await run(attrs.evolve(PLAN, mix=Mix(disconnects=1)), Faults(resume=dropped))
    assert result.violations == ()
    assert not result.passed
    assert "were not checked: " in result.untried[0]


async def test_a_mix_that_never_happens_fails_the_run() -> None:
    """A run whose target does none of it has not tested it, though it broke no promise."""
    result = await run(attrs.evolve(PLAN, sessions=10, mix=Mix(tools=0.5, busy=0.5)))
    assert (result.kept, result.passed) == (True, False)
    assert [part.split(":")[0] for part in result.untried] == ["tools=0.5"]


async def test_a_stream_that_lacks_events_is_told_of() -> None:
    """It is allowed, and means that less was checked."""
    gap = Seen(0, 0, "stream_truncated", session_id="session-0")
    result = await run(PLAN, Faults(live=lambda events: [gap._replace(session_id=events[0].session_id), *events]))
    assert result.passed
    assert "3 streams lack events" in result.warnings[0]


@pytest.mark.parametrize(
    ("arrival", "moments"), [({"arrival": "ramp", "duration": 10}, [0, 2, 4, 6, 8]), ({}, [0, 0, 0, 0, 0])]
)
async def test_a_ramp_connects_as_it_goes(arrival: dict[str, Any], moments: list[float]) -> None:
    """Its sessions are created when they join; those of other runs before the load, whose clock begins after that."""
    began = trio.current_time()
    async with trio.open_nursery() as tasks:
        target = FakeTarget(tasks)
        result = await run_load(LoadPlan(sessions=5, turns=1, **arrival), target)
    assert result.passed
    assert [moment - began for moment in target.created] == pytest.approx(moments)


@pytest.mark.parametrize(
    "plan",
    [
        LoadPlan(sessions=3, turns=1_000, think=1.0),
        LoadPlan(sessions=3, turns=1_000, rate=1.0, arrival="open"),
        LoadPlan(sessions=3, arrival="soak", duration=1e6, think=5.0),
        LoadPlan(sessions=40, turns=1_000, arrival="ramp", duration=100),
    ],
)
async def test_a_run_can_be_stopped(plan: LoadPlan) -> None:
    """No turn begins any more, whatever it waited for; what there was is checked, and the result says so."""
    shutdown = Shutdown()
    async with trio.open_nursery() as tasks:
        target = FakeTarget(tasks)

        async def stop() -> None:
            await trio.sleep(20)
            shutdown.begin()

        tasks.start_soon(stop)
        began = trio.current_time()
        result = await run_load(plan, target, shutdown=shutdown)
        assert trio.current_time() - began < 25
        tasks.cancel_scope.cancel()
    assert result.passed
    assert result.warnings == (CUT_SHORT,)
    assert 0 < result.figures["turns"] < 1_000
    assert 0 < result.figures["sessions"] <= plan.sessions


async def test_a_stopped_run_finds_what_was_wrong() -> None:
    """The sessions that there are are checked as ever."""
    shutdown = Shutdown()
    async with trio.open_nursery() as tasks:
        target = FakeTarget(tasks, Faults(live=without("text_complete")))
        result = await run_load(PLAN, target, lambda _: tasks.start_soon(_after, 1.0, shutdown), shutdown)
        tasks.cancel_scope.cancel()
    assert not result.passed


async def test_a_run_that_is_stopped_at_once() -> None:
    """Has nothing to tell."""
    shutdown = Shutdown()
    shutdown.begin()
    async with trio.open_nursery() as tasks:
        with pytest.raises(TargetError, match="stopped"):
            await run_load(PLAN, FakeTarget(tasks), shutdown=shutdown)


async def _after(seconds: float, shutdown: Shutdown) -> None:
    await trio.sleep(seconds)
    shutdown.begin()
