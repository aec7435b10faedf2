"""Backoff: waits that grow, are bounded, and are spread at random."""

from itertools import islice

import pytest

from warren.base.backoff import Backoff
from warren.settings.config import RetryPolicy


def test_waits_grow_up_to_a_bound() -> None:
    """Each failure multiplies the wait, and there is a longest one."""
    backoff = Backoff(first=1.0, longest=10.0)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 5, 10**9)] == [1, 2, 4, 8, 10, 10]
    assert list(islice(Backoff(first=1.0, longest=10.0, factor=3.0), 4)) == [1, 3, 9, 10]


def test_jitter_stays_within_its_share() -> None:
    """A wait is spread by at most the given share, to both sides."""
    delays = [RetryPolicy(initial_delay=10, jitter=0.1).backoff.delay(1) for _ in range(200)]
    assert 9 <= min(delays) < 10 < max(delays) <= 11


@pytest.mark.parametrize("jitter", [0.5, 1])
def test_the_spread_keeps_to_the_bounds(jitter: float) -> None:
    """No wait is longer than the longest one or below 0, and the longest waits do not all end at the same time."""
    delays = [Backoff(first=10, longest=10, jitter=jitter).delay(3) for _ in range(200)]
    assert 0 <= min(delays) < max(delays) <= 10
    assert len(set(delays)) == len(delays)
