"""Clients behind a proxy, as the audit and the metadata have them: those of each request, if the proxy is trusted."""

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.transport.clients import HOST, connect, gateway
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import config
from tests.transport.rest.clients import client, create
from warren.transport.gateway.gateway import GatewayConfig, serve_gateway

TRUSTED = {"trusted_proxies": ("127.0.0.0/8", "10.0.0.0/8")}


async def sources(http: Any) -> list[str | None]:
    """Return the addresses in the audit, oldest first."""
    return [each["source"] for each in (await http.get("/audit")).json()["entries"]]


async def test_each_request_has_the_client_that_the_proxy_tells() -> None:
    """One connection of a trusted proxy carries requests of many clients: each entry of the audit has its own."""
    async with runtime() as service, gateway(service, **TRUSTED) as port, client(port) as http:
        for headers in (
            {b"X-Forwarded-For": b"1.2.3.4"},
            {b"X-Forwarded-For": b"6.6.6.6, 2001:db8::7, 10.1.1.1"},
            {b"Forwarded": b"for=1.2.3.5;proto=https"},
            {b"X-Forwarded-For": b"\xff nonsense"},
            {},
        ):
            assert (await http.post("/sessions", json={"prompt": None}, headers=headers)).status_code == 201
        told = [(b"X-Forwarded-For", b"1.2.3.6")]
        async with connect(port, extra_headers=told) as caller:
            await caller.call("session/create", prompt=None)
        assert await sources(http) == ["1.2.3.4", "2001:db8::7", "1.2.3.5", HOST, HOST, "1.2.3.6"]


@pytest.mark.parametrize("settings", [{}, {"trusted_proxies": ("10.0.0.0/8", "::1", "unix")}])
async def test_others_are_never_believed(settings: dict[str, Any]) -> None:
    """A client that is no trusted proxy keeps its own address, whatever its headers say."""
    headers = {"X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4;proto=https", "X-Forwarded-Proto": "https"}
    async with runtime() as service, gateway(service, **settings) as port, client(port, **headers) as http:
        await create(http)
        assert await sources(http) == [HOST]


@pytest.mark.parametrize(("names", "source"), [(("unix",), "1.2.3.4"), (("127.0.0.1",), None)])
async def test_a_proxy_on_a_unix_socket(names: tuple[str, ...], source: str | None, tmp_path: Path) -> None:
    """The peers of a Unix socket are trusted by `unix` alone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
    settings = GatewayConfig(trusted_proxies=names)
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
    async with (
        runtime() as service,
        trio.open_nursery() as nursery,
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        await nursery.start(serve_gateway, service, settings, listeners)
        await http.post("/sessions", json={"prompt": None}, headers={"X-Forwarded-For": "1.2.3.4"})
        assert await sources(http) == [source]
        nursery.cancel_scope.cancel()


async def test_the_scheme_of_addresses(tmp_path: Path) -> None:
    """Without a public address the metadata has the scheme that the proxy tells, and that of a stranger is `http`."""
    path = "/.well-known/oauth-protected-resource/mcp"
    for trusted, scheme in ((TRUSTED, "https"), ({}, "http")):
        async with (
            runtime() as service,
            gateway(service, jwt=config(tmp_path), **trusted) as port,
            client(port) as http,
        ):
            found = await http.get(path, headers={"X-Forwarded-Proto": "https"})
            assert found.json()["resource"] == f"{scheme}://{HOST}:{port}/mcp"
