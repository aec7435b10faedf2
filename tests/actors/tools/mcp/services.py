"""A web service as strict as those of the official SDKs, which refuses what a test says."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from tests.transport.providers.byte_server import Request, serve, status

NAMED: Final = {"name": "web", "version": "1"}
FORBIDDEN: Final = status(403, {"error": "insufficient_scope"}, WWW_Authenticate='Bearer error="insufficient_scope"')


def tool(name: str, **hints: bool) -> dict[str, Any]:
    """Return the definition of a tool."""
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}


TOOLS: Final = [tool("hop"), tool("look", readOnlyHint=True), tool("put", idempotentHint=True), tool("wait")]


def empty(code: int, **headers: str) -> bytes:
    """Return an answer without a body."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {code} Answer\r\ncontent-length: 0\r\n{named}\r\n".encode()


def failed(code: int, message: str, number: object = None) -> dict[str, Any]:
    """Return an error of the protocol, by default as one that is sent before the id of the request is known."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


@attrs.define(eq=False)
class Service:
    """The service, and what became of it.

    Attributes:
        lost: the answer to a request in a session that it does not know; it is given the request's id.
        refuse: returns the answer to a message that is refused, or None; it is asked first.
        tools: the definitions of its tools.
        known: its sessions; none after a restart.
        opened: how many sessions it has had.
        ran: the names of the tools that have run.
        waiting: set when `wait` has begun.
        release: lets `wait` end.
    """

    lost: Callable[[object], bytes]
    refuse: Callable[[dict[str, Any]], bytes | None] = lambda _: None
    tools: Sequence[dict[str, Any]] = TOOLS
    known: set[str] = attrs.field(factory=set)
    opened: int = 0
    ran: list[str] = attrs.field(factory=list)
    waiting: trio.Event = attrs.field(factory=trio.Event)
    release: trio.Event = attrs.field(factory=trio.Event)

    async def answer(self, request: Request, stream: trio.SocketStream) -> None:
        """Answer one request."""
        said: dict[str, Any] = request.body or {}
        number, method = said.get("id"), said.get("method")
        if method is None:  # it has no stream of its own messages, and does not end sessions
            await stream.send_all(empty(405))
        elif (refused := self.refuse(said)) is not None:
            await stream.send_all(refused)
            if not refused:
                await stream.aclose()
        elif method == "initialize":
            self.opened += 1
            session = f"session-{self.opened}"
            self.known.add(session)
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": NAMED}
            await stream.send_all(
                status(200, {"jsonrpc": "2.0", "id": number, "result": result}, Mcp_Session_Id=session)
            )
        elif request.headers.get("mcp-session-id") not in self.known:
            await stream.send_all(self.lost(number))
        elif number is None:
            await stream.send_all(empty(202))
        else:
            result = await self._result(method, request)
            await stream.send_all(status(200, {"jsonrpc": "2.0", "id": number, "result": result}))

    async def _result(self, method: str, request: Request) -> dict[str, Any]:
        if method != "tools/call":
            return {"tools": self.tools} if method == "tools/list" else {}
        return {"content": [{"type": "text", "text": await self.run(request)}]}

    async def run(self, request: Request) -> str:
        """Run a tool, and return its result."""
        name = request.body["params"]["name"]
        self.ran.append(name)
        if name == "wait":
            self.waiting.set()
            await self.release.wait()
        return f"{name} done"

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve for a body; yield the address."""
        async with serve(self.answer) as url:
            yield f"{url}/mcp"


def is_call(said: dict[str, Any]) -> bool:
    """Tell whether a message calls a tool."""
    return bool(said["method"] == "tools/call")
