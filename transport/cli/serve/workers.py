"""The workers of `warren serve --workers N`: processes that share one port. One that dies is started again.

The parent binds the port and runs no session. Its workers inherit the sockets, so a client whose connection a dying
worker has not accepted yet gets another worker. A worker ends with its parent: its stdin is a pipe that the parent
holds, and that ends however the parent does.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, Self

import attrs
import click
import trio

from warren.actors.io.processes import end_group
from warren.actors.supervision import Restarts, supervised_nursery
from warren.base.values import define, frozen
from warren.transport.cli.process.ending import LEAST, die_of, ends
from warren.transport.cli.process.watchdog import Watchdog
from warren.transport.cli.settings.names import WORKER
from warren.transport.http.crowd import Crowd, shared

LAST_WORDS: Final = 10.0
"""Seconds that workers have to end if the command fails; then they are killed."""

logger: Final = logging.getLogger(__name__)


@frozen
class Seat:
    """The place of a worker among the others, as its parent tells it.

    Attributes:
        number: its number, from 1 on; the worker that takes a dead one's place has the same.
        group: the name of the command among all on the store.
        sockets: the file descriptors of the sockets that all workers accept clients from.
        metrics: those of the sockets for `/metrics` alone.
        counts: that of the file with the counts of the clients.
        workers: number of workers.
    """

    number: int
    group: str
    sockets: tuple[int, ...]
    metrics: tuple[int, ...]
    counts: int
    workers: int

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self | None:
        """Return the seat of this process, and remove it from the environment; None if it is no worker."""
        found = environ.pop(WORKER, None)
        if found is None:
            return None
        number, group, sockets, metrics, counts, workers = json.loads(found)
        return cls(number, group, tuple(sockets), tuple(metrics), counts, workers)

    def in_environment(self) -> dict[str, str]:
        """Return this process's environment with the seat."""
        return {**os.environ, WORKER: json.dumps(attrs.astuple(self))}

    def crowd(self) -> Crowd:
        """Return the counts of the workers' clients."""
        return Crowd.of(self.counts, self.number, self.workers, self.sockets)

    def listeners(self) -> list[trio.SocketListener]:
        """Return the sockets to accept clients from."""
        return _listeners(self.sockets)

    def metrics_listeners(self) -> list[trio.SocketListener]:
        """Return the sockets for `/metrics` alone."""
        return _listeners(self.metrics)

    async def wait_for_parent(self) -> None:
        """Return when the parent has ended."""
        stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        async with stdin:
            while await stdin.receive_some():
                pass


def _listeners(numbers: Sequence[int]) -> list[trio.SocketListener]:
    return [trio.SocketListener(trio.socket.socket(fileno=number)) for number in numbers]


@define(eq=False)
class Workers:
    """The workers of one command.

    Attributes:
        command: starts a worker.
        sockets: the sockets that they accept clients from.
        metrics: the sockets for `/metrics` alone.
        restarts: bounds how often workers are started again.
        signals: how many signals were passed on to them.
    """

    command: Sequence[str]
    sockets: tuple[int, ...]
    metrics: tuple[int, ...]
    restarts: Restarts
    signals: int = 0
    _processes: dict[int, trio.Process] = attrs.field(factory=dict)
    _serving: set[int] = attrs.field(factory=set)
    _counts: int = attrs.field(default=-1, init=False)
    _count: int = attrs.field(default=0, init=False)

    async def run(self, count: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep `count` workers until they were told to end, and have; report when all of them serve.

        Raises:
            click.exceptions.Exit: a worker could not begin; it has said why, and its exit code is the command's.
            click.ClickException: workers died too often.
        """
        self._count = count
        with shared(count) as file:
            self._counts = file.fileno()
            async with supervised_nursery() as nursery:
                # One after the other: the first makes the store, or says what is wrong with the command.
                for number in range(1, self._count + 1):
                    await nursery.start(self._keep, number)
                task_status.started()

    def signal(self, number: int) -> None:
        """Pass a signal on: the first begins the end of each worker, the second kills it."""
        self.signals += 1
        for process in self._processes.values():
            process.send_signal(number)

    def hang_up(self) -> None:
        """Pass a SIGHUP on: each worker reads its files again."""
        for number in self._serving:  # one that only begins does not listen yet, and would die of it
            self._processes[number].send_signal(signal.SIGHUP)

    async def _keep(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        begun = False
        while not self.signals:
            async with self._running(number) as process:
                # Its first line says that it serves.
                if process.stdout is not None and await process.stdout.receive_some():
                    self._serving.add(number)
                    if not begun:
                        begun = True
                        task_status.started()
                code = await process.wait()
            if self._told_to_end():
                break
            if not begun:
                raise click.exceptions.Exit(code)
            if code == 0:  # an operator has asked it to drain
                logger.warning("worker %d has drained and is not started again", number)
                break
            logger.warning("worker %d %s: it is started again", number, _ended(code))
            if not self.restarts.allow(trio.current_time()):
                raise click.ClickException(f"workers died too often; the last one, worker {number}, {_ended(code)}")
        if not begun:
            task_status.started()

    def _told_to_end(self) -> bool:
        return self.signals > 0

    @asynccontextmanager
    async def _running(self, number: int) -> AsyncIterator[trio.Process]:
        """Run a worker for the block. If the block is left before the worker ends, it is told to end."""
        group = f"{socket.gethostname()}-{os.getpid()}"
        seat = Seat(number, group, self.sockets, self.metrics, self._counts, self._count)
        process = await trio.lowlevel.open_process(
            list(self.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(*self.sockets, *self.metrics, self._counts),
            env=seat.in_environment(),
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone, which passes it on once
        )
        self._processes[number] = process
        if self._told_to_end():  # while the process was made
            process.terminate()
        try:
            yield process
        finally:
            # Shielded: a worker that outlives its parent would go on serving the port.
            with trio.CancelScope(shield=True):
                if process.returncode is None:  # else its successor waits for nothing that it has left
                    await end_group(process, LAST_WORDS)
            seat.crowd().leave()
            del self._processes[number]
            self._serving.discard(number)


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


async def run_until_signalled(
    workers: Workers, count: int, seconds: float, *, serving: Callable[[], None], ending: Callable[[], None]
) -> None:
    """Run workers until SIGTERM or SIGINT has ended them, and they are gone within `seconds`.

    `serving` is called once all of them serve, and `ending` at the first signal. Raises as `Workers.run`.
    """
    async with supervised_nursery() as nursery:
        await nursery.start(_pass_on, workers, seconds, ending)
        try:
            async with supervised_nursery() as running:
                await running.start(workers.run, count)
                if not workers.signals:
                    serving()
        finally:
            nursery.cancel_scope.cancel()


async def _pass_on(
    workers: Workers, seconds: float, begun: Callable[[], None], *, task_status: trio.TaskStatus[None]
) -> None:
    async with aclosing(ends(workers.hang_up, task_status)) as numbers:
        async for number in numbers:
            begun()
            workers.signal(number)
            if workers.signals > 1:
                die_of(number)
            Watchdog.of_parent(max(seconds, LEAST)).start()
