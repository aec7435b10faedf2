"""What is measured of a runtime while it runs: how writes go, how late the event loop is."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from warren.errors import StoreError, WarrenError
from warren.health import FAILED_AFTER, LATE_LOOP_MS, SLOW_COMMIT_MS, LoopHealth, Status, StoreHealth, worst

ABOUT_ONE: Final = frozenset({"leased", "lease_lost", "conflict", "unstorable", "too_big"})
"""Causes of errors that are a session's, and say nothing of the store."""
RECENT: Final = 256
ENOUGH: Final = 100
REMEMBERED: Final = 60.0
"""Seconds for which an error is told of after writes succeed: a small write may succeed when a turn's does not."""
INTERVAL: Final = 0.5
"""Seconds between two looks at how late the loop is."""


@attrs.define(eq=False)
class Samples:
    """The newest of some durations, in seconds."""

    _kept: deque[float] = attrs.field(factory=lambda: deque(maxlen=RECENT))

    def add(self, seconds: float) -> None:
        """Take one in; the oldest gives way."""
        self._kept.append(seconds)

    def exceed(self, milliseconds: float) -> bool:
        """Tell whether one in a hundred takes longer; of a few nothing is known yet."""
        return len(self._kept) >= ENOUGH and (self.percentile(0.99) or 0.0) > milliseconds

    def percentile(self, share: float) -> float | None:
        """Return the duration in milliseconds that this share of them does not exceed; None where there are none."""
        if not self._kept:
            return None
        rank = max(1, math.ceil(share * len(self._kept)))
        return round(sorted(self._kept)[rank - 1] * 1000, 3)


@attrs.define(eq=False)
class Writes:
    """How the store's writes go, and went lately."""

    _took: Samples = attrs.field(factory=Samples)
    _began: float | None = None
    _error: StoreError | None = None
    _failing_since: float = 0.0
    _last_error: StoreError | None = None
    _last_failed: float = 0.0

    def began(self) -> None:
        """Take note that a group of operations is on its way to the disk."""
        self._began = trio.current_time()

    def ended(self, outcomes: Sequence[Any]) -> None:
        """Take note of what came of them; nothing, where the actor crashed over them."""
        seconds = 0.0 if self._began is None else trio.current_time() - self._began
        self._began = None
        faults = [each for each in outcomes if isinstance(each, StoreError) and each.cause not in ABOUT_ONE]
        if faults:
            self.failed(faults[-1])
        elif outcomes:
            self._error = None
            self._took.add(seconds)

    def failed(self, error: StoreError) -> None:
        """Take note of a write that failed."""
        if self._error is None:
            self._failing_since = trio.current_time()
        self._error = self._last_error = error
        self._last_failed = trio.current_time()

    def probed(self) -> None:
        """Take note that a write succeeded that nobody asked for: what ends by itself has ended."""
        if self._error is not None and self._error.retryable:
            self._error = None

    def health(self, read_fault: WarrenError | None = None) -> StoreHealth:
        """Return how the store does; `read_fault` is what the newest read failed with, if it did."""
        if trio.current_time() - self._last_failed >= REMEMBERED:
            self._last_error = None
        error = self._error or read_fault or self._last_error
        status = worst(self._status(), "ok" if read_fault is None else "degraded")
        p50, p99 = self._took.percentile(0.5), self._took.percentile(0.99)
        return StoreHealth(status, None if error is None else error.message, p50, p99)

    def _status(self) -> Status:
        since = self._began if self._error is None else self._failing_since
        waited = 0.0 if since is None else trio.current_time() - since
        if waited >= FAILED_AFTER:
            return "failed"
        slow = waited * 1000 > SLOW_COMMIT_MS or self._took.exceed(SLOW_COMMIT_MS)
        return "degraded" if slow or self._error is not None else "ok"


@attrs.define(eq=False)
class LoopLag:
    """How late the event loop comes to what is due."""

    _late: Samples = attrs.field(factory=Samples)

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            due = trio.current_time() + INTERVAL
            await trio.sleep_until(due)
            self._late.add(trio.current_time() - due)

    def health(self) -> LoopHealth:
        """Return how the loop does."""
        late = self._late.exceed(LATE_LOOP_MS)
        return LoopHealth("degraded" if late else "ok", self._late.percentile(0.99) or 0.0)
