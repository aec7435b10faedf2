"""What a run is measured by: histograms, counts, and a line of figures for every second."""

import math
from collections import Counter
from typing import Final

import attrs
import trio
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

LARGEST: Final = 3_600_000_000
DIGITS: Final = 3
TICK: Final = 0.02
LATE: Final = 0.05
"""Seconds: a tester whose own loop is later than this, for one tick in a hundred, is part of what it measures."""
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
CURVE: Final = (*(100 - 100 / 2 ** (half / 2) for half in range(34)), 100.0)


class Histogram:
    """Durations to three digits, in microseconds inside, in milliseconds outside; seconds go in."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, LARGEST, DIGITS)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Take a duration; what is above an hour counts as an hour."""
        self._sum += seconds
        self._counts.record_value(min(LARGEST, max(1, round(seconds * 1e6))))

    def __len__(self) -> int:
        """Return how many there are."""
        return int(self._counts.get_total_count())

    def at(self, *percentiles: float) -> dict[float, float]:
        """Return the milliseconds within which so many of a hundred lie; 0 without any durations.

        All that is wanted should be asked for at once: each call looks through the whole histogram.
        """
        found = self._counts.get_percentile_to_value_dict(list(percentiles)) if len(self) else {}
        return {percentile: found.get(percentile, 0) / 1e3 for percentile in percentiles}

    @property
    def mean(self) -> float:
        """The mean in milliseconds; 0 without any."""
        return 1e3 * self._sum / len(self) if len(self) else 0.0

    def curve(self) -> list[tuple[float, float]]:
        """Return percentiles and their milliseconds, closer together towards the end."""
        return [*self.at(*CURVE).items()] if len(self) else []


@attrs.frozen
class Second:
    """What happened in one second of the run; times in milliseconds.

    Attributes:
        second: which one.
        turns: turns that were answered.
        events: events of the clients' own turns.
        busy: second turns that were refused.
        errors: errors.
        running: turns that ran at its end.
        p50: the median of the latencies of its turns; 0 without any.
        p99: within which 99 of a hundred of them lie.
        lag: by how much the tester's own loop was late at most.
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


@attrs.define
class Recorder:
    """Takes what happens.

    Attributes:
        began: when the load began, in trio's time; sessions that are created before that are not in the rates.
        setup: from a client's wish for a session to the session, connection included.
        latency: from the moment a turn was meant to start to its answer.
        service: from the moment it did start.
        first: from there to its first event.
        refusal: from there to a refusal.
        lag: how late the tester's own loop is.
        counts: what else there is to count, by name.
        errors: errors by code; refusals that were asked for, and interrupts, are none.
        events: events of the clients' own turns.
        running: turns that run.
        series: second by second.
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
        """Seconds since the beginning, up to the end where there was one."""
        return (trio.current_time() if self.ended is None else self.ended) - self.began

    @property
    def late(self) -> bool:
        """Whether the tester's own loop was late so often that the figures are in doubt."""
        return self.lag.at(99.0)[99.0] > LATE * 1e3

    def answered(self, meant: float, began: float) -> None:
        """Take a turn that was answered just now."""
        now = trio.current_time()
        self.counts["turns"] += 1
        self.latency.add(now - meant)
        self._recent.append(1e3 * (now - meant))
        self.service.add(now - began)

    def refused(self, code: str, began: float) -> None:
        """Take an error that came just now."""
        self.errors[code] += 1
        self.refusal.add(trio.current_time() - began)

    async def tick(self) -> None:
        """Measure the loop and write the series, until cancelled."""
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
        """Write down what has happened since the last time."""
        now = (self.counts["turns"], self.events, self.counts["busy"], self.errors.total())
        turns, events, busy, errors = (new - old for new, old in zip(now, self._before, strict=True))
        lag, self._before, self._longest = self._longest * 1e3, now, 0.0
        p50, p99 = (_within(share, self._recent) for share in (0.5, 0.99))
        self.series.append(Second(len(self.series), turns, events, busy, errors, self.running, p50, p99, lag))
        self._recent.clear()


def _within(share: float, values: list[float]) -> float:
    """Return the smallest of some values that this share of them does not exceed; 0 without any."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else 0.0
