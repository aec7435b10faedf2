"""Servers for tests, and what is to be seen of them from outside."""

import os
import signal
import sys
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import until
from warren.actors.tools.mcp.pool import McpPool
from warren.base.backoff import Backoff
from warren.models.tools import Tool
from warren.reports.health import McpHealth
from warren.settings.tool_config import McpServer

HERE: Final = Path(__file__).parent
SOON: Final = Backoff(first=0.02, longest=0.1, jitter=0.2)
LONG: Final = 50.0
"""Seconds that servers may take on a busy machine, where a test is not about that."""


def bare(folder: Path, name: str, *flags: str, **settings: Any) -> McpServer:
    """Return a server that misbehaves as the flags say."""
    options = {"stop_timeout": 0.1} | settings
    args = ["-S", str(HERE / "bare.py"), str(folder), name, *flags]
    return McpServer(name, command=sys.executable, args=args, **options)


def official(folder: Path, name: str = "official", **settings: Any) -> McpServer:
    """Return a server made with the official package."""
    return McpServer(name, command=sys.executable, args=[str(HERE / "official.py"), str(folder)], **settings)


def pids(folder: Path, name: str) -> list[int]:
    """Return every process that a bare server was, and has started."""
    path = folder / f"{name}.pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def exists(pid: int) -> bool:
    """Tell whether there is such a process, be it a zombie of ours."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except FileNotFoundError:
        return False
    return state[0] != b"Z" or int(state[1]) == os.getpid()


async def kill(folder: Path, name: str, health: Callable[[], Iterable[McpHealth]]) -> None:
    """Kill the process of a bare server, and wait until another one serves in its place.

    The old state of the server goes on for a moment after its death, so a look at the health alone would not do.
    """
    victim = pids(folder, name)[-1]
    os.kill(victim, signal.SIGKILL)
    await until(lambda: pids(folder, name)[-1] != victim)
    await until(lambda: all(each.state == "ready" for each in health() if each.name == name))


def descriptors() -> int:
    """Return how many files and sockets we have open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def tool(pool: McpPool, name: str, owner: Hashable | None = None) -> Tool:
    """Return the tool that models know by a name."""
    return {each.spec.name: each for each in pool.tools(owner)}[name]


async def call(pool: McpPool, name: str, /, **arguments: Any) -> object:
    """Call a tool by the name that models know, as the runtime does."""
    found = tool(pool, name)
    return await found.call(**found.bind(arguments))
