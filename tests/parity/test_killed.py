"""kill -9 of the process behind a surface, in the middle of a turn: the session goes on under its id.

The command line and HTTP do so in `tests/transport/cli`, the official clients of ACP and Meerkat in their own tests.
"""

import abc
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import pytest
import trio
from trio_websocket import wrap_client_stream

from tests.transport.cli.process import SLOW, Cli, Running
from tests.transport.clients import Client
from tests.transport.stdio.client import Far

Message = dict[str, Any]
HELLO: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "parity", "version": "1"}}


@attrs.frozen
class Piped:
    """A client of a process over its pipes, in the words of the one over a WebSocket."""

    far: Far

    @property
    def seen(self) -> list[Message]:
        """Every message received."""
        return self.far.seen

    async def send(self, method: str, **params: Any) -> int:
        await trio.lowlevel.checkpoint()
        return self.far.send(method, **params)

    async def next(self) -> Message:
        return await trio.to_thread.run_sync(self.far.next)

    async def call(self, method: str, **params: Any) -> Any:
        return await trio.to_thread.run_sync(partial(self.far.call, method, **params))


Talk = Client | Piped


@attrs.frozen
class Words(abc.ABC):
    """How a surface says what this test does.

    Attributes:
        argv: its command.
    """

    argv: tuple[str, ...]

    async def greet(self, talk: Talk) -> None:
        """Say hello."""
        await talk.call("initialize")

    async def create(self, talk: Talk, prompt: str) -> str:
        """Run a new session's first turn; return its id."""
        session_id = (await talk.call("session/create", prompt=prompt))["session_id"]
        assert isinstance(session_id, str)
        return session_id

    def turn(self, session_id: str, prompt: str) -> tuple[str, Message]:
        """Return the request for a turn."""
        return "turn/start", {"session_id": session_id, "prompt": prompt}

    async def take_up(self, talk: Talk, session_id: str) -> None:
        """Do what has to be done for a session in a new process: nothing, its next turn does it."""
        del talk, session_id
        await trio.lowlevel.checkpoint()

    def answer(self, result: Any, talk: Talk) -> str:
        """Return what the model has said in the turn that has just ended."""
        del talk
        return str(result["text"])

    @abc.abstractmethod
    async def asked(self, talk: Talk, session_id: str) -> list[str]:
        """Return what the user has said in the session."""


class Native(Words):
    """Our JSON-RPC."""

    async def asked(self, talk: Talk, session_id: str) -> list[str]:
        entries = (await talk.call("session/history", session_id=session_id))["messages"]
        return [entry["message"]["content"] for entry in entries if entry["message"]["role"] == "user"]


class Rkat(Words):
    """Meerkat's."""

    async def asked(self, talk: Talk, session_id: str) -> list[str]:
        messages = (await talk.call("session/history", session_id=session_id))["messages"]
        return [message["content"] for message in messages if message["role"] == "user"]


class Tools(Words):
    """MCP."""

    async def greet(self, talk: Talk) -> None:
        await talk.call("initialize", **HELLO)

    async def create(self, talk: Talk, prompt: str) -> str:
        made = await talk.call("tools/call", name="warren_run", arguments={"prompt": prompt})
        return str(made["structuredContent"]["session_id"])

    def turn(self, session_id: str, prompt: str) -> tuple[str, Message]:
        arguments = {"session_id": session_id, "prompt": prompt}
        return "tools/call", {"name": "warren_resume", "arguments": arguments, "_meta": {"progressToken": 1}}

    def answer(self, result: Any, talk: Talk) -> str:
        return super().answer(result["structuredContent"], talk)

    async def asked(self, talk: Talk, session_id: str) -> list[str]:
        page = await talk.call("tools/call", name="warren_history", arguments={"session_id": session_id})
        messages = [entry["message"] for entry in page["structuredContent"]["messages"]]
        return [message["content"] for message in messages if message["role"] == "user"]


