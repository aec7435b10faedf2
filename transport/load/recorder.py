"""The measurements of a run: histograms, counts, and a line of figures for every second."""

import math
from collections import Counter
from typing import Final

import attrs
import trio
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from warren.base.values import define, frozen

LARGEST: Final = 3_600_000_000
DIGITS: Final = 3
TICK: Final = 0.02
LATE: Final = 0.05
"""Seconds of lag of the tester's own loop, in one tick of a hundred, above which its figures are in doubt."""
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
CURVE: Final = (*(100 - 100 / 2 ** (half / 2) for half in range(34)), 100.0)


class Histogram:
    """A histogram of durations to three digits: it takes seconds, and returns milliseconds."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, LARGEST, DIGITS)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration in seconds; more than an hour counts as an hour."""
        self._sum += seconds
        self._counts.record_value(min(LARGEST, max(1, round(seconds * 1e6))))

    def __len__(self) -> int:
        """Return the number of durations."""
        return int(self._counts.get_total_count())

    def at(self, *percentiles: float) -> dict[float, float]:
        """Return the milliseconds of percentiles; 0 without any durations.

        Ask for all percentiles in one call: each call reads the whole histogram.
        """
        found = self._counts.get_percentile_to_value_dict(list(percentiles)) if len(self) else {}
        return {percentile: found.get(percentile, 0) / 1e3 for percentile in percentiles}

    @property
    def mean(self) -> float:
        """The mean in milliseconds; 0 without any durations."""
        return 1e3 * self._sum / len(self) if len(self) else 0.0

    def curve(self) -> list[tuple[float, float]]:
        """Return percentiles with their milliseconds, closer together towards the end."""
        return [*self.at(*CURVE).items()] if len(self) else []


@frozen
class Second:
    """One second of the run; times in milliseconds.

    Attributes:
        second: its number from the beginning.
        turns: turns that were answered.
        events: events of the clients' own turns.
        busy: second turns that were refused.
        errors: errors.
        running: turns that ran at its end.
        p50: the median latency of its turns; 0 without any.
        p99: their 99th percentile.
        lag: the longest lag of the tester's own loop.
    """

    second: int
    turns: int
    events: int
    busy: int
    errors: int
    running: int
    p50: float
    p99: float
    lag: float


@define
class Recorder:
    """Records the measurements of a run.

    Attributes:
        began: the time at which the load began, by trio's clock; sessions that are created before it are not in the
            rates.
        setup: time from the connect of a client to its session.
        latency: time from the planned start of a turn to its answer.
        service: time from the actual start of a turn to its answer.
        first: time from the actual start of a turn to its first event.
        refusal: time from the actual start of a turn to its refusal.
        lag: lag of the tester's own loop.
        counts: other counts by name.
        errors: errors by code, without expected refusals and interrupts.
        events: events of the clients' own turns.
        running: turns that run.
        series: the seconds of the run.
    """

    began: float = attrs.field(factory=trio.current_time)
    setup: Histogram = attrs.field(factory=Histogram)
    latency: Histogram = attrs.field(factory=Histogram)
    service: Histogram = attrs.field(factory=Histogram)
    first: Histogram = attrs.field(factory=Histogram)
    refusal: Histogram = attrs.field(factory=Histogram)
    lag: Histogram = attrs.field(factory=Histogram)
    counts: Counter[str] = attrs.field(factory=Counter)
    errors: Counter[str] = attrs.field(factory=Counter)
    events: int = 0
    running: int = 0
    series: list[Second] = attrs.field(factory=list)
    ended: float | None = None
    _before: tuple[int, ...] = (0, 0, 0, 0)
    _recent: list[float] = attrs.field(factory=list)
    _longest: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning, up to the end if the run has ended."""
        return (trio.current_time() if self.ended is None else self.ended) - self.began

    @property
    def late(self) -> bool:
        """Whether the lag of the tester's own loop puts the figures in doubt."""
        return self.lag.at(99.0)[99.0] > LATE * 1e3

    def answered(self, meant: float, began: float) -> None:
        """Record a turn that was answered now."""
        now = trio.current_time()
        self.counts["turns"] += 1
        self.latency.add(now - meant)
        self._recent.append(1e3 * (now - meant))
        self.service.add(now - began)

    def refused(self, code: str, began: float) -> None:
        """Record an error that came now."""
        self.errors[code] += 1
        self.refusal.add(trio.current_time() - began)

    async def tick(self) -> None:
        """Measure the lag and append to the series, until cancelled."""
        due = self.began + 1
        while True:
            meant = trio.current_time() + TICK
            await trio.sleep_until(meant)
            late = trio.current_time() - meant
            self.lag.add(late)
            self._longest = max(self._longest, late)
            if trio.current_time() >= due:
                self.close_second()
                due += 1

    def close_second(self) -> None:
        """Append the second since the last one to the series."""
        now = (self.counts["turns"], self.events, self.counts["busy"], self.errors.total())
        turns, events, busy, errors = (new - old for new, old in zip(now, self._before, strict=True))
        lag, self._before, self._longest = self._longest * 1e3, now, 0.0
        p50, p99 = (_within(share, self._recent) for share in (0.5, 0.99))
        self.series.append(Second(len(self.series), turns, events, busy, errors, self.running, p50, p99, lag))
        self._recent.clear()


def _within(share: float, values: list[float]) -> float:
    """Return the quantile of some values; 0 without any."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else 0.0
