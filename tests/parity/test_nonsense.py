"""Messages that are no requests: all that speak JSON-RPC refuse them alike, and HTTP in its own words."""

import json
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.parity.outcome import failed
from tests.parity.surface import Client, Surface
from tests.parity.surfaces import SURFACES
from tests.parity.surfaces.wire import Wire
from tests.parity.world import BUILDS, Setting, World
from warren.base.errors import ErrorCode
from warren.transport.rpc.jsonrpc import NAMES

PARSE, REQUEST, METHOD, PARAMS = -32700, -32600, -32601, -32602
DEEP: Final = b"[" * 200 + b"]" * 200
NONSENSE: Final[tuple[tuple[bytes, int | None, int, str], ...]] = (
    (b"hello", None, PARSE, "$"),
    (b'{"jsonrpc": "2.0", "id": 901, "method": ', None, PARSE, "$"),
    (b'{"jsonrpc": "2.0", "id": 901, "method": "\\ud800"}', None, PARSE, "$"),
    (b'{"jsonrpc": "2.0", "id": 901, "method": "x", "params": ' + DEEP + b"}", None, PARSE, "$"),
    (b"[]", None, REQUEST, "$"),
    (b'"hello"', None, REQUEST, "$"),
    (b"{}", None, REQUEST, "$.jsonrpc"),
    (b'{"jsonrpc": "1.0", "id": 902, "method": "initialize"}', 902, REQUEST, "$.jsonrpc"),
    (b'{"jsonrpc": "2.0", "id": null, "method": "initialize"}', None, REQUEST, "$.id"),
    (b'{"jsonrpc": "2.0", "id": [1], "method": "initialize"}', None, REQUEST, "$.id"),
    (b'{"jsonrpc": "2.0", "id": 903, "method": 5}', 903, REQUEST, "$.method"),
    (b'{"jsonrpc": "2.0", "id": 904, "method": "initialize", "more": 1}', 904, REQUEST, "$.more"),
)
"""A message, the id of its reply, the number and the path of the error."""
UNKNOWN: Final = (b'{"jsonrpc": "2.0", "id": 905, "method": "session/explode"}', 905, METHOD, "$.method")
JSONRPC: Final = {"websocket", "stdio", "meerkat", "mcp", "acp"}
SPEAK_JSONRPC: Final = [surface for surface in SURFACES if surface.name in JSONRPC]
REST: Final = next(surface for surface in SURFACES if surface.name == "rest")
JSON: Final = {"content-type": "application/json"}
OVER_HTTP: Final[tuple[tuple[str, str, dict[str, Any], int, str], ...]] = (
    ("POST", "/sessions", {"content": b"hello", "headers": JSON}, 400, "$"),
    ("POST", "/sessions", {"content": DEEP, "headers": JSON}, 400, "$"),
    (
        "POST",
        "/sessions",
        {"content": b'{"prompt": "\\ud800"}', "headers": JSON},
        400,
        "$",
    ),
    ("POST", "/sessions", {"json": []}, 422, "$"),
    ("POST", "/sessions", {"data": {"prompt": "hi"}}, 415, "$.headers.content-type"),
    ("POST", "/sessions?prompt=hi", {}, 422, "$.query"),
    ("PUT", "/sessions", {"json": {}}, 405, "$.method"),
    ("GET", "/session", {}, 404, "$.path"),
    ("GET", "/sessions?limit=5&limit=6", {}, 422, "$.limit"),
)


def world_of(folder: Path) -> World:
    """Return a world with everything on."""
    return World(BUILDS[-1], Setting(), folder)


@pytest.mark.parametrize("surface", SPEAK_JSONRPC, ids=lambda surface: surface.name)
async def test_what_is_no_request(surface: Surface, tmp_path: Path) -> None:
    """Each gets JSON-RPC's own number and name in our body, under its id if it has one; the next call is answered."""
    world = world_of(tmp_path)
    async with world.running(), surface.connect(world) as client:
        wire = wire_of(client)
        for message, request_id, number, path in NONSENSE:
            reply = await wire.raw(message, request_id)
            error = reply.message["error"]
            assert (error["code"], error["data"]["code"]) == (number, NAMES[number]), message
            assert (error["data"]["retryable"], error["data"]["details"]) == (False, {"path": path}), message
        assert (await client.first_turn("hi")).code is None


@pytest.mark.parametrize("surface", SPEAK_JSONRPC, ids=lambda surface: surface.name)
async def test_an_unknown_method(surface: Surface, tmp_path: Path) -> None:
    """It is told from bad parameters by its number; for MCP the official library answers, without a body of ours."""
    world = world_of(tmp_path)
    async with world.running(), surface.connect(world) as client:
        message, request_id, number, path = UNKNOWN
        error = (await wire_of(client).raw(message, request_id)).message["error"]
        assert error["code"] == number
        if surface.name != "mcp":
            assert (error["data"]["code"], error["data"]["details"]) == (NAMES[number], {"path": path})


async def test_what_is_no_request_over_http(tmp_path: Path) -> None:
    """Each gets a status of HTTP's own with our body, and the next request is answered."""
    world = world_of(tmp_path)
    async with world.running(), REST.connect(world) as client:
        http = client.http  # type: ignore[attr-defined]
        assert isinstance(http, httpx.AsyncClient)
        for verb, target, more, status, path in OVER_HTTP:
            response = await http.request(verb, target, **more)
            outcome = failed(json.loads(response.content), response.status_code)
            assert (outcome.code, outcome.number, outcome.path) == (ErrorCode.INVALID_PARAMS, status, path), target
        assert (await client.first_turn("hi")).code is None


def wire_of(client: Client) -> Wire:
    """Return the connection of a client that speaks JSON-RPC."""
    wire = client.wire  # type: ignore[attr-defined]
    assert isinstance(wire, Wire)
    return wire
