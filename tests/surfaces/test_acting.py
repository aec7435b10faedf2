"""Clients that work in the tenants of others: they name one, and need the right to it."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import ConnectionClosed

from tests.surfaces.mcp_calls import open_mcp, over_mcp
from tests.transport.cli.process import Cli
from tests.transport.clients import HOST, connect, gateway, knock
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import SCOPES, listed
from tests.transport.rest.clients import client
from warren.base.errors import AgentError, SessionNotFoundError
from warren.client import connect as connect_client
from warren.transport.access import watched
from warren.transport.access.token_list import hash_of, without_tokens

TENANT = "Warren-Tenant"


async def test_an_operator_works_in_a_tenant_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each surface it finds the sessions of that tenant, and creates some in its own name, while its token holds."""
    monkeypatch.setattr(watched, "LOOK", 0.02)
    path = tmp_path / "tokens.toml"
    token, theirs = listed(path, scopes=(*SCOPES, "tenant:admin")), listed(path, tenant="acme", name="ann")
    bearer = f"Bearer {token}"
    headers = {"Authorization": bearer, TENANT: "acme"}
    async with (
        runtime() as service,
        gateway(service, token_file=path) as port,
        client(port, Authorization=f"Bearer {theirs}") as ann,
        client(port, **headers) as http,
        client(port, Authorization=bearer) as at_home,
        connect(port, extra_headers=[(name.encode(), value.encode()) for name, value in headers.items()]) as program,
    ):
        made = (await ann.post("/sessions", json={"prompt": None})).json()["session_id"]
        assert (await at_home.get(f"/sessions/{made}")).status_code == 404
        assert (await at_home.get(f"/sessions/{made}", headers={TENANT: "default"})).status_code == 404
        assert (await http.get(f"/sessions/{made}")).json()["state"]["owner"] == "ann"
        assert (await program.call("session/read", session_id=made))["state"]["tenant"] == "acme"
        await open_mcp(http)
        read = await over_mcp(http, "warren_read", {"session_id": made})
        assert read["result"]["structuredContent"]["state"]["owner"] == "ann"
        offered = ["warren", f"bearer.{token}", "tenant.acme"]
        async with connect(port, subprotocols=offered) as page:  # a browser cannot set a header
            assert (await page.call("session/read", session_id=made))["state"]["owner"] == "ann"
            assert (await page.call("initialize"))["caller"]["tenant"] == "acme"
        own = (await program.call("session/create", prompt=None))["session_id"]
        state = (await ann.get(f"/sessions/{own}")).json()["state"]
        assert (state["tenant"], state["owner"]) == ("acme", "default/ci")
        async with connect_client(f"ws://{HOST}:{port}", token=token, tenant="acme") as remote:
            assert (await remote.read(made)).state.owner == "ann"
        async with connect_client(f"ws://{HOST}:{port}", token=token) as remote:
            with pytest.raises(SessionNotFoundError):
                await remote.read(made)
        path.write_bytes(without_tokens(path.read_bytes(), [hash_of(token)]))
        with trio.fail_after(5), pytest.raises(ConnectionClosed) as caught:
            await program.next()
        assert caught.value.reason is not None
        assert caught.value.reason.code == 4401
        assert (await http.get("/sessions")).status_code == 401


async def test_the_tenants_of_others_need_the_right_to_them(tmp_path: Path) -> None:
    """The refusal names the right, and is the same for a tenant that has sessions and one that nobody knows."""
    path = tmp_path / "tokens.toml"
    token, theirs, operator = listed(path), listed(path, tenant="acme"), listed(path, scopes=("tenant:admin",))
    async with (
        runtime() as service,
        gateway(service, token_file=path) as port,
        client(port, Authorization=f"Bearer {theirs}") as ann,
        client(port, Authorization=f"Bearer {token}") as http,
        client(port) as nobody,
    ):
        await ann.post("/sessions", json={"prompt": None})

        async def asked(tenant: str) -> list[tuple[int, Any]]:
            paths = ("/sessions", "/sessions/x", "/openapi.json", "/metrics", "/mcp")
            found: list[httpx.Response] = [await http.get(each, headers={TENANT: tenant}) for each in paths]
            return [(each.status_code, each.json()) for each in found]

        expected = {
            "code": "PERMISSION_DENIED",
            "message": "this needs the scope tenant:admin",
            "retryable": False,
            "details": {"scope": "tenant:admin"},
        }
        assert await asked("acme") == await asked("nobody") == [(403, expected)] * 5
        assert await knock(port, Authorization=f"Bearer {token}", **{TENANT: "acme"}) == 403
        assert await knock(port, Authorization=f"Bearer {token}", **{TENANT: "default"}) == 101
        for tenant, status in (("acme", 403), ("default", 101), ("-", 403)):
            assert await knock(port, "warren", f"bearer.{token}", f"tenant.{tenant}") == status
        assert await knock(port, "warren", f"bearer.{operator}", "tenant.-") == 400
        assert await knock(port, f"bearer.{operator}", "tenant.acme", **{TENANT: "acme"}) == 400
        right = [("Authorization", f"Bearer {operator}")]
        for named in ([(TENANT, "a b")], [(TENANT, "acme"), (TENANT, "default")]):
            bad = await nobody.get("/sessions", headers=[*right, *named])
            assert (bad.status_code, bad.json()["details"]["path"]) == (400, "$.headers.warren-tenant")
        with pytest.raises(AgentError, match="does not let this client in"):
            async with connect_client(f"ws://{HOST}:{port}", token=token, tenant="acme"):
                pass
    async with runtime() as service, gateway(service) as port, client(port) as anybody:
        assert (await anybody.get("/sessions", headers={TENANT: "acme"})).status_code == 403


def test_a_command_works_in_a_tenant_that_it_names(cli: Cli) -> None:
    """Its sessions are found in that tenant alone."""
    made = cli.run("run", "hi", "--tenant", "acme", "--output", "json").data["session_id"]

    def listed_in(*args: str) -> list[str]:
        return [each["session_id"] for each in cli.run("sessions", "list", "--output", "json", *args).data["sessions"]]

    assert (listed_in(), listed_in("--tenant", "acme"), listed_in("--tenant", "other")) == ([], [made], [])
    assert cli.run("sessions", "show", made).code == 1
    shown = cli.run("sessions", "show", "last", "--output", "json", env={"WARREN_TENANT": "acme"}).data
    assert (shown["state"]["session_id"], shown["state"]["tenant"]) == (made, "acme")
    assert "1 to 64 letters" in cli.run("sessions", "list", "--tenant", "a b").err
