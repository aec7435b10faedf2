"""Servers of a service that is bound to a principal: their clients have its rights, and no others."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.surfaces.mcp_calls import open_mcp, over_mcp
from tests.transport.clients import HOST, connect, gateway, knock
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import config, listed
from tests.transport.mcp.clients import connected
from tests.transport.rest.clients import client
from tests.transport.stdio.client import near
from warren.base.errors import InvalidParamsError
from warren.base.principals import LOCAL, Principal
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway

READER: Final = Principal("acme", "ann", frozenset({"session:read"}))
TENANT: Final = {"Warren-Tenant": "default"}


def _ids(page: Mapping[str, Any]) -> list[str]:
    return [each["session_id"] for each in page["sessions"]]


async def test_clients_of_an_open_gateway_are_the_principal_of_its_service() -> None:
    """Over each surface they find the sessions of its tenant alone, lack the scopes that it lacks, and keep to that."""
    async with runtime() as service:
        foreign = (await service.create_session(None)).session_id
        own = (await service.as_(Principal("acme", "bob")).create_session(None)).session_id
        async with (
            gateway(service.as_(READER)) as port,
            client(port) as http,
            connect(port) as program,
        ):
            await open_mcp(http)
            shown = [
                (await http.get("/sessions")).json(),
                await program.call("session/list"),
                (await over_mcp(http, "warren_sessions", {}))["result"]["structuredContent"],
            ]
            assert [_ids(page) for page in shown] == [[own]] * 3
            resources = (await over_mcp(http, "resources/list", {}))["result"]["resources"]
            assert [each["uri"].rpartition("/")[2] for each in resources] == [own]
            missing = await over_mcp(http, "warren_read", {"session_id": foreign})
            codes = [
                (await http.get(f"/sessions/{foreign}")).json()["code"],
                (await program.error("session/read", session_id=foreign))["data"]["code"],
                missing["result"]["structuredContent"]["code"],
            ]
            assert codes == ["SESSION_NOT_FOUND"] * 3
            denied = await over_mcp(http, "warren_run", {"prompt": "hi"})
            codes = [
                (await http.post("/sessions", json={"prompt": "hi"})).json()["code"],
                (await http.get("/health")).json()["code"],
                (await http.get("/metrics")).json()["code"],
                (await program.error("session/create", prompt="hi"))["data"]["code"],
                denied["error"]["data"]["code"],
            ]
            assert codes == ["PERMISSION_DENIED"] * 5
            assert (await http.get("/sessions", headers=TENANT)).status_code == 403
            assert await knock(port, **TENANT) == 403
        assert [each.session_id for each in (await service.list()).sessions] == [foreign]


async def test_the_port_of_the_metrics_shows_what_the_principal_may_see() -> None:
    """It asks for no token, and is no way around the scope."""
    async with runtime() as service:
        for principal, status in ((READER, 403), (LOCAL, 200)):
            scraped = await trio.open_tcp_listeners(0, host=HOST)
            serving = partial(serve_gateway, metrics=scraped)
            async with trio.open_nursery() as nursery:
                await nursery.start(serving, service.as_(principal), GatewayConfig(port=0, close_timeout=0.3))
                async with client(scraped[0].socket.getsockname()[1]) as http:
                    assert (await http.get("/metrics")).status_code == status
                nursery.cancel_scope.cancel()


async def test_the_client_of_a_pipe_is_the_principal_of_its_service() -> None:
    """So it is over JSON-RPC, and over MCP, in both of its revisions."""
    async with runtime() as service:
        foreign = (await service.create_session(None)).session_id
        own = (await service.as_(Principal("acme", "bob")).create_session(None)).session_id
        bound = service.as_(READER)
        async with near(bound) as program:
            assert _ids(await program.call("session/list")) == [own]
            assert (await program.error("session/read", session_id=foreign))["data"]["code"] == "SESSION_NOT_FOUND"
            assert (await program.error("session/create", prompt="hi"))["data"]["code"] == "PERMISSION_DENIED"
        async with connected(bound) as tools:
            assert _ids(await tools.ask("warren_sessions")) == [own]
            assert (await tools.fail("warren_read", session_id=foreign))["code"] == "SESSION_NOT_FOUND"
            assert (await tools.fail("warren_run", prompt="hi"))["code"] == "PERMISSION_DENIED"
            (resource,) = (await tools.client.list_resources()).resources
            assert str(resource.uri).endswith(own)


async def test_a_bound_service_is_not_served_by_tokens(tmp_path: Path) -> None:
    """Their clients would have the rights of their tokens, which the principal of the service may lack."""
    path = tmp_path / "tokens.toml"
    listed(path)
    ways: list[dict[str, Any]] = [
        {"token": "t"},
        {"token_file": path},
        {"token_table": True},
        {"jwt": config(tmp_path)},
    ]
    async with runtime() as service:
        for way in ways:
            (name,) = way
            with pytest.RaisesGroup(pytest.RaisesExc(InvalidParamsError, match=rf"\$\.{name}: .*as_")):
                async with gateway(service.as_(READER), **way):
                    pass
        async with gateway(service.as_(READER).as_(LOCAL), token_file=path):
            pass
