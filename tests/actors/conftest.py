"""Fixtures that the tests of the actors share."""

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The place of the sessions: nowhere, then in a file."""
    return tmp_path if request.param == "file" else None
