"""The command line as a process."""

import os
import pty
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.cli.process import Cli
from tests.transport.cli.terminals import Terminal


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Terminal]:
    """Give a terminal; the test keeps its other end open, so that it can look at its settings."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    yield Terminal(cli, ours, theirs)
    cli.close()
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
