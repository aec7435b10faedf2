"""The load of the last hour: a sample every ten seconds, made of the differences of the counts."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.observe.counters import COMPLETED, OF_CALLS, OF_COMMITS, OF_LAGS
from warren.actors.observe.metrics import LoopLag
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.values import define, value
from warren.reports.metrics import History, LoadSample

INTERVAL: Final = 10.0
"""Seconds that a sample stands for."""
KEPT: Final = 360
"""Samples that are kept: those of an hour."""
TOLERANCE: Final = 1.0
"""Seconds by which a process may be late with its newest sample, beyond the time of one."""
BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    "commit": OF_COMMITS,
    "loop": OF_LAGS,
    "model": OF_CALLS,
    "first_piece": OF_CALLS,
}
"""The histograms that durations are read off, by the names of `LoadSample.buckets`."""
_ADDED: Final = ("turns", "events", "running", "limit", "live", "waiting")


@value
class _Totals:
    """The counts at the end of a sample."""

    turns: Counter[str]
    refused: Counter[str]
    events: int
    buckets: Mapping[str, tuple[int, ...]]


@define(eq=False)
class LoadHistory:
    """The samples of one runtime, the oldest first."""

    _supervisor: Supervisor
    _loop: LoopLag
    samples: deque[LoadSample] = attrs.field(factory=lambda: deque(maxlen=KEPT))

    async def keep(self) -> None:
        """Take a sample again and again, for ever."""
        before, due = self._totals(), trio.current_time()
        while True:
            due += INTERVAL
            await trio.sleep_until(due)
            before = self._sample(before)

    def _sample(self, before: _Totals) -> _Totals:
        now, scheduler = self._totals(), self._supervisor.scheduler
        turns = now.turns - before.turns
        failed = {name: count for name, count in turns.items() if name != COMPLETED}
        self.samples.append(
            _sample_of(
                {name: _less(counts, before.buckets[name]) for name, counts in now.buckets.items()},
                at=utc_now(),
                turns=turns.total(),
                events=now.events - before.events,
                running=len(scheduler.running),
                limit=scheduler.limits.max_sessions,
                live=len(scheduler.live),
                waiting=len(scheduler.waiting),
                errors={**failed, **(now.refused - before.refused)},
            )
        )
        return now

    def _totals(self) -> _Totals:
        shared = self._supervisor.shared
        models = list(shared.counters.models.values())
        turns = Counter[str]()
        for each in models:
            turns.update(each.turns)
        writes = shared.storage.writes
        return _Totals(
            turns=turns,
            refused=self._supervisor.scheduler.refused.copy(),
            events=shared.counters.events,
            buckets={
                "commit": () if writes is None else tuple(writes.seconds.counts),
                "loop": tuple(self._loop.seconds.counts),
                "model": _summed(each.seconds.counts for each in models),
                "first_piece": _summed(each.first_piece.counts for each in models),
            },
        )


def shown(history: History) -> History:
    """Return the load for all but other nodes: without the buckets."""
    return attrs.evolve(history, samples=tuple(attrs.evolve(each, buckets={}) for each in history.samples))


def added(histories: Sequence[History]) -> History:
    """Return the load of several processes as one, for clients.

    Counts and gauges are added up, and durations are read off the buckets of all. Each process takes its samples at
    moments of its own: a sample belongs to the first one of the process with the newest that does not end before it.
    """
    slots: dict[int, list[LoadSample]] = {}
    newest = max((each.samples[-1].at for each in histories if each.samples), default=utc_now())
    for samples in (each.samples for each in histories if each.samples):
        last = samples[-1].at
        behind = int(max(0.0, (newest - last).total_seconds() - TOLERANCE) // INTERVAL)
        for sample in samples:
            slots.setdefault(behind + round((last - sample.at).total_seconds() / INTERVAL), []).append(sample)
    kept = [_sum(slots[slot], newest - timedelta(seconds=slot * INTERVAL)) for slot in sorted(slots)[:KEPT]]
    return History(INTERVAL, tuple(reversed(kept)), sum(each.processes for each in histories))


def _sum(found: Sequence[LoadSample], at: datetime) -> LoadSample:
    buckets = {name: _summed(each.buckets.get(name, ()) for each in found) for name in BOUNDS}
    errors = Counter[str]()
    for each in found:
        errors.update(each.errors)
    sums = {name: sum(getattr(each, name) for each in found) for name in _ADDED}
    return attrs.evolve(_sample_of(buckets, at=at, errors=dict(errors), **sums), buckets={})


def _sample_of(buckets: Mapping[str, tuple[int, ...]], **counts: Any) -> LoadSample:
    def ms(name: str, share: float) -> float | None:
        return _quantile(BOUNDS[name], buckets[name], share)

    return LoadSample(
        commit_p50_ms=ms("commit", 0.5),
        commit_p99_ms=ms("commit", 0.99),
        loop_p99_ms=ms("loop", 0.99),
        model_p50_ms=ms("model", 0.5),
        model_p99_ms=ms("model", 0.99),
        first_piece_p50_ms=ms("first_piece", 0.5),
        buckets=buckets,
        **counts,
    )


def _summed(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each for each in rows if each), strict=True)))


def _less(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each - earlier for each, earlier in zip(now, before, strict=True)) if before else now


def _quantile(bounds: tuple[float, ...], counts: tuple[int, ...], share: float) -> float | None:
    """Return the milliseconds below which a share of values is, as straight lines within their buckets have it.

    None if there are no values. A value above the last bound counts as that bound.
    """
    wanted, seen, lower = share * sum(counts), 0, 0.0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return round(1000 * (lower + (bound - lower) * (wanted - seen) / count), 3)
        seen, lower = seen + count, bound
    return round(1000 * lower, 3)
