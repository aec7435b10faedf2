"""`warren rpc` as a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.cli.process import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Run commands in a new folder; what still runs at the end is killed."""
    command = Cli(tmp_path)
    yield command
    command.close()
