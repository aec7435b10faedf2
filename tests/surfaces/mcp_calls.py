"""Calls of `/mcp` as they are on the wire."""

import json
from collections.abc import Mapping
from typing import Any, Final

import httpx

from tests.surfaces.good_requests import request

MCP: Final = "application/json, text/event-stream"
INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}


async def over_mcp(http: httpx.AsyncClient, name: str, params: Mapping[str, Any]) -> Any:
    """Return the answer to a call of a tool, or to another request."""
    message = request(name, params) if "/" in name else request("tools/call", {"name": name, "arguments": params})
    answer = await http.post("/mcp", json=message)
    (line,) = [line for line in answer.text.splitlines() if line.startswith("data: {")] or [f"data: {answer.text}"]
    return json.loads(line.removeprefix("data: "))


async def open_mcp(http: httpx.AsyncClient) -> None:
    """Open an MCP session for the calls of a client."""
    http.headers["Accept"] = MCP
    opened = await http.post("/mcp", json=INITIALIZE)
    assert opened.status_code == 200, opened.text
    http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
    await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
