"""The shell as a tool: commands with a time limit and a bounded answer, whose processes are all ended."""

import math
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio

from warren.actors.tools.shell.folder import open_folder
from warren.actors.tools.shell.hiding import hide_environment
from warren.actors.tools.shell.output import OutputTail
from warren.actors.tools.shell.process import END_LIMIT, Command
from warren.base.fields import positive
from warren.base.values import frozen
from warren.models.tools import Tool, ToolError, tool

ALLOWED: Final = ("PATH", "HOME", "LANG", "LC_*", "TERM", "TZ", "TMPDIR", "USER")
"""Patterns of the environment variables that a command gets: none of them holds a key."""
LONGEST_COMMAND: Final = 100_000
"""Bytes of a command: the system accepts no longer argument than 128 KiB."""
USAGE: Final = """\
Run a command line in {shell}, in the working directory, and return its output, stdout and stderr as one. There is no \
input and no terminal: pass flags that keep a program from asking. The command is ended after {timeout:g} s. Processes \
that it leaves running are ended with it, background jobs too. Of a long output only the last {limit} bytes are \
returned."""


def shell_tool(
    root: Path,
    *,
    environ: Mapping[str, str],
    allow_env: Sequence[str] = ALLOWED,
    timeout: float = 120.0,
    output_limit: int = 30_000,
) -> Tool:
    """Make the tool `shell`; its commands start in folders under a root.

    When a command ends, is interrupted or runs out of time, or Warren ends in any way, all of its processes get SIGTERM
    and two seconds later SIGKILL. On Linux that includes processes that left its session or lost their parents;
    elsewhere it is its process group alone. On Linux the environment of this process is hidden from commands, see
    `hide_environment`.

    Trap: this is no sandbox. A command can read and write all files of the user that Warren runs as, use the network,
    end Warren or the process that is to end the command, or ask another program (a service manager, a container engine,
    sudo) to start a process that is then not ended. As root it can read Warren's memory. If that matters, run Warren as
    a user or in a container that can do no harm.

    Args:
        root: the folder.
        environ: the variables that commands may get.
        allow_env: patterns of the names of those that they do get.
        timeout: seconds of a command.
        output_limit: bytes of the end of the output that the model gets.

    Raises:
        FieldValueError: if a bound is not above 0.
    """

    def shown(name: str) -> bool:
        return any(fnmatchcase(name, each) for each in allow_env)

    hide_environment(shown)
    given = {name: value for name, value in environ.items() if shown(name)}
    program = shutil.which("bash", path=given.get("PATH")) or "/bin/sh"
    shell = Shell(root, given, program, timeout, output_limit)
    usage = USAGE.format(shell=Path(program).name, timeout=timeout, limit=output_limit)
    # the runtime's own limit comes after this one, whose error has the output so far
    return tool(name="shell", description=usage, timeout=timeout + 2 * END_LIMIT)(shell.run)


@frozen
class Shell:
    """Runs the commands of one tool.

    Attributes:
        root: the folder.
        environ: the environment of the commands.
        program: the shell.
        timeout: seconds of a command.
        output_limit: bytes of the end of the output that are kept.
    """

    root: Path
    environ: Mapping[str, str]
    program: str
    timeout: float = attrs.field(validator=positive)
    output_limit: int = attrs.field(validator=positive)

    async def run(
        self,
        command: Annotated[str, "The command line"],
        working_dir: Annotated[str, "Folder to run it in, by its path from the root folder"] = ".",
        timeout_seconds: Annotated[float | None, "Seconds until it is ended, if fewer than usual are enough"] = None,
    ) -> str:
        """Run a command, and return its exit and its output. Raises ToolError, after a timeout too."""
        limit = self._limit(timeout_seconds)
        tail, began = OutputTail(self.output_limit), trio.current_time()
        with open_folder(self.root, working_dir) as folder:
            started = await Command.start([self.program, "-c", "--", _checked(command)], folder, self.environ, tail)
        try:
            with trio.move_on_after(limit) as scope:
                ended = await started.follow()
        finally:
            await started.end()
        if scope.cancelled_caught:
            raise ToolError(_report(f"ended: it had not finished after {limit:g} s", tail))
        if ended is None:
            raise ToolError(_report("the process that keeps the command was ended, and the command with it", tail))
        how = f"exit code {ended.code}" if ended.code >= 0 else f"ended by signal {-ended.code}"
        left = f"; {ended.left} left running: ended" if ended.left else ""
        return _report(f"{how}{left}, {trio.current_time() - began:.2f} s", tail)

    def _limit(self, wanted: float | None) -> float:
        if wanted is None:
            return self.timeout
        if not (wanted > 0 and math.isfinite(wanted)):
            raise ToolError("timeout_seconds: must be above 0")
        return min(wanted, self.timeout)


def _checked(command: str) -> str:
    """Return the command as bytes. Raises ToolError if the system cannot accept it."""
    if not command.strip():
        raise ToolError("command: must not be empty")
    if "\0" in command:
        raise ToolError("command: must not have a null character in it")
    try:
        size = len(command.encode())
    except UnicodeEncodeError as exc:
        raise ToolError("command: half a character: UTF-8 cannot hold it") from exc
    if size > LONGEST_COMMAND:
        raise ToolError(f"command: must be at most {LONGEST_COMMAND} bytes; write a file with it and run that")
    return command


def _report(how: str, tail: OutputTail) -> str:
    """Return the answer for the model: the exit of the command, notes of missing output, and the end of its output."""
    text = tail.text()
    cut = f"[the first {tail.cut} bytes of the output are left out]\n" if tail.cut else ""
    return f"[{how}]\n{cut}{text}"
