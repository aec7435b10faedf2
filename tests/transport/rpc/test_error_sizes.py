"""A client that sends a book in the place of a name does not get it back in an error."""

import json
from typing import Any

import httpx
import pytest

from tests.support.runtime import open_runtime
from tests.transport.clients import HOST, connect, gateway
from warren.transport.mcp.client import McpClient
from warren.transport.mcp.mcp_server import Tools

BOOK = "x" * 300_000
BAD: list[dict[str, Any]] = [
    {"prompt": "hi", BOOK: 1},
    {"prompt": "hi", "labels": {BOOK: 1}},
    {"prompt": "hi", "model": BOOK},
    {"prompt": "hi", "budget": {BOOK: 1}},
]


@pytest.mark.parametrize("params", BAD)
async def test_errors_are_short_everywhere(params: dict[str, Any]) -> None:
    """The answer is short on every surface, begins with the field and ends with what is wrong with it."""
    async with open_runtime() as service, gateway(service) as port, connect(port) as client:
        error = await client.error("session/create", **params)
        called = await Tools(service).call("warren_run", params, None, McpClient())
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as http:
            answered = await http.post("/sessions", json=params)
            followed = await http.get(f"/sessions/{BOOK[:9000]}")
    bodies = [error["data"], called.structured_content, answered.json(), followed.json()]
    assert all(len(json.dumps(body)) < 3000 for body in bodies)
    for body in bodies[:3]:
        assert body["code"] == "INVALID_PARAMS"
        assert body["message"].startswith(body["details"]["path"])
        assert not body["message"].endswith("x")


@pytest.mark.parametrize("message", [{"jsonrpc": "2.0", "id": 1, "method": BOOK}, {BOOK: 1, "method": "health"}])
async def test_refusals_are_short(message: dict[str, Any]) -> None:
    """The same for what is no request of a method that is known."""
    async with open_runtime() as service, gateway(service) as port, connect(port) as client:
        await client.raw(json.dumps(message))
        assert len(json.dumps(await client.next())) < 3000
