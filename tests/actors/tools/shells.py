"""Commands whose processes a test can find again, wherever they went."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import attrs
import trio

from warren.actors.tools.shell.tool import ALLOWED, shell_tool
from warren.models.tools import Tool

MARK = "WARREN_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """Return the processes that run with the mark in their environment, with what they are."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
    return found


def alive(pid: int) -> bool:
    """Tell whether a process is there and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


async def numbers_in(path: Path, count: int) -> list[int]:
    """Wait until a file has so many lines and return the numbers in them."""
    while len(found := _lines(path)) < count:  # noqa: ASYNC110 - files have no events
        await trio.sleep(0.01)
    return [int(line) for line in found]


def exists(pid: int) -> bool:
    """Tell whether a process is there, be it only to be reaped."""
    return Path(f"/proc/{pid}").exists()


def _lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


@attrs.frozen
class MarkedShell:
    """A shell tool whose commands carry a mark of their own."""

    root: Path
    tool: Tool
    mark: str

    @classmethod
    def under(
        cls, root: Path, timeout: float = 60, output_limit: int = 30_000, environ: Mapping[str, str] = os.environ
    ) -> "MarkedShell":
        mark = uuid4().hex
        made = shell_tool(
            root,
            environ={**environ, MARK: mark},
            allow_env=(*ALLOWED, MARK),
            timeout=timeout,
            output_limit=output_limit,
        )
        return cls(root, made, mark)

    async def run(self, command: str, **options: object) -> str:
        """Run a command as a model would."""
        answer = await self.tool.call(**self.tool.bind({"command": command, **options}))
        assert isinstance(answer, str)
        return answer

    async def output(self, command: str, **options: object) -> str:
        """Run a command that ends well and return what it printed."""
        first, _, rest = (await self.run(command, **options)).partition("\n")
        assert first.startswith("[exit code 0"), (first, rest)
        return rest

    def left(self) -> dict[int, str]:
        """Return the processes of its commands, and their keepers, that are still there."""
        return marked(self.mark)
