"""A pseudo-terminal that a command runs in."""

import os
import re
import select
import time
from typing import Final

import attrs

from tests.transport.cli.process import LIMIT, Cli, Running

CTRL_C: Final = "\x03"
CTRL_D: Final = "\x04"
ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# Makes the terminal on stdin the process's own, so that Ctrl-C reaches it as from a keyboard.
START: Final = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module('warren', run_name='__main__')
"""


@attrs.define
class Terminal:
    """A command in front of a user.

    Attributes:
        seen: what is on the screen that nobody has asked about yet; escapes included.
    """

    cli: Cli
    ours: int
    theirs: int
    seen: str = ""
    running: Running = attrs.field(init=False)
    _deadline: float = attrs.field(factory=lambda: time.monotonic() + LIMIT)

    def start(self, *args: str, **env: str) -> None:
        self.running = self.cli.start(
            *args,
            python=("-c", START),
            env=env,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            new_session=True,
        )

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def read_until(self, text: str) -> str:
        """Return the screen up to and with a text."""
        while text not in self.seen:
            assert self._more() or self.running.process.poll() is None, self.seen
        before, found, self.seen = self.seen.partition(text)
        return before + found

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the rest of the screen, without escapes and returns."""
        while self._more() or self.running.process.poll() is None:
            pass
        return self.running.process.wait(), ESCAPES.sub("", self.seen).replace("\r", "")

    def _more(self) -> bool:
        """Read what there is; wait for it a moment."""
        assert time.monotonic() < self._deadline, self.seen
        if not select.select([self.ours], [], [], 0.02)[0]:
            return False
        self.seen += os.read(self.ours, 65536).decode()
        return True
