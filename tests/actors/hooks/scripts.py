"""Scripts for hooks, as users write them, and processes that they leave behind."""

from pathlib import Path

import trio

from warren.actors.io.processes import signal_group


def script(folder: Path, text: str, name: str = "hook.sh") -> str:
    """Write a script of the shell, and return the command that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def pids(path: Path, count: int = 1) -> list[int]:
    """Return the numbers of processes that scripts have written to a file, once there are as many."""
    while len(found := _words(path)) < count:  # noqa: ASYNC110 - a file has no event
        await trio.sleep(0.01)
    return [int(each) for each in found]


async def gone(pid: int) -> bool:
    """Return whether a process ends, or has ended, within a few seconds."""
    with trio.move_on_after(5):
        while _runs(pid):  # noqa: ASYNC110 - nor has a process that is no child
            await trio.sleep(0.01)
        return True
    signal_group(pid, 9)
    return False


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
