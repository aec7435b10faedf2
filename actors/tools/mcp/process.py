"""A server that is a child process, with one message a line on its standard streams; its whole process group is ended.

The official client does not end the children of a server that has ended by itself; here they are ended in each case.
"""

import json
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
import attrs
import mcp_types as types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from warren.actors.io.processes import end_group
from warren.actors.io.streams import GONE, LineReader, LineTooLongError
from warren.actors.tools.mcp.offers import mended
from warren.actors.tools.mcp.pace import Pace, ServerGoneError
from warren.actors.tools.mcp.values import LARGE, has_too_many, refusal
from warren.base.values import define
from warren.settings.tool_config import McpServer

INHERITED: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)
"""The variables of this process's environment that a server gets."""
MAX_LINE: Final = 16 * 1024 * 1024
BACKLOG: Final = 1_000
"""Messages that may wait for a server that does not read; then callers wait."""
TAIL: Final = 2_000
"""Bytes of the end of stderr that are kept for the error message."""
DRAIN: Final = 0.25
"""Seconds to wait for the rest of the output after the end: its children may hold the pipes open."""
REST: Final = 0.005
"""Seconds between two reads of stderr: a server that writes without end is read in few large parts."""
ANSWERS: Final = (types.JSONRPCResponse, types.JSONRPCError)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]

logger: Final = logging.getLogger(__name__)


@asynccontextmanager
async def open_process(server: McpServer, pace: Pace) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Start a server for a body, yield its streams of messages, and end it afterwards.

    If the server ends first, or floods its `pace`, the body is cancelled and ServerGoneError is raised in a group.
    """
    process = await _start(server)
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_server = anyio.create_memory_object_stream[SessionMessage](BACKLOG)
    pipes = _Pipes(process, pace)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipes.read, to_session)
            nursery.start_soon(pipes.write, to_server)
            nursery.start_soon(pipes.listen)
            nursery.start_soon(pipes.watch)
            nursery.start_soon(pace.watch)
            yield incoming, outgoing
            nursery.cancel_scope.cancel()
    finally:
        for stream in (to_session, incoming, outgoing, to_server):
            stream.close()
        # Shielded: leaving the body by cancellation has to end the process too.
        with trio.CancelScope(shield=True):
            await end(process, server.stop_timeout)


def environment(given: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: a few of this process's variables, no API key, and its configured ones."""
    return {name: value for name, value in ours.items() if name in INHERITED} | dict(given)


async def _start(server: McpServer) -> trio.Process:
    assert server.command is not None  # noqa: S101 - for the type checker
    try:
        return await trio.lowlevel.open_process(
            [server.command, *server.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(server.env, os.environ),
            cwd=server.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        raise ServerGoneError(f"cannot be started: {exc}") from exc


@define(eq=False)
class _Pipes:
    """The standard streams of a process."""

    process: trio.Process
    pace: Pace
    _stderr: bytes = b""
    _silent: trio.Event = attrs.field(factory=trio.Event)
    _read: trio.Event = attrs.field(factory=trio.Event)
    _refused: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Forward the server's messages; other lines that it prints are skipped."""
        assert self.process.stdout is not None  # noqa: S101 - for the type checker
        lines = LineReader(self.process.stdout, MAX_LINE)
        with _bounded(), suppress(*GONE, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while (line := await lines.next()) is not None:
                found = await _bounded_messages(line)
                if not found:
                    await self.pace.lines(1, len(line))
                for message in found:
                    await self.pace.message(len(line), answers=isinstance(message, ANSWERS))
                    await to_session.send(SessionMessage(mended(message)))
        self._read.set()

    async def write(self, to_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send the client's messages from one task, because a send that is cancelled would break a line."""
        assert self.process.stdin is not None  # noqa: S101 - for the type checker
        try:
            async for item in to_server:
                self.pace.asked += isinstance(item.message, types.JSONRPCRequest)
                await self.process.stdin.send_all(_line(item.message))
        except GONE:
            self._refused.set()

    async def listen(self) -> None:
        """Read all of stderr, because a full pipe would block the server, and keep its end."""
        assert self.process.stderr is not None  # noqa: S101 - for the type checker
        with suppress(*GONE):
            async for data in self.process.stderr:
                self._stderr = (self._stderr + bytes(data))[-TAIL:]
                await trio.sleep(REST)
        self._silent.set()

    async def watch(self) -> None:
        """Raise ServerGoneError when the server has ended or closed one of its streams."""
        async with trio.open_nursery() as nursery:
            for wait in (self.process.wait, self._read.wait, self._refused.wait):
                nursery.start_soon(_first, wait, nursery.cancel_scope)
        with trio.move_on_after(DRAIN):
            await self.process.wait()
            await self._read.wait()
            await self._silent.wait()
        raise ServerGoneError(self._why())

    def _why(self) -> str:
        code = self.process.returncode
        why = "has closed its input or output" if code is None else f"has ended with {_status(code)}"
        stderr = self._stderr.decode(errors="replace").strip()
        return f"{why}: {stderr}" if stderr else why


async def _first(wait: Any, scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


def _status(code: int) -> str:
    return f"status {code}" if code >= 0 else f"signal {-code}"


@contextmanager
def _bounded() -> Iterator[None]:
    """Give up a server that sent too long a message: the call that it answers is unknown, so all calls must fail."""
    try:
        yield
    except LineTooLongError as exc:
        raise ServerGoneError(f"sent too long a message: {exc}") from exc


async def _bounded_messages(line: bytes) -> Sequence[types.JSONRPCMessage]:
    """Return the message in a line, or the error in place of an answer that has too many values."""
    if len(line) < LARGE or not await trio.to_thread.run_sync(has_too_many, line):
        return _messages(line)
    logger.warning("an MCP server's message of %d bytes has too many values: it is left out", len(line))
    refused = refusal(line)
    return () if refused is None else (refused,)


def _messages(line: bytes) -> Sequence[types.JSONRPCMessage]:
    """Return the message in a line; none if the line is another one, such as a stray print."""
    if not line.strip():
        return ()
    try:
        return (types.jsonrpc_message_adapter.validate_json(line, by_name=False),)
    except ValueError:
        found = tuple(_odd_messages(line))
    if not found:
        logger.debug("an MCP server's line is no message: %r", line[:200])
    return found


def _odd_messages(line: bytes) -> Iterator[types.JSONRPCMessage]:
    """Yield the messages of a line that is not quite one.

    Those are several messages at once, texts with half a character, and an answer that is none: it becomes an error, so
    that its call ends.
    """
    try:
        found = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return
    for each in found if isinstance(found, list) else (found,):
        if not isinstance(each, dict) or "jsonrpc" not in each:
            continue
        try:
            whole = json.dumps(each, ensure_ascii=False).encode(errors="replace")
            yield types.jsonrpc_message_adapter.validate_json(whole, by_name=False)
        except ValueError:
            number = each.get("id")
            if "method" not in each and type(number) in {int, str}:
                problem = types.ErrorData(code=types.INTERNAL_ERROR, message="its answer is no valid message")
                yield types.JSONRPCError(jsonrpc="2.0", id=number, error=problem)


def _line(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


async def end(process: trio.Process, patience: float) -> None:
    """End a process and its children: close its input, then SIGTERM, then SIGKILL, with a wait after each.

    Children that have left the process group are not ended.
    """
    streams = (process.stdin, process.stdout, process.stderr)
    if process.stdin is not None:
        await process.stdin.aclose()
    with trio.move_on_after(patience):
        await process.wait()
    await end_group(process, patience)
    for stream in streams:
        if stream is not None:
            await stream.aclose()
