"""A command that runs beside the event loop, with a keeper process that leaves nothing of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from warren.actors.tools.lines import LineReader
from warren.actors.tools.shell_output import Tail
from warren.tools import ToolError

GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL."""
END_LIMIT: Final = GRACE + 3.0
"""Seconds that the keeper may take to end everything; then it is killed itself."""
KEEPER: Final = str(Path(__file__).with_name("shell_keeper.py"))
LONGEST_WORD: Final = 1024


@attrs.frozen
class Ended:
    """How a shell ended: with its exit code or minus the signal, and how many processes it left behind."""

    code: int
    left: int


@attrs.define(eq=False)
class Command:
    """A command that was started. Whoever starts one has to await `end`, whatever comes between.

    Attributes:
        keeper: the process that ends with nothing of the command left, also where this one is gone or killed.
        control: what the keeper says; closed, it ends the command.
        output: stdout and stderr of the command.
        tail: takes the output.
    """

    keeper: trio.Process
    control: trio.lowlevel.FdStream
    output: trio.lowlevel.FdStream
    tail: Tail
    _shell: int | None = None

    @classmethod
    async def start(cls, arguments: Sequence[str], folder: int, environ: Mapping[str, str], tail: Tail) -> "Command":
        """Start a command in the folder. Raises ToolError; cancelled, nothing was started."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            control, keepers_control = socket.socketpair()
            ours.callback(control.close)
            theirs.callback(keepers_control.close)
            reader, writer = os.pipe()
            ours.callback(os.close, reader)
            theirs.callback(os.close, writer)
            try:
                keeper = await trio.lowlevel.open_process(
                    [sys.executable, "-I", "-S", KEEPER, str(GRACE), str(folder), *arguments],
                    stdin=keepers_control,
                    stdout=writer,
                    stderr=writer,
                    pass_fds=[folder],
                    env=dict(environ),
                    start_new_session=True,
                )
            except (OSError, subprocess.SubprocessError) as exc:
                raise ToolError(f"the command cannot be started: {exc}") from exc
            ours.pop_all()
            return cls(keeper, trio.lowlevel.FdStream(control.detach()), trio.lowlevel.FdStream(reader), tail)

    async def follow(self) -> Ended | None:
        """Take in the output until the shell ends; None where the keeper was ended before."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tail.read, self.output)
            ended = await self._listen()
            nursery.cancel_scope.cancel()
        return ended

    async def _listen(self) -> Ended | None:
        words = LineReader(self.control, LONGEST_WORD)
        while (line := await words.next()) is not None:
            match line.split():
                case [b"started", pid]:
                    self._shell = int(pid)
                case [b"ended", code, left]:
                    return Ended(int(code), int(left))
        return None

    async def end(self) -> None:
        """End all that is left of the command and take in its last words; not to be cancelled, but bounded."""
        self.control.close()
        try:
            with trio.move_on_after(END_LIMIT, shield=True):
                await self._drain()
        finally:
            self.output.close()
            if self.keeper.returncode is None:  # stopped, say: a command can do that to it
                self.keeper.kill()
                with trio.move_on_after(1, shield=True):
                    await self.keeper.wait()
                self._kill_group()

    async def _drain(self) -> None:
        """Read on while the command ends, which one that waits for room in the pipe cannot do, and what it leaves."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tail.read, self.output)
            if await self.keeper.wait() != 0:
                self._kill_group()
            nursery.cancel_scope.deadline = trio.current_time() + 1  # the pipe may be with a process that was not ended

    def _kill_group(self) -> None:
        """Kill what a keeper leaves behind that did not come to its end."""
        if self._shell is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._shell, signal.SIGKILL)
