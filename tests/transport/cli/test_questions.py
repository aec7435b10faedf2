"""The question before something is removed for good."""

import io
import os
import signal
from contextlib import suppress

import click
import pytest

from tests.transport.cli.fakes import FakeTerminal
from warren.transport.cli.terminal.questions import confirm
from warren.transport.cli.terminal.streams import Streams


class Interrupting(FakeTerminal):
    """A terminal whose user presses Ctrl-C in the moment in which the question appears."""

    def flush(self) -> None:
        """Show it."""
        if self.getvalue().endswith(": "):
            signal.raise_signal(signal.SIGINT)


def agreed(screen: FakeTerminal, typed: bytes) -> bool:
    """Ask with input that is there already, and none after it; return whether the user agreed."""
    reader, writer = os.pipe()
    os.write(writer, typed)
    os.close(writer)
    try:
        with suppress(click.Abort):
            confirm("Delete it?", Streams(io.StringIO(), screen), reader)
            return True
        return False
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("typed", "yes", "asked"),
    [
        (b"y\n", True, 1),
        (b" YES\n", True, 1),
        (b"n\n", False, 1),
        (b"\n", False, 1),
        (b"", False, 1),
        (b"ye\n", False, 2),
    ],
)
def test_only_a_yes_agrees(typed: bytes, asked: int, *, yes: bool) -> None:
    """An empty line and the end of the input refuse; another word is asked about again."""
    screen = FakeTerminal()
    assert agreed(screen, typed) is yes
    assert screen.getvalue().count("Delete it? [y/N]: ") == asked


def test_ctrl_c_refuses_at_once() -> None:
    """It counts from the first moment of the question on, even if a yes comes with it."""
    screen = Interrupting()
    assert not agreed(screen, b"y\n")
    assert screen.getvalue() == "Delete it? [y/N]: \n"
