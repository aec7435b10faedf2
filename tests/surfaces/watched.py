"""A process of `warren` that is watched from outside: its tasks, descriptors and memory, and what it says on stderr."""

import json
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.transport.cli.process import LIMIT, Cli, Running

COUNTED: Final = Path(__file__).with_name("counted.py")
SETTLED: Final = 45.0
"""Seconds in which what was begun has to be over; a connection that nobody uses is closed after fifteen."""
SPARE: Final = 4
"""Descriptors that it may have more: files of the store are opened as they are needed, and kept."""
CONFIG: Final = '[limits]\nidle_after = "1s"\n'
"""Sessions leave memory soon: what is there then was not left behind by them."""


@attrs.frozen
class Gauge:
    """The resources of a process: tasks, open descriptors, objects of Python, and bytes of memory."""

    tasks: int
    descriptors: int
    objects: int
    memory: int


@attrs.define
class Watched:
    """The process.

    Attributes:
        running: the process.
        counts: the file to which it writes how many tasks it has.
        errors: the file that has its stderr.
    """

    running: Running
    counts: Path
    errors: Path
    _asked: int = 0

    async def gauge(self) -> Gauge:
        """Return what it holds now."""
        proc = trio.Path(f"/proc/{self.running.process.pid}")
        tasks, objects = await self._counted()
        pages = int((await (proc / "statm").read_text()).split()[1])
        return Gauge(tasks, len([*await (proc / "fd").iterdir()]), objects, pages * resource.getpagesize())

    async def begun(self) -> Gauge:
        """Return what it holds once its start is over: it has as many tasks as a second before."""
        found, before = await self.gauge(), None
        while before is None or found.tasks != before.tasks:
            await trio.sleep(1)
            found, before = await self.gauge(), found
        return found

    async def settled(self, like: Gauge) -> Gauge:
        """Return what it holds once it has no more tasks and descriptors than before; fail where that stays."""
        with trio.move_on_after(SETTLED):
            while True:
                found = await self.gauge()
                if found.tasks <= like.tasks and found.descriptors <= like.descriptors + SPARE:
                    return found
                await trio.sleep(0.2)
        raise AssertionError(f"it held {like}, and holds {found}")

    def said(self) -> str:
        """Return what it wrote to stderr."""
        return self.errors.read_text(encoding="utf-8")

    async def _counted(self) -> Any:
        self.running.signal(signal.SIGUSR1)
        self._asked += 1
        with trio.fail_after(LIMIT):
            while len(lines := self.counts.read_text().splitlines()) < self._asked:  # noqa: ASYNC110 - a file
                await trio.sleep(0.01)
        return json.loads(lines[-1])


@contextmanager
def watched(folder: Path, args: Sequence[str], config: str = CONFIG) -> Iterator[Watched]:
    """Run `warren` in a folder for a body; it has to be there at its end, and to end then with no fault on stderr."""
    cli, counts, errors = Cli(folder), folder / "counts", folder / "errors"
    (folder / "warren.toml").write_text(config)
    counts.touch()
    with errors.open("wb") as stderr:
        running = cli.start(*args, "--config", "warren.toml", python=(str(COUNTED), str(counts)), stderr=stderr)
    found = Watched(running, counts, errors)
    try:
        yield found
        assert running.process.poll() is None
        running.signal(signal.SIGTERM)
        assert running.end().code == 0
        faults = [line for line in found.said().splitlines() if line.startswith(("ERROR", "CRITICAL", "Traceback"))]
        assert faults == []
    finally:
        cli.close()
