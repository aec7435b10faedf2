"""Tools under folders of their own."""

from pathlib import Path

import pytest

from tests.actors.tools.shells import MarkedShell


@pytest.fixture
def shell(tmp_path: Path) -> MarkedShell:
    """Give a shell under a folder of its own."""
    return MarkedShell.under(tmp_path)
