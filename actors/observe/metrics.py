"""Measurements of a running runtime: the store's writes, and the lag of the event loop."""

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from warren.actors.observe.counters import OF_COMMITS, OF_GROUPS, OF_LAGS, Histogram
from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.reports.health import (
    FAILED_AFTER,
    LATE_LOOP_MS,
    SLOW_COMMIT_MS,
    LoopHealth,
    Status,
    StoreHealth,
    clock_fault,
    worst,
)

ABOUT_ONE: Final = frozenset({"leased", "lease_lost", "conflict", "key_used", "unstorable", "too_big"})
"""Causes of errors that concern one session: the store itself is fine."""
RECENT: Final = 256
"""Durations that are kept."""
ENOUGH: Final = 100
"""Durations without which nothing is said of one in a hundred."""
REMEMBERED: Final = 60.0
"""Seconds for which an error is reported after writes succeed: a small write may succeed when a turn's does not."""
PATIENCE: Final = 3.0
"""Seconds for which the store may fail or hang before the process says that it is not ready."""
INTERVAL: Final = 0.5
"""Seconds between two measurements of the event loop."""


@define(eq=False)
class Samples:
    """The newest durations of one kind, in seconds."""

    _durations: deque[float] = attrs.field(factory=lambda: deque(maxlen=RECENT))
    _sorted: list[float] | None = attrs.field(default=None, init=False)
    """The durations in order, since the first question after the last `add`: each `health` asks several times."""

    def add(self, seconds: float) -> None:
        """Add a duration; the oldest one gives way."""
        self._durations.append(seconds)
        self._sorted = None

    @property
    def last_ms(self) -> float | None:
        """The newest duration in milliseconds; None if there is none."""
        return round(self._durations[-1] * 1000, 3) if self._durations else None

    def exceed(self, milliseconds: float) -> bool:
        """Return whether more than one duration in a hundred is longer; False if there are too few to tell."""
        return len(self._durations) >= ENOUGH and (self.percentile(0.99) or 0.0) > milliseconds

    def percentile(self, share: float) -> float | None:
        """Return the milliseconds that this share of the durations does not exceed; None if there is none."""
        if not self._durations:
            return None
        if self._sorted is None:
            self._sorted = sorted(self._durations)
        rank = max(1, math.ceil(share * len(self._sorted)))
        return round(self._sorted[rank - 1] * 1000, 3)


@define(eq=False)
class Writes:
    """The durations and the errors of the store's writes.

    Attributes:
        seconds: the durations of the groups that were written.
        groups: their operations.
        errors: the errors of operations, and of renewals of the leases, by cause.
    """

    seconds: Histogram = attrs.field(factory=lambda: Histogram(OF_COMMITS))
    groups: Histogram = attrs.field(factory=lambda: Histogram(OF_GROUPS))
    errors: Counter[str] = attrs.field(factory=Counter)
    _durations: Samples = attrs.field(factory=Samples)
    _began: float | None = None
    _error: StoreError | None = None
    _failing_since: float = 0.0
    _last_error: StoreError | None = None
    _last_failed: float = 0.0
    _answered: float = attrs.field(factory=trio.current_time)

    @property
    def last_ms(self) -> float | None:
        """Milliseconds of the newest write that succeeded; None before the first."""
        return self._durations.last_ms

    @property
    def fault(self) -> StoreError | None:
        """The error of the newest write or probe of the store as a whole; None if it succeeded."""
        return self._error

    def began(self) -> None:
        """Note that a group of operations is handed to the store."""
        self._began = trio.current_time()

    def ended(self, outcomes: Sequence[Any]) -> None:
        """Note the outcomes of the group; there are none if the actor crashed over them."""
        seconds = 0.0 if self._began is None else trio.current_time() - self._began
        self._began = None
        errors = [each for each in outcomes if isinstance(each, StoreError)]
        faults = [each for each in errors if each.cause not in ABOUT_ONE]
        for each in errors:
            self._count(each)
        if faults:
            self._note(faults[-1])
        elif outcomes:
            self._error = None
            self._answered = trio.current_time()
            self._durations.add(seconds)
            self.seconds.add(seconds)
            self.groups.add(len(outcomes))

    def failed(self, error: StoreError) -> None:
        """Note a write that failed."""
        self._count(error)
        self._note(error)

    def _count(self, error: StoreError) -> None:
        self.errors[error.cause or "unknown"] += 1

    def _note(self, error: StoreError) -> None:
        if self._error is None:
            self._failing_since = trio.current_time()
        self._error = self._last_error = error
        self._last_failed = trio.current_time()

    def probed(self) -> None:
        """Note that a probe succeeded: a fault that passes by itself has passed."""
        self._answered = trio.current_time()
        if self._error is not None and self._error.retryable:
            self._error = None

    def answered_within(self, probes: float) -> bool:
        """Return whether no write has failed or hung for `PATIENCE`, given the seconds between two probes."""
        now = trio.current_time()
        # A fault that a probe has come after is of one kind of writes, such as those of a damaged session.
        since = self._began if self._answered > self._last_failed else self._unanswered_since()
        return (since is None or now - since < PATIENCE) and now - self._answered < probes + PATIENCE

    def _unanswered_since(self) -> float | None:
        return self._began if self._error is None else self._failing_since

    def health(self, read_fault: WarrenError | None = None, clock_ahead: float | None = None) -> StoreHealth:
        """Return the health of the store.

        Args:
            read_fault: the error of the newest read, if it failed.
            clock_ahead: see StoreHealth.
        """
        if trio.current_time() - self._last_failed >= REMEMBERED:
            self._last_error = None
        error = self._error or read_fault or self._last_error
        fault = clock_fault(clock_ahead or 0.0)
        status = worst(self._status(), "ok" if read_fault is None and fault is None else "degraded")
        p50, p99 = self._durations.percentile(0.5), self._durations.percentile(0.99)
        return StoreHealth(status, fault if error is None else error.message, p50, p99, clock_ahead=clock_ahead)

    def _status(self) -> Status:
        since = self._unanswered_since()
        waited = 0.0 if since is None else trio.current_time() - since
        if waited >= FAILED_AFTER:
            return "failed"
        slow = waited * 1000 > SLOW_COMMIT_MS or self._durations.exceed(SLOW_COMMIT_MS)
        return "degraded" if slow or self._error is not None else "ok"


@define(eq=False)
class LoopLag:
    """The lag of the event loop: the time by which timers are late.

    Attributes:
        seconds: all lags since the start.
    """

    seconds: Histogram = attrs.field(factory=lambda: Histogram(OF_LAGS))
    _lags: Samples = attrs.field(factory=Samples)

    async def watch(self) -> None:
        """Measure the lag again and again, for ever."""
        while True:
            due = trio.current_time() + INTERVAL
            await trio.sleep_until(due)
            late = trio.current_time() - due
            self._lags.add(late)
            self.seconds.add(late)

    def health(self) -> LoopHealth:
        """Return the health of the loop."""
        late = self._lags.exceed(LATE_LOOP_MS)
        return LoopHealth("degraded" if late else "ok", self._lags.percentile(0.99) or 0.0)
