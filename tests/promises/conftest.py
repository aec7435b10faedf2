"""Fixtures of the promises: the places of a store that processes share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import database


@pytest.fixture(params=["files", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Return the place of a store: a folder, and then the address of a database."""
    if request.param == "files":
        yield tmp_path
    else:
        with database() as url:
            yield url
