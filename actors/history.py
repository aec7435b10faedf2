"""The load of the last hour: a sample every ten seconds, made of the differences of the counts."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import attrs
import trio

from warren.actors.counters import COMPLETED, OF_CALLS, Histogram
from warren.actors.eventlog import utc_now
from warren.actors.metrics import LoopLag
from warren.actors.supervisor.supervisor import Supervisor
from warren.metrics import LoadSample
from warren.values import define, value

INTERVAL: Final = 10.0
"""Seconds that a sample stands for."""
KEPT: Final = 360
"""Samples that are kept: those of an hour."""


@value
class _Totals:
    """The counts at the end of a sample."""

    turns: Counter[str]
    refused: Counter[str]
    events: int
    commits: tuple[int, ...]
    lags: tuple[int, ...]
    calls: tuple[int, ...]
    first: tuple[int, ...]


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
        writes = self._supervisor.shared.storage.writes
        commits = _less(now.commits, before.commits)
        bounds = () if writes is None else writes.seconds.bounds
        lags, calls, first = (
            _less(each, earlier)
            for each, earlier in ((now.lags, before.lags), (now.calls, before.calls), (now.first, before.first))
        )
        failed = {name: count for name, count in turns.items() if name != COMPLETED}
        self.samples.append(
            LoadSample(
                at=utc_now(),
                turns=turns.total(),
                events=now.events - before.events,
                running=len(scheduler.running),
                limit=scheduler.limits.max_sessions,
                live=len(scheduler.live),
                waiting=len(scheduler.waiting),
                commit_p50_ms=_quantile(bounds, commits, 0.5),
                commit_p99_ms=_quantile(bounds, commits, 0.99),
                loop_p99_ms=_quantile(self._loop.seconds.bounds, lags, 0.99),
                model_p50_ms=_quantile(OF_CALLS, calls, 0.5),
                model_p99_ms=_quantile(OF_CALLS, calls, 0.99),
                first_piece_p50_ms=_quantile(OF_CALLS, first, 0.5),
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
            commits=() if writes is None else tuple(writes.seconds.counts),
            lags=tuple(self._loop.seconds.counts),
            calls=_summed(each.seconds for each in models),
            first=_summed(each.first_piece for each in models),
        )


def _summed(histograms: Iterable[Histogram]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each.counts for each in histograms), strict=True)))


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
