"""The guard of an end within a time."""

import pytest

from warren.transport.cli.process.watchdog import Watchdog


@pytest.mark.parametrize("seconds", [1.0, 1.5, 2.0, 10.0, 30.0])
def test_a_parent_leaves_the_workers_their_time(seconds: float) -> None:
    """It kills them no earlier than their own watchdogs end them, and still before it has to be gone itself."""
    worker, parent = Watchdog.of(seconds), Watchdog.of_parent(seconds)
    assert worker.last <= parent.processes < parent.last
