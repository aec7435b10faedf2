"""Servers of the command line, in processes of their own, whose turns wait for approval of a command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from tests.support.asking import ask
from tests.transport.cli.process import Cli, Running
from tests.transport.cli.serving import serve
from warren.client import RemoteService, connect

SETTINGS: Final = """
[storage]
lease = "2s"
[tools]
shell = true
"""
STEPS: Final = ({"tool_calls": [{"name": "shell", "args": {"command": "echo ran >> ran"}}]}, {"text": "it has run"})


@attrs.define(eq=False)
class Servers:
    """Servers on one store, in processes of their own.

    Attributes:
        cli: runs them.
        place: the store.
        model: the model that they have.
    """

    cli: Cli
    place: str
    model: str

    @classmethod
    def of(cls, cli: Cli, place: str) -> "Servers":
        """Prepare a folder in which servers run."""
        (cli.folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
        return cls(cli, place, cli.script(*STEPS))

    @asynccontextmanager
    async def serving(
        self, *flags: str, env: dict[str, str] | None = None
    ) -> AsyncIterator[tuple[Running, RemoteService]]:
        """Run a server; yield it and a client of it."""
        settings = (
            "--config",
            "settings.toml",
            "--store",
            self.place,
            "-m",
            self.model,
            "--ask",
            "shell",
            "--root",
            ".",
        )
        running, url = await trio.to_thread.run_sync(partial(serve, self.cli, *settings, *flags, env=env))
        async with connect(url, patience=1) as service:
            yield running, service

    @property
    def runs(self) -> int:
        """How often the command has run."""
        ran = self.cli.folder / "ran"
        return len(ran.read_text().splitlines()) if ran.exists() else 0


async def waits(service: RemoteService, session_id: str) -> str:
    """Return the id of the call for which a turn waits, once it does."""
    with trio.fail_after(30):
        while True:
            state = (await service.read(session_id)).state
            if state.turn is not None and state.turn.state == "waiting" and state.pending_approvals:
                return state.pending_approvals[0].call_id
            await trio.sleep(0.05)


async def begin(service: RemoteService, key: str = "one") -> str:
    """Begin a turn that waits for approval, and go; return its session."""
    session_id = (await service.create_session(None)).session_id
    async with trio.open_nursery() as nursery:
        ask(nursery, partial(service.start_turn, session_id, "run it", mode="queue", idempotency_key=key))
        await waits(service, session_id)
        nursery.cancel_scope.cancel()
    return session_id


async def end(running: Running) -> int:
    """Wait for the end of a server; return its exit code."""
    return (await trio.to_thread.run_sync(running.end)).code
