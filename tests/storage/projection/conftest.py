"""A store to project."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.projection.histories import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Make a store in a folder of its own."""
    made = World.at(tmp_path / "store")
    yield made
    made.close()
