"""A whole load run: the users, then the checks of every session, then the result."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from warren.base.values import define
from warren.transport.http.shutdown import Shutdown
from warren.transport.load.follower import FollowerCheck
from warren.transport.load.pace import paces
from warren.transport.load.plan import LoadPlan
from warren.transport.load.recorder import Recorder
from warren.transport.load.result import Outcome, Result, result_of
from warren.transport.load.stream import StreamCheck, Violation
from warren.transport.load.target import LOST, RowCounts, Target, TargetError, tried_again
from warren.transport.load.user import User
from warren.transport.load.verify import Kept, Ledger, verify

ARRIVING_AT_ONCE: Final = 50
CHECKED_AT_ONCE: Final = 20
RECOVERIES_AT_ONCE: Final = 5
READ_LIMIT: Final = 300.0
"""Seconds for one reading of a long session: it only has to end, and the tester may be busy with others."""
SILENCE: Final = 10.0
"""Seconds without an event after which the replay of a log is complete."""


@define
class RunProgress:
    """The progress of a run, for its display.

    Attributes:
        plan: the plan.
        target: the name of the target.
        recorder: the measurements so far.
        stage: `arrival`, `load`, `recovery`, `checks` or `done`.
        sessions: number of created sessions.
        checked: number of checked sessions.
        violations: number of broken promises so far.
    """

    plan: LoadPlan
    target: str
    recorder: Recorder
    stage: str = "arrival"
    sessions: int = 0
    checked: int = 0
    violations: int = 0


async def run_load(
    plan: LoadPlan,
    target: Target,
    watch: Callable[[RunProgress], None] = lambda _: None,
    shutdown: Shutdown | None = None,
) -> Result:
    """Run a plan against a target, check every session, and return the result.

    Args:
        plan: the plan.
        target: the target.
        watch: gets the progress once, at the beginning; the object changes as the run goes on.
        shutdown: after its begin no turn begins; running turns end, and all sessions are checked.

    Raises:
        TargetError: if no session could be created at all.
    """
    shutdown = shutdown or Shutdown()
    recorder = Recorder()
    progress = RunProgress(plan, target.name, recorder)
    watch(progress)
    users = [User(target, plan, number, recorder, shutdown) for number in range(plan.sessions)]
    async with target.crowded(plan.bad_clients, recorder.counts):
        if plan.arrival != "ramp":  # in these plans the connects are a part of the load
            await _few(ARRIVING_AT_ONCE, [user.arrive for user in users])
        progress.stage = "load"
        await _load(plan, users, recorder)
    cut_short = shutdown.begun
    ledgers = [user.ledger for user in users if user.ledger is not None]
    progress.sessions = len(ledgers)
    if not ledgers:
        raise next((user.turned_away for user in users if user.turned_away is not None), TargetError(LOST, "stopped"))
    if plan.recovery and not cut_short:
        progress.stage = "recovery"
        await _few(RECOVERIES_AT_ONCE, [user.recovery_turn for user in users])
    progress.stage = "checks"
    found = await _check(target, ledgers, progress)
    progress.stage = "done"
    unchecked = [ledger.unchecked for ledger in ledgers if ledger.unchecked]
    turned_away = next((f"{user.turned_away}" for user in users if user.turned_away is not None), "")
    outcome = Outcome(len(ledgers), found, unchecked, turned_away, cut_short=cut_short)
    return result_of(plan, target.name, recorder, outcome)


async def _load(plan: LoadPlan, users: Sequence[User], recorder: Recorder) -> None:
    recorder.began = trio.current_time()
    async with trio.open_nursery() as ticking:
        ticking.start_soon(recorder.tick)
        async with trio.open_nursery() as nursery:
            for user, pace in zip(users, paces(plan, recorder.began), strict=True):
                nursery.start_soon(user.run, pace)
        ticking.cancel_scope.cancel()
    recorder.ended = trio.current_time()
    recorder.close_second()


async def _check(target: Target, ledgers: Sequence[Ledger], progress: RunProgress) -> list[Violation]:
    """Check all sessions, several at once; return the broken promises by session."""
    rows = await target.rows([ledger.session_id for ledger in ledgers]) or {}
    found: list[list[Violation]] = [[] for _ in ledgers]

    async def one(number: int) -> None:
        found[number] = await check_session(target, ledgers[number], rows, progress.recorder.counts)
        progress.checked += 1
        if truncated := sum(stream.truncated for stream in ledgers[number].streams):
            progress.recorder.counts["truncated streams"] += truncated
        progress.violations += len(found[number])

    await _few(CHECKED_AT_ONCE, [partial(one, number) for number in range(len(ledgers))])
    return [violation for each in found for violation in each]


async def check_session(
    target: Target, ledger: Ledger, rows: Mapping[str, RowCounts], counts: Counter[str]
) -> list[Violation]:
    """Read a session back from the target, and compare it with the ledger.

    A gateway hangs up if this process, which reads many sessions at once, is slow to greet, or if it is overloaded
    itself: the session is read again, and if that does not help it was not checked.
    """
    for stream in ledger.streams:
        if not ledger.cut_short:
            stream.complete()
    try:
        kept = await tried_again(partial(_kept, target, ledger, rows.get(ledger.session_id)), counts)
    except TargetError as exc:
        if exc.dropped:
            ledger.unchecked = f"{exc}"
        else:
            ledger.wrong("unreadable", f"could not be read back: {exc}")
    except trio.TooSlowError:
        ledger.wrong("unreadable", "could not be read back: it took too long")
    else:
        return verify(ledger, kept)
    return ledger.noticed


async def _kept(target: Target, ledger: Ledger, rows: RowCounts | None) -> Kept:
    log = FollowerCheck(StreamCheck(ledger.session_id))
    async with target.line(log) as line:
        ledger.replayed = log.check
        with trio.fail_after(READ_LIMIT):
            await line.follow(ledger.session_id, 0)
        await log.reach(ledger.heard.last_seq, SILENCE)
        if log.lost:
            raise TargetError(LOST, "its log was cut off")
        log.check.complete()
        with trio.fail_after(READ_LIMIT):
            history = await line.history(ledger.session_id)
            return Kept(history, await line.message_count(ledger.session_id), rows)


async def _few(at_once: int, jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs, a bounded number of them at once."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
