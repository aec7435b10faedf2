"""A command that runs beside the event loop, with a keeper process that ends all of its processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from warren.actors.io.processes import signal_group
from warren.actors.io.streams import LineReader
from warren.actors.tools.shell.output import OutputTail
from warren.base.values import define, frozen
from warren.models.tools import ToolError

GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL."""
END_LIMIT: Final = GRACE + 3.0
"""Seconds for the keeper to end everything; then it is killed itself."""
KEEPER: Final = str(Path(__file__).with_name("keeper.py"))
LONGEST_WORD: Final = 1024


@frozen
class Ended:
    """The end of a shell: its exit code or minus its signal, and the number of processes that it left behind."""

    code: int
    left: int


@define(eq=False)
class Command:
    """A started command. Its starter has to await `end` in each case.

    Attributes:
        keeper: the process that ends the command's processes, even if this process is killed.
        control: the messages of the keeper; closing the stream ends the command.
        output: stdout and stderr of the command.
        tail: the end of the output.
    """

    keeper: trio.Process
    control: trio.lowlevel.FdStream
    output: trio.lowlevel.FdStream
    tail: OutputTail
    _shell: int | None = None

    @classmethod
    async def start(
        cls, arguments: Sequence[str], folder: int, environ: Mapping[str, str], tail: OutputTail
    ) -> "Command":
        """Start a command in the folder. Raises ToolError. If it is cancelled, nothing was started."""
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
        """Read the output until the shell ends, and return its end; None if the keeper has ended before."""
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
        """End the rest of the command and read the rest of its output, even if it is cancelled. Bounded in time."""
        self.control.close()
        try:
            # Shielded: an interrupt cancels the tool, and no process of its command may outlive the call.
            with trio.move_on_after(END_LIMIT, shield=True):
                await self._drain()
        finally:
            self.output.close()
            if self.keeper.returncode is None:  # a command can have stopped it with SIGSTOP
                self.keeper.kill()
                with trio.move_on_after(1, shield=True):
                    await self.keeper.wait()
                self._kill_group()

    async def _drain(self) -> None:
        """Read on while the command ends, which it cannot do while it waits for room in the pipe, and then the rest."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tail.read, self.output)
            if await self.keeper.wait() != 0:
                self._kill_group()
            nursery.cancel_scope.deadline = trio.current_time() + 1  # a process that was not ended may have the pipe

    def _kill_group(self) -> None:
        """Kill the processes of a keeper that did not end in time."""
        if self._shell is not None:
            signal_group(self._shell, signal.SIGKILL)
