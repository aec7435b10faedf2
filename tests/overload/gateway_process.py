"""A gateway as a process of its own, with little room, and watched from outside."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.surfaces.watched import Watched, watched
from tests.transport.cli.process import Cli

ENDLESS = {"chunks": ["on "] * 2, "chunk_delay": 3600}
SHORT = {"chunks": ["well "] * 4, "chunk_delay": 0.005}


@attrs.frozen
class Gateway:
    """The gateway.

    Attributes:
        watched: its process.
        port: where it is.
        store: its store.
        short: the model that ends its answers.
    """

    watched: Watched
    port: int
    store: Path
    short: str


@contextmanager
def small_gateway(
    folder: Path, *, turns: int, connections: int, store: str = "store", more: Sequence[str] = ()
) -> Iterator[Gateway]:
    """Run one for a body, for so many turns and connections at once; it has to be there, faultless, at the end."""
    scripts = Cli(folder)
    models = [scripts.script(step, name=name) for name, step in (("endless.json", ENDLESS), ("short.json", SHORT))]
    args = ["serve", "--port", "0", "--store", store, "--model", models[0], "--max-connections", str(connections)]
    with watched(
        folder, [*args, *more], f'[limits]\nmax_sessions = {turns}\nidle_after = "1s"\n[models."{models[1]}"]\n'
    ) as process:
        port = int(process.running.read_until("\n").rpartition(":")[2])
        yield Gateway(process, port, folder / "store", models[1])
