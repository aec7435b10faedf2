"""The homes that the suite runs on."""

import pytest

from tests.storage.conformance.homes import HOMES, Home


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest) -> Home:
    """One home of sessions after the other."""
    return HOMES[request.param]
