"""A progress bar for long work."""

from collections.abc import Iterator
from contextlib import contextmanager

from warren.conversation.memory import Progress
from warren.transport.cli.terminal.streams import Streams


@contextmanager
def bar(streams: Streams, what: str) -> Iterator[Progress | None]:
    """Show a progress bar if stderr is a terminal. A thread draws it, so that the work does not wait for it."""
    if not streams.err.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs rich
    from rich.progress import Progress as Bar  # noqa: PLC0415 - the same

    with Bar(console=Console(file=streams.err)) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
