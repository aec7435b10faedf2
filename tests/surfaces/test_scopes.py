"""MCP clients that ask an issuer for a token: the scopes that they are told, and calls beyond those of a token."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.good_requests import params_of, request
from tests.surfaces.mcp_calls import open_mcp, over_mcp
from tests.transport.clients import HOST, gateway
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import config, signed
from tests.transport.rest.clients import client
from warren.base.principals import OWN_SCOPES
from warren.transport.mcp.http import OF_RESOURCES
from warren.transport.mcp.tools import TOOLS

METADATA = "/.well-known/oauth-protected-resource/mcp"


def parameter(challenge: str, name: str) -> str | None:
    """Return a parameter of a challenge."""
    found = re.search(rf'\b{name}="([^"]*)"', challenge)
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("settings", "served", "named"),
    [
        ({}, {}, ["session:read", "session:write"]),
        ({"scope_claim": "scp"}, {}, ["session:read", "session:write"]),
        ({"scope_claim": "realm_access.roles"}, {}, None),
        ({"scope_claim": "roles"}, {"mcp_scopes": ("openid", "w:use")}, ["openid", "w:use"]),
        ({}, {"mcp_scopes": ()}, None),
        (
            {"scope_map": ("warren=session:read", "warren=session:write", "x=memory:read")},
            {},
            ["warren"],
        ),
    ],
)
async def test_the_scopes_to_begin_with(
    settings: dict[str, Any], served: dict[str, Any], named: list[str] | None, tmp_path: Path
) -> None:
    """The metadata and the challenge of a 401 name the least scopes, by the issuer's names, if it gives any."""
    jwt = config(tmp_path, **settings)
    async with runtime() as service, gateway(service, jwt=jwt, **served) as port, client(port) as http:
        assert (await http.get(METADATA)).json().get("scopes_supported") == named
        refused = await http.post("/mcp", json={})
    assert refused.status_code == 401
    assert parameter(refused.headers["www-authenticate"], "scope") == (None if named is None else " ".join(named))


@pytest.mark.parametrize("name", [*TOOLS, *OF_RESOURCES])
async def test_a_call_beyond_the_scopes_of_a_token(name: str, tmp_path: Path) -> None:
    """It is refused with 403 and the scope that it needs; with that scope it is not."""
    needed = OF_RESOURCES[name] if name in OF_RESOURCES else TOOLS[name].method.scope
    others = OWN_SCOPES - {str(needed)}
    params: dict[str, Any] = params_of(TOOLS[name].method.name) if name in TOOLS else {"uri": "warren://sessions/s"}
    message = request(name, params) if "/" in name else request("tools/call", {"name": name, "arguments": params})
    async with runtime() as service, gateway(service, jwt=config(tmp_path)) as port:
        async with client(port, Authorization=f"Bearer {signed(scope=' '.join(others))}") as http:
            await open_mcp(http)
            refused = await http.post("/mcp", json=message)
        challenge = refused.headers["www-authenticate"]
        assert (refused.status_code, parameter(challenge, "error")) == (403, "insufficient_scope")
        assert set(str(parameter(challenge, "scope")).split()) == OWN_SCOPES
        assert parameter(challenge, "resource_metadata") == f"http://{HOST}:{port}{METADATA}"
        error = refused.json()["error"]
        assert (refused.json()["id"], error["data"]["code"]) == (7, "PERMISSION_DENIED")
        assert error["data"]["details"] == {"scope": needed}
        async with client(port, Authorization=f"Bearer {signed(scope=needed)}") as http:
            await open_mcp(http)
            assert "PERMISSION_DENIED" not in str(await over_mcp(http, name, params))


async def test_a_refused_call_is_audited(tmp_path: Path) -> None:
    """As on every surface, the audit has who wanted what; a client that lacks a scope of no OAuth name gets none."""
    roles = config(tmp_path, scope_claim="roles")
    async with runtime(tmp_path) as service, gateway(service, jwt=roles) as port:
        async with client(port, Authorization=f"Bearer {signed(roles=['session:read'])}") as http:
            await open_mcp(http)
            call = {"name": "warren_archive", "arguments": {"session_id": "s"}}
            refused = await http.post("/mcp", json=request("tools/call", call))
        assert refused.status_code == 403
        assert parameter(refused.headers["www-authenticate"], "scope") is None
        (entry,) = (await service.audit(action="archive")).entries
        assert (entry.who, entry.outcome, entry.session_id) == ("ada", "refused", "s")
