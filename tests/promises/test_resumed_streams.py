"""A gateway that is killed in the middle of an answer: whoever follows the turn reads on to its end."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import h11
import pytest
import trio

from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_stream, counted, names
from tests.transport.clients import HOST
from tests.transport.rest.clients import events
from warren.calls.facade import SessionService
from warren.client import connect
from warren.conversation import codec
from warren.conversation.events import TERMINAL, Envelope, SessionMoved, TextDelta, TurnResumed
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, UserMessage
from warren.conversation.views import TurnResult

PIECES: Final = [f"piece {number} " for number in range(40)]
SCRIPT: Final = {
    "steps": [
        {"chunks": ["let me ", "see. "], "tool_calls": [{"name": "datetime_now"}]},
        {"chunks": PIECES, "chunk_delay": 0.1},
    ]
}
ANSWER: Final = "".join(PIECES)
ENVIRON: Final = {name: value for name, value in os.environ.items() if not name.startswith("WARREN_")}
SAID: Final = "let me see. " + ANSWER


@attrs.define(eq=False)
class Killed:
    """A gateway at one address that is killed and started again.

    Attributes:
        folder: its folder.
        port: its port.
    """

    folder: Path
    port: int
    _process: trio.Process | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        (self.folder / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
        command = [sys.executable, "-m", "warren", "serve", "--port", str(self.port), "--builtins"]
        command += ["--store", str(self.folder / "store"), "--model", f"scripted:{self.folder / 'script.json'}"]
        process = self._process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, env=ENVIRON)
        assert process.stdout is not None
        assert b"listening" in await process.stdout.receive_some()

    async def kill(self) -> None:
        """Kill it."""
        with trio.CancelScope(shield=True):
            if self._process is not None:
                self._process.kill()
                await self._process.wait()
                assert self._process.stdout is not None
                await self._process.stdout.aclose()


@asynccontextmanager
async def start(command: list[str], **pipes: Any) -> AsyncIterator[trio.Process]:
    """Run a command for a body, at whose end it is killed if it runs."""
    process = await trio.lowlevel.open_process(command, env=ENVIRON, **pipes)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def read(stream: Any, into: bytearray) -> None:
    """Read a pipe up to its end."""
    async with stream:
        async for data in stream:
            into += data


@asynccontextmanager
async def killed(folder: Path) -> AsyncIterator[Killed]:
    """Run a gateway for a body."""
    with socket.create_server((HOST, 0)) as free:
        made = Killed(folder, free.getsockname()[1])
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


async def subscribed(service: SessionService, session_id: str, log: list[Envelope]) -> None:
    """Follow a session by the library for clients, up to the end of a turn."""
    async with service.subscribe(session_id, after_seq=0) as reader:
        async for envelope in reader:
            log.append(envelope)
            if isinstance(envelope.event, TERMINAL):
                return


async def streamed(port: int, session_id: str, log: list[Envelope]) -> None:
    """Follow a session by server-sent events, as a browser does: after each break behind the last event."""
    while True:
        try:
            async with events(port, session_id, last_event_id=str(log[-1].seq if log else 0)) as stream:
                while (event := await stream.next()) is not None:
                    log.append(codec.from_server(Envelope, event.data))
                    if isinstance(log[-1].event, TERMINAL):
                        return
        except (OSError, h11.RemoteProtocolError):
            await trio.sleep(0.05)


async def half_told(log: list[Envelope], lives: int) -> None:
    """Return when a reader was shown some pieces of the answer that a process makes."""
    while sum(isinstance(each.event, TurnResumed) for each in log) < lives or PIECES[5] not in said(counted(log)):  # noqa: ASYNC110 - it has no event
        await trio.sleep(0.01)


def said(log: list[Envelope]) -> str:
    """Return the text that deltas have brought."""
    return "".join(each.event.delta for each in log if isinstance(each.event, TextDelta))


@pytest.mark.time_limit(120)
@pytest.mark.parametrize("kills", [1, 3])
async def test_every_reader_sees_each_kept_event_once_and_the_answer(tmp_path: Path, kills: int) -> None:
    """A subscription, the caller of the turn and a stream over HTTP come back to the next process by themselves."""
    logs: dict[str, list[Envelope]] = {"subscribed": [], "called": [], "streamed": []}
    async with killed(tmp_path) as gateway, connect(gateway.url) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(subscribed, service, session_id, logs["subscribed"])
        nursery.start_soon(streamed, gateway.port, session_id, logs["streamed"])
        turn: Asked[TurnResult] = ask(
            nursery,
            partial(service.start_turn, session_id, "go", mode="queue", on_event=logs["called"].append),
        )
        for lives in range(kills):
            with trio.fail_after(30):
                await half_told(logs["subscribed"], lives)
            await gateway.kill()
            await gateway.start()
        with trio.fail_after(30):
            result = await turn.value()
            while nursery.child_tasks:  # noqa: ASYNC110 - the readers are behind for a moment
                await trio.sleep(0.01)
        messages = [each.message for each in (await service.history(session_id)).messages]
    assert result.text == ANSWER
    assert [type(each) for each in messages] == [UserMessage, AssistantMessage, ToolResultsMessage, AssistantMessage]
    for name, log in logs.items():
        shown = [each for each in log if not isinstance(each.event, SessionMoved)]
        assert_valid_stream(shown)
        resumed = [each.event.resumed for each in shown if isinstance(each.event, TurnResumed)]
        assert resumed == list(range(1, kills + 1)), name
        assert said(counted(shown)) == SAID, name
        assert len(said(shown)) > len(SAID), name
        assert names(counted(shown)).count("tool_execution_completed") == 1, name
        assert log[-1].seq == result.last_seq, name


@pytest.mark.time_limit(120)
async def test_a_command_whose_server_is_killed_shows_the_answer(tmp_path: Path) -> None:
    """The rest of its stream follows a line that says what no longer counts, and it ends as if nothing had been."""
    async with killed(tmp_path) as gateway:
        command = [sys.executable, "-m", "warren", "run", "go", "--stream", "--server", gateway.url]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        async with start(command, **pipes) as process:
            shown, noted = bytearray(), bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, process.stdout, shown)
                nursery.start_soon(read, process.stderr, noted)
                with trio.fail_after(60):
                    while PIECES[5].encode() not in shown:  # noqa: ASYNC110 - it has no event
                        await trio.sleep(0.01)
                    await gateway.kill()
                    await gateway.start()
                    await process.wait()
        assert process.returncode == 0, noted.decode()
        before, after = shown.decode().split("\n\n")[1:]
        assert PIECES[5] in before
        assert after.strip() == ANSWER.strip()
        assert (
            "the turn goes on after an interruption (1); text of an unfinished step no longer counts" in noted.decode()
        )
