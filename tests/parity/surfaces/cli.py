"""The command line: a process for each call, the store is all that they share."""

import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import attrs

from tests.parity.outcome import Outcome, envelope_of, failed, meaning, said, told, went_well
from tests.parity.surface import COMPACTION_OPTIONS, OPTIONS, SAMPLING, Client, Surface, UnsayableError
from tests.parity.surfaces.argv import COMMANDS, arguments, option_of
from tests.parity.surfaces.shell import Command, Shell, shell
from tests.parity.world import World
from tests.transport.clients import HOST, gateway
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.conversation.views import HistoryEntry

INTERRUPT: Final = "turn/interrupt"


class Cli(Surface):
    """`warren run`, `resume`, `sessions …`."""

    name: ClassVar[str] = "cli"
    column: ClassVar[str | None] = "exit"
    can: ClassVar[frozenset[str]] = frozenset({*COMMANDS, INTERRUPT, OPTIONS, SAMPLING, COMPACTION_OPTIONS})
    unseen: ClassVar[Mapping[str, frozenset[str]]] = {
        "session/history": frozenset({"session_id", "offset", "total", "compactions", "kept_from", "damaged"})
    }
    forks: ClassVar[bool] = True
    per_process: ClassVar[bool] = True

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Open a shell."""
        assert not slow, "a slow reader of a command is another test's business"
        with shell(world.folder) as opened:
            yield _User(world, opened)

    def path(self, path: str | None) -> str | None:
        """Return the path that names the option for a field."""
        return option_of(path)


class ServedCli(Cli):
    """The same commands with `--server`: a part of the table, because their words are those of the surface above."""

    name: ClassVar[str] = "cli-server"
    can: ClassVar[frozenset[str]] = Cli.can - {OPTIONS, SAMPLING, COMPACTION_OPTIONS}
    anywhere: ClassVar[bool] = True
    per_process: ClassVar[bool] = False

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve on a port of its own, and open a shell."""
        assert not slow, "a slow reader of a command is another test's business"
        async with gateway(world.service) as port:
            with shell(world.folder) as opened:
                yield _User(world, opened, f"ws://{HOST}:{port}")


@attrs.define(eq=False)
class _User(Client):
    behind: World
    shell: Shell
    server: str | None = None

    @property
    def world(self) -> World:
        return self.behind

    async def call(self, operation: str, /, **params: Any) -> Outcome:
        if operation == INTERRUPT:
            return await self._interrupt(**params)
        if operation not in COMMANDS:
            raise UnsayableError(f"there is no command for {operation}")
        command = await self.shell.run([*COMMANDS[operation], *arguments(self.world, operation, params, self.server)])
        return _outcome(operation, command)

    async def begun(self) -> None:
        await self.shell.begun()

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        raise UnsayableError(f"{session_id} cannot be followed from {after_seq} to {last}")

    async def _interrupt(self, session_id: object) -> Outcome:
        """Press Ctrl-C in the command that runs, or end the turn at the server."""
        if not self.shell.running:
            if self.server is None:
                raise UnsayableError("there is nothing to press Ctrl-C in")
            argv = ["sessions", "interrupt", "--output=json", f"--server={self.server}", "--", str(session_id)]
            return _outcome("session/archive", await self.shell.run(argv))
        (command,) = self.shell.running
        command.signal(signal.SIGINT)
        await command.ended.wait()
        return Outcome()


def _outcome(operation: str, command: Command) -> Outcome:
    lines = command.lines()
    events = [envelope_of(line) for line in lines if "event" in line]
    rest = [line for line in lines if "event" not in line]
    if command.process.returncode:
        assert command.out.read_bytes() == b"", command.out.read_text()
        return failed(rest[-1], command.process.returncode, events)
    assert rest == [], rest
    return _answered(operation, json.loads(command.out.read_bytes()), events)


def _answered(operation: str, data: Any, events: list[Envelope]) -> Outcome:
    """Return what a command that went well has written, as the other surfaces show it."""
    match operation:
        case "session/read":
            return went_well(meaning(operation, {"state": data["state"], "billing": data["billing"]}))
        case "session/history":
            entries = [codec.from_data(HistoryEntry, entry) for entry in data["messages"]]
            found = {"messages": tuple(entries), "said": said(entry.message for entry in entries)}
            return told(Outcome(data=found), events)
        case "session/archive" | "session/delete":
            return went_well({name: value for name, value in data.items() if name != "session_id"})
        case "session/compact":
            return went_well(meaning(operation, {name: data[name] for name in data if name != "session_id"}))
    return went_well(meaning(operation, data), events)
