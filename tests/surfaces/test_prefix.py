"""A gateway below a path: every route, page and address, whether the proxy in front takes the path away or not."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fake_service import FakeService
from tests.surfaces.routes import ALL, VALUES, answered
from tests.transport.clients import HOST, gateway
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import config
from tests.transport.rest.clients import client
from warren.client import connect

PUBLIC = "https://warren.example/at/home"
PREFIX = "/at/home"
WAYS = pytest.mark.parametrize("below", [PREFIX, ""])
"""The path of a request as the gateway gets it: whole, or without the part that the proxy has taken away."""


async def test_all_routes_below_a_path() -> None:
    """Each route is answered below the path of the public address as it is without, and not below another one."""
    settings = {"public_url": PUBLIC}
    async with (
        gateway(FakeService(), **settings) as port,
        gateway(FakeService()) as without,
        client(port, Accept="text/html") as http,
        client(without, Accept="text/html") as plain,
    ):
        for verb, path in ALL:
            whole, taken, usual = (path.format(session_id=each, **VALUES) for each in ("s1", "s2", "s3"))
            expected = await answered(plain, verb, usual or "/")
            assert await answered(http, verb, PREFIX + whole) == expected, path
            assert await answered(http, verb, taken or "/") == expected, path
            assert (await answered(http, verb, "/elsewhere" + whole))[0] == 404, path
            assert (await answered(http, verb, f"{PREFIX}s{whole}"))[0] == 404, path


@WAYS
async def test_the_addresses_in_answers(below: str, tmp_path: Path) -> None:
    """A location, a redirection, the OpenAPI document and the metadata of OAuth lead below the public address."""
    jwt = config(tmp_path)
    async with runtime() as service, gateway(service, public_url=PUBLIC + "/") as port, client(port) as http:
        made = await http.post(f"{below}/sessions", json={"prompt": None})
        assert made.headers["location"] == f"{PREFIX}/sessions/{made.json()['session_id']}"
        document = (await http.get(f"{below}/openapi.json")).json()
        assert document["servers"] == [{"url": PUBLIC}]
        for path in ("/", "/console"):
            led = await http.get(below + path, headers={"Accept": "text/html"})
            assert (led.status_code, str(httpx.URL(PUBLIC + path).join(led.headers["location"]))) == (
                307,
                PUBLIC + "/console/",
            )
        led = await http.get(PREFIX, headers={"Accept": "text/html"})
        assert (led.status_code, str(httpx.URL(PUBLIC).join(led.headers["location"]))) == (307, PUBLIC + "/console/")
    async with runtime() as service, gateway(service, public_url=PUBLIC, jwt=jwt) as port, client(port) as http:
        refused = await http.post(f"{below}/mcp", json={})
        found = re.search(r'resource_metadata="([^"]*)"', refused.headers["www-authenticate"])
        assert found is not None
        assert found[1] == f"{PUBLIC}/.well-known/oauth-protected-resource/mcp"
        # A client that goes by RFC 9728 alone looks for them in front of the path.
        for at in (found[1].replace(PUBLIC, below), f"/.well-known/oauth-protected-resource{PREFIX}/mcp"):
            metadata = (await http.get(at)).json()
            assert metadata["resource"] == f"{PUBLIC}/mcp"


@pytest.mark.parametrize("path", ["/", "/console"])
async def test_a_redirection_below_a_path_that_nobody_has_told(path: str) -> None:
    """Without a public address the way to the console is relative: it stays below the path of the request."""
    async with gateway(FakeService()) as port, client(port) as http:
        led = await http.get(path, headers={"Accept": "text/html"})
        assert str(httpx.URL(PUBLIC + path).join(led.headers["location"])) == PUBLIC + "/console/"


async def test_clients_below_a_path() -> None:
    """The client takes the address of the gateway below a path, with a slash or without, and that of its WebSocket."""
    async with runtime() as service, gateway(service, public_url=PUBLIC) as port:
        for path in (PREFIX, PREFIX + "/", PREFIX + "/ws", "", "/", "/ws", "/ws/"):
            for scheme in ("http", "ws"):
                async with connect(f"{scheme}://{HOST}:{port}{path}") as remote:
                    assert (await remote.create_session("hello", model="echo")).text == "hello"


async def test_mcp_below_a_path() -> None:
    """An MCP session begins and goes on below the path of the public address."""
    hello: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    hello["params"] = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    async with (
        runtime() as service,
        gateway(service, public_url=PUBLIC) as port,
        client(port, Accept="application/json, text/event-stream") as http,
    ):
        begun = await http.post(PREFIX + "/mcp", json=hello)
        assert begun.status_code == 200
        http.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        listed = await http.post(PREFIX + "/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert '"tools"' in listed.text


async def test_the_names_of_the_public_address() -> None:
    """A page of the public address may connect, and without tokens its name leads here; others are refused."""
    async with gateway(FakeService(), public_url="https://Warren.example:8443/at") as port, client(port) as http:
        for name, status in (("warren.example:8443", 200), ("evil.example:8443", 403)):
            assert (await http.get("/health", headers={"Origin": f"https://{name}"})).status_code == status
            assert (await http.get("/health", headers={"Host": name})).status_code == status
