"""Backoff with jitter: the waits between the attempts of work that fails."""

import random
from collections.abc import Iterator
from contextlib import suppress

from warren.base.values import frozen


@frozen
class Backoff:
    """Waits that grow from one failure in a row to the next; an iterator over it yields them without end.

    Attributes:
        first: seconds after the first failure.
        longest: seconds that no wait exceeds.
        factor: factor from one wait to the next.
        jitter: share by which a wait is spread at random, at most 1, so that many clients do not come back at once.
    """

    first: float
    longest: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after `failures` failures in a row, at least 1."""
        wait = self.longest
        with suppress(OverflowError):  # a high power overflows a float: the bound holds there too
            wait = min(self.first * self.factor ** (failures - 1), wait)
        # The bound cuts the spread itself: capped afterwards, half of the longest waits would end at the same time.
        return random.uniform(wait * (1 - self.jitter), min(wait * (1 + self.jitter), self.longest))  # noqa: S311

    def __iter__(self) -> Iterator[float]:
        failures = 0
        while True:
            failures += 1
            yield self.delay(failures)
