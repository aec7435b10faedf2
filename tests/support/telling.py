"""Programs that tests drive: they take lines, and tell JSON objects, one a line."""

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio


@attrs.define(eq=False)
class Telling:
    """The streams of a program."""

    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream
    _read: bytes = b""

    async def say(self, *lines: str) -> None:
        """Give it lines; a process that is stopped finds them when it goes on."""
        await self.stdin.send_all("".join(f"{line}\n" for line in lines).encode())

    async def next(self) -> dict[str, Any] | None:
        """Return what it tells next; None if it has ended."""
        while b"\n" not in self._read:
            chunk = await self.stdout.receive_some()
            if not chunk:
                return None
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        told = json.loads(line)
        assert isinstance(told, dict)
        return told

    async def must(self) -> dict[str, Any]:
        """Return what it tells next; it has not ended."""
        told = await self.next()
        assert told is not None, "it ended"
        return told


@asynccontextmanager
async def running(command: Sequence[str], folder: Path | None = None) -> AsyncIterator[tuple[trio.Process, Telling]]:
    """Run a program in a folder; kill it on leaving."""
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdin, process.stdout:
        try:
            yield process, Telling(process.stdin, process.stdout)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
