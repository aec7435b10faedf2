"""Surfaces that are spoken in lines: JSON-RPC in both dialects, MCP and ACP over the pipes of a process."""

import itertools
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from tests.surfaces.good_requests import ACP, HELLO, JSONRPC, MCP, MEERKAT, SESSION, request
from tests.surfaces.noise import Noise
from tests.surfaces.watched import Watched
from tests.transport.cli.process import LIMIT
from warren.actors.io.streams import LineReader

BATCH: Final = 50
FAREWELL: Final = (request("session/archive", {"session_id": SESSION}), request("session/unwatch", {}))
"""Ends what follows a session and the list, as a client does that stays connected; those that cannot refuse it."""
STORED: Final = ("--store", "kept", "--model", "echo")


@attrs.frozen
class Spoken:
    """A way to speak in lines.

    Attributes:
        args: of the command.
        examples: requests that noise is made of.
        hello: requests that come first.
        turns: requests that run a turn; each makes its params of the result of the one before.
        ping: a method that is answered at once.
        said: what the last of the turn's results says where all is well.
    """

    args: tuple[str, ...]
    examples: Sequence[Any]
    hello: Sequence[tuple[str, Any]]
    turns: Sequence[Callable[[Any], tuple[str, Any]]]
    ping: tuple[str, Any]
    said: Callable[[Any], bool]
    session: Callable[[Any], str]


def _first(_: object) -> tuple[str, Any]:
    return "session/create", {"prompt": "hi"}


def _tool(_: object) -> tuple[str, Any]:
    return "tools/call", {"name": "warren_run", "arguments": {"prompt": "hi"}}


def _new(_: object) -> tuple[str, Any]:
    return "session/new", {"cwd": "/home/ann", "mcpServers": []}


def _prompt(made: Any) -> tuple[str, Any]:
    return "session/prompt", {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "hi"}]}


_ACP_HELLO: Final = ("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
STDIO: Final = Spoken(
    ("rpc",), JSONRPC, (), (_first,), ("health", {}), lambda it: it["text"] == "hi", lambda it: it["session_id"]
)
OLD: Final = attrs.evolve(STDIO, args=("rpc", "--contract", "0.6"), examples=MEERKAT, ping=("capabilities/get", {}))
TOOLS: Final = Spoken(
    ("mcp",),
    MCP,
    (("initialize", HELLO),),
    (_tool,),
    ("ping", {}),
    lambda it: it["structuredContent"]["text"] == "hi",
    lambda it: it["structuredContent"]["session_id"],
)
AGENT: Final = Spoken(
    ("acp",), ACP, (_ACP_HELLO,), (_new, _prompt), _ACP_HELLO, lambda it: it["stopReason"] == "end_turn", lambda _: ""
)
SPOKEN: Final = {"stdio": STDIO, "meerkat": OLD, "mcp": TOOLS, "acp": AGENT}


@attrs.define
class Lines:
    """A client of such a process that says what no client should.

    Attributes:
        spoken: how it speaks.
        sink: the process's stdin.
        source: its stdout.
    """

    spoken: Spoken
    sink: trio.abc.SendStream
    source: LineReader
    _numbers: "itertools.count[int]" = attrs.field(factory=itertools.count)
    _replies: deque[Any] = attrs.field(factory=deque)

    async def feed(self, noise: Noise, count: int) -> None:
        """Say so many odd things; each batch has a session to be about, and is over once a good request is answered."""
        for start in range(0, count, BATCH):
            session = (await self.session()).encode()
            odd = [noise.message(self.spoken.examples) for _ in range(min(BATCH, count - start))]
            farewell = [json.dumps(each).encode() for each in FAREWELL]
            for lines in (odd, farewell):  # apart, as requests run at once: a watch would begin behind its own end
                before = [line.replace(SESSION.encode(), session) for line in lines]
                await self.request(*self.spoken.ping, before=before)

    async def session(self) -> str:
        """Return the id of a new session that has had a turn."""
        made: Any = None
        session_id = ""
        for turn in self.spoken.turns:
            made = await self.request(*turn(made))
            session_id = session_id or made.get("sessionId", "") or self.spoken.session(made)
        assert self.spoken.said(made), made
        return session_id

    async def request(self, method: str, params: Any, before: Sequence[bytes] = ()) -> Any:
        """Send a request, behind other lines, and return its result; everything that comes is looked at."""
        number = f"ours-{next(self._numbers)}"
        data = b"".join(line + b"\n" for line in (*before, json.dumps(request(method, params, number)).encode()))
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.sink.send_all, data)
                while (message := await self._next()).get("id") != number:
                    pass
        return message["result"]

    async def _next(self) -> dict[str, Any]:
        while not self._replies:
            line = await self.source.next()
            assert line is not None, "the output ended"
            message = json.loads(line)
            self._replies.extend(message if isinstance(message, list) else [message])  # those to a batch
        message = self._replies.popleft()
        check(message)
        return dict(message)


def check(message: Any) -> None:
    """Check that a message is one of the protocol, and no error of it is the server's own fault."""
    assert message["jsonrpc"] == "2.0", message
    text = json.dumps(message)
    assert "internal error" not in text, message
    assert "Traceback" not in text, message


@asynccontextmanager
async def speaking(name: str, process: Watched) -> AsyncIterator[Lines]:
    """Speak with a process for a body."""
    popen = process.running.process
    assert popen.stdin is not None
    assert popen.stdout is not None
    async with (
        trio.lowlevel.FdStream(os.dup(popen.stdin.fileno())) as sink,
        trio.lowlevel.FdStream(os.dup(popen.stdout.fileno())) as source,
    ):
        client = Lines(SPOKEN[name], sink, LineReader(source, 2**30))
        for method, params in (*client.spoken.hello, client.spoken.ping):
            await client.request(method, params)
        yield client