@attrs.frozen
class Editor(Words):
    """ACP; `again` is how it comes back to a session."""

    again: str = "session/load"
    folder: ClassVar[str] = "/home/ann/house"

    async def greet(self, talk: Talk) -> None:
        await talk.call("initialize", protocolVersion=1)

    async def create(self, talk: Talk, prompt: str) -> str:
        session_id = str((await talk.call("session/new", cwd=self.folder, mcpServers=[]))["sessionId"])
        method, params = self.turn(session_id, prompt)
        assert (await talk.call(method, **params))["stopReason"] == "end_turn"
        return session_id

    def turn(self, session_id: str, prompt: str) -> tuple[str, Message]:
        return "session/prompt", {"sessionId": session_id, "prompt": [{"type": "text", "text": prompt}]}

    async def take_up(self, talk: Talk, session_id: str) -> None:
        await talk.call(self.again, sessionId=session_id, cwd=self.folder, mcpServers=[])

    def answer(self, result: Any, talk: Talk) -> str:
        assert result["stopReason"] == "end_turn"
        return list(_chunks(talk, "agent_message_chunk"))[-1]

    async def asked(self, talk: Talk, session_id: str) -> list[str]:
        del talk.seen[:]
        await talk.call("session/load", sessionId=session_id, cwd=self.folder, mcpServers=[])
        return list(_chunks(talk, "user_message_chunk"))


def _chunks(talk: Talk, kind: str) -> Iterator[str]:
    for message in talk.seen:
        update = message.get("params", {}).get("update", {})
        if update.get("sessionUpdate") == kind:
            yield update["content"]["text"]


@asynccontextmanager
async def talking(running: Running, *, served: bool) -> AsyncIterator[Talk]:
    """Connect to a process."""
    if not served:
        yield Piped(Far(running))
        return
    first = await trio.to_thread.run_sync(running.read_until, "\n")
    assert first.startswith("listening on ")
    host, port = first.strip().rpartition("/")[2].split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
        yield Client(await wrap_client_stream(nursery, stream, host, "/ws"))
        nursery.cancel_scope.cancel()


ROWS: Final = {
    "websocket": Native(("serve", "--port", "0")),
    "mcp": Tools(("mcp",)),
    "acp-resume": Editor(("acp",), "session/resume"),
    "stdio": Native(("rpc",)),
    "meerkat": Rkat(("rpc", "--contract", "0.6")),
    "acp-load": Editor(("acp",)),
}
DAILY: Final = ("websocket", "mcp", "acp-resume")
"""Those that no other test kills in the middle of a turn, or not with these words."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DAILY else pytest.mark.soak, id=name) for name in ROWS]
)
async def test_a_killed_process_loses_the_turn_in_flight_alone(name: str, cli: Cli) -> None:
    """Another process has all that was answered, nothing of the rest, and runs the session's next turn."""
    words = ROWS[name]
    options = ("--store", "kept", "--model", cli.script({"text": "one"}, SLOW))
    victim = cli.start(*words.argv, *options)
    async with AsyncExitStack() as stack:
        talk = await stack.enter_async_context(talking(victim, served=name == "websocket"))
        await words.greet(talk)
        session_id = await words.create(talk, "first")
        method, params = words.turn(session_id, "lost")
        await talk.send(method, **params)
        while '"half "' not in json.dumps(await talk.next()):
            pass
        victim.process.kill()
        assert await trio.to_thread.run_sync(victim.process.wait) == -signal.SIGKILL
    cli.script({"text": "one"}, {"text": "three"})
    heir = cli.start(*words.argv, *options)
    async with talking(heir, served=name == "websocket") as talk:
        await words.greet(talk)
        await words.take_up(talk, session_id)
        method, params = words.turn(session_id, "third")
        assert words.answer(await talk.call(method, **params), talk) == "three"
        assert await words.asked(talk, session_id) == ["first", "third"]
    heir.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(heir.end)).code == 0
