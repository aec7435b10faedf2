"""Commands on their way: started in the process that forks, ended by themselves, by Ctrl-C or with the test."""

import itertools
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.parity.surfaces import warm
from tests.parity.surfaces.wire import LONGEST
from tests.transport.cli.process import clean_environ
from warren.actors.streams import LineReader

SOON: Final = 0.005


@attrs.define(eq=False)
class Command:
    """A command: where it writes, its process, and its exit code once it has ended."""

    out: Path
    err: Path
    pid: int | None = None
    code: int | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def says_something(self) -> bool:
        """Whether it runs and has shown text of an answer."""
        return self.code is None and self.err.exists() and b'"text_delta"' in self.err.read_bytes()

    def lines(self) -> list[dict[str, Any]]:
        """Return what is on stderr: events, and the body of an error behind them."""
        return [json.loads(line) for line in self.err.read_text(encoding="utf-8").splitlines()]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.pid is not None, "it has not begun"
        os.kill(self.pid, number)


@attrs.define(eq=False)
class Shell:
    """Runs commands in one folder."""

    folder: Path
    _process: "subprocess.Popen[bytes]"
    _commands: dict[str, Command] = attrs.field(factory=dict)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count)

    @property
    def running(self) -> Sequence[Command]:
        """The commands that have not ended."""
        return [command for command in self._commands.values() if command.code is None]

    async def run(self, argv: Sequence[str]) -> Command:
        """Run a command to its end."""
        name = f"{os.getpid()}-{id(self)}-{next(self._numbers)}"
        command = self._commands[name] = Command(self.folder / f"{name}.out", self.folder / f"{name}.err")
        streams = {"out": str(command.out), "err": str(command.err)}
        job = {"id": name, "argv": [*argv], "folder": str(self.folder), **streams}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        await command.ended.wait()
        return command

    async def begun(self) -> None:
        """Return once a command that runs has shown text of an answer."""
        while not any(command.says_something for command in self.running):  # noqa: ASYNC110 - files have no events
            await trio.sleep(SOON)

    async def listen(self, lines: LineReader) -> None:
        """Take note of what becomes of commands; those of earlier shells are passed over."""
        while (line := await lines.next()) is not None:
            news = json.loads(line)
            command = self._commands.get(news["id"])
            if command is not None and "pid" in news:
                command.pid = news["pid"]
            elif command is not None:
                command.code = news["code"]
                command.ended.set()

    def kill(self) -> None:
        """End what runs."""
        for command in self.running:
            if command.pid is not None:
                command.signal(signal.SIGKILL)


@attrs.define(eq=False)
class Forking:
    """The process that forks; it is started when it is needed first."""

    _process: "subprocess.Popen[bytes] | None" = None
    _shell: Shell | None = None

    @asynccontextmanager
    async def shell(self, folder: Path) -> AsyncIterator[Shell]:
        """Open a shell; there is one at a time, whoever asks for it."""
        if self._shell is not None:
            yield self._shell
            return
        if self._process is None:
            self._process = warm.start(clean_environ())
        assert self._process.stdout is not None
        news = os.dup(self._process.stdout.fileno())
        async with trio.lowlevel.FdStream(news) as stream, trio.open_nursery() as nursery:
            self._shell = shell = Shell(folder, self._process)
            nursery.start_soon(shell.listen, LineReader(stream, LONGEST))
            try:
                yield shell
            finally:
                self._shell = None
                shell.kill()
                nursery.cancel_scope.cancel()

    def end(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin and self._process.stdout:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None
