"""Commands on their way: forked for the test, ended by themselves, by Ctrl-C or with the test."""

import itertools
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.support.forked import FORKING, Forked
from tests.transport.cli.process import clean_environ

SOON: Final = 0.005


@attrs.define(eq=False)
class Command:
    """A command: its output files, and its process."""

    out: Path
    err: Path
    process: Forked
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def says_something(self) -> bool:
        """Whether it runs and has shown text of an answer."""
        return self.process.returncode is None and b'"text_delta"' in self.err.read_bytes()

    def lines(self) -> list[dict[str, Any]]:
        """Return what is on stderr: events, and the body of an error behind them."""
        return [json.loads(line) for line in self.err.read_text(encoding="utf-8").splitlines()]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@attrs.define(eq=False)
class Shell:
    """Runs commands in one folder."""

    folder: Path
    running: list[Command] = attrs.field(factory=list)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count)

    async def run(self, argv: Sequence[str]) -> Command:
        """Run a command to its end."""
        command = self._start(argv)
        self.running.append(command)
        await command.process.ended()
        self.running.remove(command)
        command.ended.set()
        return command

    def _start(self, argv: Sequence[str]) -> Command:
        name = f"{id(self)}-{next(self._numbers)}"
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        with Path(os.devnull).open("rb") as nothing, out.open("wb") as stdout, err.open("wb") as stderr:
            streams = (nothing.fileno(), stdout.fileno(), stderr.fileno())
            return Command(out, err, FORKING.start(argv, self.folder, clean_environ(), streams))

    async def begun(self) -> None:
        """Return once a command that runs has shown text of an answer."""
        while not any(command.says_something for command in self.running):  # noqa: ASYNC110 - files have no events
            await trio.sleep(SOON)


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """Open a shell, and kill what it still runs at the end."""
    opened = Shell(folder)
    try:
        yield opened
    finally:
        for command in opened.running:
            command.signal(signal.SIGKILL)
