"""MCP servers that a client names for its sessions."""

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio

from tests.support.runtime import open_runtime
from tests.transport.acp.client import connect
from warren.base.errors import InvalidParamsError
from warren.settings.tool_config import McpServer

FILES = {"name": "my files", "command": "/bin/files", "args": [], "env": []}
WEB = {"type": "http", "name": "web", "url": "https://mcp.example/", "headers": []}


@attrs.define(eq=False)
class Tools:
    """A connector to servers, in a test's hand.

    Attributes:
        has: the servers of each session by their names.
        log: what was asked for, in order.
        error: raised by `add_servers`.
    """

    has: dict[str, list[str]] = attrs.field(factory=dict)
    log: list[str] = attrs.field(factory=list)
    error: InvalidParamsError | None = None

    async def add_servers(self, session_id: str, servers: Sequence[McpServer]) -> None:
        await trio.lowlevel.checkpoint()
        self.log.append("add")
        if self.error is not None:
            raise self.error
        self.has.setdefault(session_id, []).extend(server.name for server in servers)

    async def drop_servers(self, session_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self.log.append("drop")
        self.has.pop(session_id, None)


async def test_a_session_has_the_servers_of_its_last_request(tmp_path: Path) -> None:
    """They come with each way to open it, are not connected to again where nothing changed, and go with the client."""
    tools = Tools()
    async with open_runtime(store=tmp_path) as service:
        async with connect(service, tools=tools) as client:
            hello = await client.call("initialize", protocolVersion=1)
            assert hello.data["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": False}
            new = (await client.call("session/new", cwd="/a", mcpServers=[FILES])).data["sessionId"]
            assert tools.has == {new: ["my_files"]}
            await client.call("session/load", sessionId=new, cwd="/a", mcpServers=[FILES])
            assert tools.log == ["add"]
            await client.call("session/resume", sessionId=new, cwd="/a", mcpServers=[WEB])
            assert tools.has == {new: ["web"]}
            fork = (await client.call("session/fork", sessionId=new, cwd="/a", mcpServers=[FILES])).data["sessionId"]
            assert tools.has == {new: ["web"], fork: ["my_files"]}
            await client.call("session/close", sessionId=new)
            assert tools.has == {fork: ["my_files"]}
            await client.call("session/resume", sessionId=new, cwd="/a")
            await client.call("session/delete", sessionId=new)
        assert tools.has == {}


async def test_servers_that_cannot_be_had_cost_no_session(caplog: pytest.LogCaptureFixture) -> None:
    """The session is there without them, and the log says why; so it does where nothing connects to servers at all."""
    tools = Tools(error=InvalidParamsError("an extra is missing", path="$.mcp_servers"))
    async with open_runtime() as service:
        for given, problem in ((tools, "an extra is missing"), (None, "its MCP servers are ignored")):
            async with connect(service, tools=given) as client:
                opened = await client.call("session/new", cwd="/a", mcpServers=[FILES])
                assert (await client.prompt(opened.data["sessionId"], "go")).stop_reason == "end_turn"
            assert problem in caplog.text
            caplog.clear()


async def test_a_bad_server_makes_no_session() -> None:
    """It is refused by its field before anything exists."""
    tools = Tools()
    async with open_runtime() as service, connect(service, tools=tools) as client:
        refused = await client.call("session/new", cwd="/a", mcpServers=[FILES, {**WEB, "type": "sse"}])
        assert refused.data["data"]["details"]["path"] == "$.mcpServers[1].type"
        assert (tools.log, (await service.list()).sessions) == ([], ())
