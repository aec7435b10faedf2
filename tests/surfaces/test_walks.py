"""Walks over every path, method and tool, new ones included: with bad tokens, and with those of two tenants."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
from starlette.responses import PlainTextResponse

from tests.support.fake_service import FakeService
from tests.surfaces.walking import VERBS, answers, walk
from tests.transport.clients import gateway
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import listed
from tests.transport.rest.clients import client
from warren.base.fields import FieldValueError
from warren.base.principals import Principal
from warren.calls.base import SessionRef
from warren.calls.facade import RuntimeService
from warren.conversation.views import SessionPage, SessionView
from warren.transport.access.addresses import WEBSOCKET_PATH
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import MCP_PATH
from warren.transport.mcp.tools import TOOLS, McpTool
from warren.transport.rest.routes import ROUTES, RestRoute
from warren.transport.rest.site import Site
from warren.transport.rpc.methods import METHODS, Caller, Host, Method
from warren.transport.rpc.params import NoParams

UNKNOWN: Final = "00000000-0000-7000-8000-000000000000"
SECRETS: Final = ("Ottilie", "harbour", "Rostock", "zebra", "Wilhelmine")
OURS: Final = {
    "prompt": "Ottilie sails",
    "model": "echo",
    "system_prompt": "harbour master",
    "labels": {"town": "Rostock"},
    "title": "zebra",
    "peer": {"name": "Wilhelmine"},
}
NUMBERS: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|[0-9]+")
"""Ids and numbers, which differ from call to call."""


@pytest.mark.parametrize("token", [None, "wrn_" + "x" * 43])
async def test_every_path_asks_for_a_token(token: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With none, and with a wrong one, no HTTP method of any path does anything, but for those that are public."""
    listed(tmp_path / "tokens.toml")
    service = FakeService()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with walk(service, monkeypatch, token_file=tmp_path / "tokens.toml") as walked:
        assert await walked.open_doors(**headers) == set()
        assert {"/console/", "/livez"} <= walked.public
        assert {"/mcp", "/metrics", "/openapi.json", "/sessions", "/sessions/x/events"} <= {
            *walked.paths
        } - walked.public
    assert service.calls == []


async def test_a_new_path_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks for no token is found, whoever has added it."""

    def with_more(policy: Any, origins: Any, apps: Any) -> Site:
        return Site(policy, origins, {**apps, "/debug/{name}": PlainTextResponse("anybody may see this")})

    monkeypatch.setattr("warren.transport.rest.app.Site", with_more)
    listed(tmp_path / "tokens.toml")
    async with walk(FakeService(), monkeypatch, token_file=tmp_path / "tokens.toml") as walked:
        assert await walked.open_doors() == {f"{verb} /debug/x" for verb in VERBS}


async def test_no_public_address_hides_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may take the path of the public address away: one of the gateway's own would be taken for it."""
    listed(tmp_path / "tokens.toml")
    async with walk(FakeService(), monkeypatch, token_file=tmp_path / "tokens.toml") as walked:
        for path in {"/" + each.strip("/").partition("/")[0] for each in (*walked.paths, WEBSOCKET_PATH)} - {"/"}:
            GatewayConfig(public_url=f"https://warren.example/at{path}")
            for below in (path, f"{path}/x"):
                with pytest.raises(FieldValueError, match=f"{path} is one of the gateway's own"):
                    GatewayConfig(public_url=f"https://warren.example{below}")


