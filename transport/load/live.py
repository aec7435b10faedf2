"""The progress of a run for a person: a table on a terminal, a line now and then elsewhere."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TextIO

import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from warren.transport.load.recorder import PERCENTILES
from warren.transport.load.run import RunProgress

REFRESH: Final = 0.5
LINE_EVERY: Final = 5.0


def table(progress: RunProgress) -> Table:
    """Return the present figures."""
    recorder = progress.recorder
    grid = Table(title=f"{progress.target}: {progress.stage}, {recorder.elapsed:.0f} s", title_justify="left")
    shown_now = numbers(progress)
    for name in shown_now:
        grid.add_column(name, justify="right")
    grid.add_row(*shown_now.values())
    return grid


def numbers(progress: RunProgress) -> dict[str, str]:
    """Return the table of the present figures."""
    recorder = progress.recorder
    last = recorder.series[-1] if recorder.series else None
    latency = recorder.latency.at(*PERCENTILES)
    return {
        "turns": str(recorder.counts["turns"]),
        "running": str(recorder.running),
        "turns/s": "" if last is None else str(last.turns),
        "events/s": "" if last is None else str(last.events),
        "p50 ms": f"{latency[50]:.0f}",
        "p90 ms": f"{latency[90]:.0f}",
        "p99 ms": f"{latency[99]:.0f}",
        "p99.9 ms": f"{latency[99.9]:.0f}",
        "busy": str(recorder.counts["busy"]),
        "errors": ", ".join(f"{code} {count}" for code, count in sorted(recorder.errors.items())) or "0",
        "lag ms": "" if last is None else f"{last.lag:.0f}",
        "checked": f"{progress.checked}/{progress.sessions or progress.plan.sessions}",
        "violations": str(progress.violations),
    }


@asynccontextmanager
async def shown(file: TextIO) -> AsyncIterator[Callable[[RunProgress], None]]:
    """Show a run on a file for a body; yields the function that gets its progress."""
    async with trio.open_nursery() as tasks:
        show = _draw if file.isatty() else _tell

        def watch(progress: RunProgress) -> None:
            tasks.start_soon(show, progress, file)

        yield watch
        tasks.cancel_scope.cancel()


async def _draw(progress: RunProgress, file: TextIO) -> None:
    with Live(table(progress), console=Console(file=file), auto_refresh=False, transient=True) as live:
        while True:
            await trio.sleep(REFRESH)
            live.update(table(progress), refresh=True)


async def _tell(progress: RunProgress, file: TextIO) -> None:
    while True:
        await trio.sleep(LINE_EVERY)
        figures = ", ".join(f"{name} {value}" for name, value in numbers(progress).items() if value)
        file.write(f"{progress.recorder.elapsed:.0f} s, {progress.stage}: {figures}\n")
        file.flush()
