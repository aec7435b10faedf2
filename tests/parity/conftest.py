"""Fixtures of the suite: the process that forks commands."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.parity.outcome", "tests.parity.stage", "tests.parity.scenarios")

from tests.parity.surfaces.cli import FORKING  # noqa: E402 - the line above has to be first


@pytest.fixture(scope="session", autouse=True)
def _forking() -> Iterator[None]:
    yield
    FORKING.end()