async def test_every_path_answers_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status and the headers of a GET, and without a body; a stream ends at once."""
    async with walk(FakeService(), monkeypatch) as walked, client(walked.port) as http:
        for path in [each.replace("/sessions/x", "/sessions/s1") for each in walked.paths if each != MCP_PATH]:
            async with http.stream("GET", path) as got:
                pass
            head = await http.head(path)
            assert (head.status_code, _lasting(head)) == (got.status_code, _lasting(got)), path
            assert head.content == b""


def _lasting(answer: httpx.Response) -> dict[str, str]:
    """Return the headers of an answer, with those alone by name that differ from moment to moment."""
    return {name: "" if name in ("date", "content-length") else value for name, value in answer.headers.items()}


@attrs.frozen
class Tenants:
    """A gateway with a session of one tenant, and a token of another one.

    Attributes:
        port: its port.
        ours: a token of the session's tenant.
        theirs: a token of the other one.
        session_id: the session.
    """

    port: int
    ours: str
    theirs: str
    session_id: str

    async def contents(self) -> Any:
        """Return the session as its own tenant sees it."""
        async with client(self.port, Authorization=f"Bearer {self.ours}") as http:
            found = [await http.get(f"/sessions/{self.session_id}{path}") for path in ("", "/history", "/inputs")]
        assert [each.status_code for each in found] == [200] * 3
        return [each.json() for each in found]

    async def leaks(self) -> set[str]:
        """Return all that tells the other tenant anything of the session, or that it is there at all."""
        found = await answers(self.port, self.theirs, self.session_id)
        absent = await answers(self.port, self.theirs, UNKNOWN)
        assert found.keys() == absent.keys()
        return {
            name
            for name, answer in found.items()
            if any(secret in answer.text for secret in SECRETS)
            or (NUMBERS.sub("", answer.text) != NUMBERS.sub("", absent[name].text))
            if answer.about or any(secret in answer.text for secret in (*SECRETS, self.session_id))
        }


@asynccontextmanager
async def two_tenants(folder: Path) -> AsyncIterator[tuple[Tenants, RuntimeService]]:
    """Serve two tenants for a body; the first has a session."""
    path = folder / "tokens.toml"
    ours, theirs = (listed(path, tenant=name, name=name) for name in ("ours", "theirs"))
    async with runtime(folder / "store") as service, gateway(service, token_file=path) as port:
        async with client(port, Authorization=f"Bearer {ours}") as http:
            made = await http.post("/sessions", json=OURS)
            assert made.status_code == 201, made.text
        yield Tenants(port, ours, theirs, made.json()["session_id"]), service


async def test_no_tenant_learns_of_the_sessions_of_another(tmp_path: Path) -> None:
    """Each route, method and tool answers as if the session were not there, and none of them changes it."""
    async with two_tenants(tmp_path) as (tenants, _):
        before = await tenants.contents()
        assert await tenants.leaks() == set()
        assert await tenants.contents() == before


async def test_new_routes_methods_and_tools_are_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that tells of the sessions of all tenants is found, on each surface that has it."""
    async with two_tenants(tmp_path) as (tenants, service):
        everybodys = service.as_(Principal("ours"))

        async def peek(_host: Host, _caller: Caller, params: SessionRef) -> SessionView:
            return await everybodys.read(params.session_id)

        async def survey(_host: Host, _caller: Caller, _params: NoParams) -> SessionPage:
            return await everybodys.list()

        one = Method("session/peek", SessionRef, SessionView, peek, "Peek.")
        all_of_them = Method("session/survey", NoParams, SessionPage, survey, "Survey.")
        new = (*ROUTES, RestRoute("GET", "/sessions/{session_id}/peek", one), RestRoute("POST", "/survey", all_of_them))
        for module in ("routes", "app", "openapi"):
            monkeypatch.setattr(f"warren.transport.rest.{module}.ROUTES", new)
        for method in (one, all_of_them):
            monkeypatch.setitem(METHODS, method.name, method)
            name = method.name.replace("session/", "warren_")
            monkeypatch.setitem(TOOLS, name, McpTool(name, method, "New", "New."))
        path = tmp_path / "tokens.toml"
        async with gateway(service, token_file=path) as port:  # it has the new routes
            found = await attrs.evolve(tenants, port=port).leaks()
    assert found == {
        *("GET /sessions/{session_id}/peek", "HEAD /sessions/{session_id}/peek", "POST /survey"),
        *("session/peek", "session/survey", "warren_peek", "warren_survey"),
    }
