"""A plugin of pytest that keeps the long tests within a time for all of them: `make soak` loads it.

Half of the time is shared by the tests that go on as long as they are told. The others follow in an order of chance,
and those that would begin after the time is over are skipped: over many soaks each of them gets its turn.
"""

import os
import random
import time
from typing import Final

import pytest

TOTAL: Final = float(os.environ.get("WARREN_SOAK_TOTAL", "600"))
BEGAN: Final = time.monotonic()
TIMED: Final = "soak_seconds"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that take what time they get first, and give each its share."""
    timed = [item for item in items if _is_timed(item)]
    others = [item for item in items if not _is_timed(item)]
    random.shuffle(others)
    items[:] = [*timed, *others]
    os.environ["WARREN_SOAK_SECONDS"] = str(TOTAL / 2 / max(1, len(timed)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late."""
    if not _is_timed(item) and time.monotonic() > BEGAN + TOTAL:
        pytest.skip("the time of this soak is over")


def _is_timed(item: pytest.Item) -> bool:
    return TIMED in getattr(item, "fixturenames", ())
