"""Every surface of the gateway with bad tokens: nothing is done, and nothing is told; and with tokens that end."""

import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.support.fake_service import FakeService, until_interrupted
from tests.surfaces.good_requests import params_of, request
from tests.surfaces.mcp_calls import INITIALIZE, MCP, open_mcp, over_mcp
from tests.surfaces.walking import walk
from tests.transport.clients import HOST, connect, gateway, knock
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import config, listed, rsa_key, signed
from tests.transport.rest.clients import client, events
from warren.base.errors import AgentError, PermissionDeniedError
from warren.client import connect as connect_client
from warren.transport.access.token_list import Token, new_token, read_tokens, without_tokens
from warren.transport.gateway.gateway import MCP_PATH
from warren.transport.mcp.tools import TOOLS
from warren.transport.rest.routes import ROUTES, WITH_BODY, RestRoute
from warren.transport.rpc.methods import METHODS

SOON: Final = 5.0
"""Seconds within which a connection ends whose token has ended."""


@attrs.frozen
class Door:
    """A gateway with a list of tokens and with signed ones."""

    port: int
    folder: Path
    service: FakeService

    @property
    def tokens(self) -> Path:
        """The list."""
        return self.folder / "tokens.toml"

    def revoke(self, name: str) -> None:
        """Take the tokens of a name out of the list."""
        data = self.tokens.read_bytes()
        put(self.tokens, without_tokens(data, [token.hash for token in read_tokens(data) if token.name == name]))


def put(path: Path, data: bytes) -> None:
    """Put another file in the place of one."""
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(data)
    unfinished.replace(path)


@asynccontextmanager
async def door(folder: Path) -> AsyncIterator[Door]:
    """Open a gateway for a body. Its list has the token `other`."""
    service = FakeService(until_interrupted())
    listed(folder / "tokens.toml", name="other")
    async with gateway(service, token_file=folder / "tokens.toml", jwt=config(folder)) as port:
        yield Door(port, folder, service)


def bad_tokens(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield tokens that let nobody in, each with its fault."""
    now = int(time.time())
    path = folder / "tokens.toml"
    yield "malformed", "wrn_short"
    yield "of no list", new_token()
    yield "expired", listed(path, name="late", expires=datetime.fromtimestamp(now - 60, UTC))
    revoked = listed(path, name="gone")
    put(path, without_tokens(path.read_bytes(), [each.hash for each in _named(path, "gone")]))
    yield "revoked", revoked
    yield "of no key", "e30.e30.e30"
    yield "alg none", _unsigned()
    yield "of another key", signed(rsa_key("second"))
    yield "of another issuer", signed(iss="https://evil.example")
    yield "for another audience", signed(aud="https://other.example")
    yield "ended", signed(exp=now - 60)
    yield "not begun", signed(nbf=now + 60)


def _named(path: Path, name: str) -> list[Token]:
    return [token for token in read_tokens(path.read_bytes()) if token.name == name]


def _unsigned() -> str:
    head, body, _ = signed().split(".")
    del head
    return f"eyJhbGciOiJub25lIiwia2lkIjoiazEifQ.{body}."


async def test_a_bad_token_learns_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path and each fault has one answer; nothing is called, and no token is logged."""
    caplog.set_level(logging.DEBUG)
    tokens = dict(bad_tokens(tmp_path))
    answers = set[tuple[int, str, bytes]]()
    settings = {"token_file": tmp_path / "tokens.toml", "jwt": config(tmp_path)}
    service = FakeService()
    async with walk(service, monkeypatch, **settings) as walked, client(walked.port) as http:
        url = f"http://{HOST}:{walked.port}/.well-known/oauth-protected-resource/mcp"
        of_mcp = f', scope="session:read session:write", resource_metadata="{url}"'
        for token in tokens.values():
            bearer = {"Authorization": f"Bearer {token}"}
            for verb, path in walked.asking():
                refused = await http.request(verb, path, headers=bearer)
                challenge = refused.headers["www-authenticate"]
                if path == MCP_PATH:
                    assert challenge.endswith(of_mcp)
                answers.add((refused.status_code, challenge.removesuffix(of_mcp), refused.content))
            assert await knock(walked.port, Authorization=f"Bearer {token}") == 401
            assert await knock(walked.port, "warren", f"bearer.{token}") == 401
        ((status, challenge, body),) = answers
        assert (status, challenge) == (401, 'Bearer error="invalid_token"')
        assert json.loads(body)["details"] == {"path": "$.headers.authorization"}
        assert service.calls == []
        good = await http.get("/health", headers={"Authorization": f"Bearer {signed()}"})
        assert good.status_code == 200
    assert not [name for name, token in tokens.items() if token in caplog.text]


async def test_how_to_get_a_token_is_told_to_all(tmp_path: Path) -> None:
    """The metadata names the issuer, and the address by which the client knows the gateway, or that of the settings."""
    async with door(tmp_path) as there, client(there.port) as http:
        for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
            found = (await http.get(path)).json()
            assert found["resource"] == f"http://{HOST}:{there.port}/mcp"
            assert found["authorization_servers"] == ["https://issuer.example"]
            assert found["scopes_supported"] == ["session:read", "session:write"]
            forged = await http.get(path, headers={"Host": 'x", error="y'})
            assert forged.json()["resource"] == f"http://{HOST}/mcp"
    service = FakeService()
    async with gateway(service, token="t", public_url="https://w.example") as port, client(port) as http:  # noqa: S106
        found = (await http.get("/.well-known/oauth-protected-resource/mcp")).json()
        assert found["resource"] == "https://w.example/mcp"
        assert "authorization_servers" not in found
    async with gateway(service) as port, client(port) as http:
        assert (await http.get("/.well-known/oauth-protected-resource/mcp")).status_code == 404


async def _until_closed(there: Door, token: str, codes: list[int], task_status: trio.TaskStatus[None]) -> None:
    bearer = [(b"Authorization", f"Bearer {token}".encode())]
    async with connect(there.port, extra_headers=bearer) as program:
        await program.call("session/subscribe", session_id="s1")
        await program.send("turn/start", session_id="s1", prompt="a turn that goes on")
        task_status.started()
        codes.append(await program.closed())


async def _until_stream_ends(there: Door, token: str, task_status: trio.TaskStatus[None]) -> None:
    async with events(there.port, "s2", Authorization=f"Bearer {token}") as followed:
        task_status.started()
        assert [event.kind for event in await followed.rest()] == []


async def _until_mcp_ends(there: Door, token: str, task_status: trio.TaskStatus[None]) -> None:
    bearer = {"Authorization": f"Bearer {token}", "Accept": MCP}
    async with client(there.port, **bearer) as http:
        opened = await http.post("/mcp", json=INITIALIZE)
        assert opened.status_code == 200
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        async with http.stream("GET", "/mcp", timeout=60) as stream:
            assert stream.status_code == 200
            task_status.started()
            with contextlib.suppress(httpx.RemoteProtocolError):  # it is cut, as it has no end of its own
                assert [part async for part in stream.aiter_bytes() if part.strip(b":\r\n ping-")] == []
        assert (await http.post("/mcp", json=INITIALIZE)).status_code == 401


async def _until_client_gives_up(there: Door, token: str, task_status: trio.TaskStatus[None]) -> None:
    async with connect_client(f"ws://{HOST}:{there.port}", token=token) as service:
        async with service.subscribe("s3") as reader:
            task_status.started()
            with pytest.raises(AgentError, match="expired or was revoked") as caught:
                await anext(reader)
        assert (caught.value.cause, caught.value.details["status"]) == ("unreachable", 401)
        with pytest.raises(AgentError, match="expired or was revoked"):
            await service.read("s3")


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_what_is_open_ends_with_its_token(tmp_path: Path, end: str) -> None:
    """A WebSocket with 4401, a stream of events and one of MCP; a client says why, and does not try for ever.

    Turns go on, and so does whatever another token has opened.
    """
    async with door(tmp_path) as there, trio.open_nursery() as nursery:
        stays = listed(there.tokens, name="stays")
        codes = list[int]()
        if end == "revoked":
            token = listed(there.tokens, name="ends")
            await _let_in(there.port, token)
        else:
            token = signed(exp=int(time.time()) - 7)  # the leeway is ten seconds
        await _let_in(there.port, stays)
        async with connect(there.port, extra_headers=[(b"Authorization", f"Bearer {stays}".encode())]) as other:
            await nursery.start(_until_closed, there, token, codes)
            await nursery.start(_until_stream_ends, there, token)
            await nursery.start(_until_mcp_ends, there, token)
            await nursery.start(_until_client_gives_up, there, token)
            if end == "revoked":
                there.revoke("ends")
            with trio.fail_after(SOON):
                while nursery.child_tasks:  # noqa: ASYNC110 - a nursery has no event for it
                    await trio.sleep(0.01)
            assert codes == [4401]
            assert await knock(there.port, Authorization=f"Bearer {token}") == 401
            assert await other.call("health")
        turn = there.service.sessions["s1"].turn
        assert turn is not None
        assert not turn.ended.is_set()
        await there.service.interrupt("s1")


async def _let_in(port: int, token: str) -> None:
    """Return once the gateway has read a token."""
    with trio.fail_after(SOON):
        while await knock(port, Authorization=f"Bearer {token}") != 101:
            pass


async def test_a_broken_list_stays_out_of_use(tmp_path: Path) -> None:
    """Those that were let in before are let in still, and the health says what is wrong."""
    async with door(tmp_path) as there, client(there.port, Authorization=f"Bearer {signed()}") as http:
        assert (await http.get("/health")).json()["access"] == {"status": "ok"}
        token, data = listed(there.tokens, name="new"), there.tokens.read_bytes()
        await _let_in(there.port, token)
        put(there.tokens, data + b"[[token]]\n")
        with trio.fail_after(SOON):
            while (found := (await http.get("/health")).json())["status"] == "ok":
                pass
        assert "$.token_file.token[2]" in found["access"]["last_error"]
        assert await knock(there.port, Authorization=f"Bearer {token}") == 101
        put(there.tokens, data)
        with trio.fail_after(SOON):
            while (await http.get("/health")).json()["status"] != "ok":
                pass


UNSCOPED: Final = frozenset(
    {
        "initialize",
        "initialized",
        "session/unsubscribe",
        "session/unwatch",
        "tools/register",
        "capabilities/get",
        "config/get",
    }
)
"""Methods that are about the connection or the server alone."""


async def _over_rest(http: httpx.AsyncClient, row: RestRoute) -> Any:
    """Return the error of a request."""
    fields, path = params_of(row.method.name), row.path
    for name in re.findall(r"{(\w+)}", path):
        path = path.replace(f"{{{name}}}", str(fields.pop(name)))
    body: dict[str, Any] = {"json": fields} if row.verb in WITH_BODY else {}
    refused = await http.request(row.verb, path, **body)
    assert refused.status_code == 403, (row, refused.text)
    return refused.json()


async def test_without_scopes_nothing_can_be_done(tmp_path: Path) -> None:
    """Every method of every surface names the scope that it needs, and tells nothing of any session."""
    path = tmp_path / "tokens.toml"
    token = listed(path, name="nobody", scopes=())
    bearer = f"Bearer {token}"
    async with runtime() as service, gateway(service, token_file=path) as port:
        async with client(port, Authorization=bearer) as http:
            bodies = {row.method.name: await _over_rest(http, row) for row in ROUTES if row.method.name not in UNSCOPED}
            await open_mcp(http)
            for tool in TOOLS.values():
                if tool.method.name not in UNSCOPED:
                    found = await over_mcp(http, tool.name, params_of(tool.method.name))
                    assert found["error"]["data"] == bodies[tool.method.name]
            for asked in (("resources/list", {}), ("resources/read", {"uri": "warren://sessions/s"})):
                assert (await over_mcp(http, *asked))["error"]["data"]["code"] == "PERMISSION_DENIED"
        async with connect(port, extra_headers=[(b"Authorization", bearer.encode())]) as program:
            for method in METHODS.keys() - UNSCOPED:
                error = await program.error(method, **params_of(method))
                assert error["data"] == bodies.get(method, error["data"])
                assert (error["code"], error["data"]["code"]) == (-32009, "PERMISSION_DENIED")
        assert bodies.keys() | {"session/subscribe", "file/put"} == METHODS.keys() - UNSCOPED
        assert {each["code"] for each in bodies.values()} == {"PERMISSION_DENIED"}
        async with connect_client(f"ws://{HOST}:{port}", token=token) as remote:
            with pytest.raises(PermissionDeniedError, match="session:read"):
                await remote.read("s")


async def test_each_principal_has_its_own_tenant(tmp_path: Path) -> None:
    """Over each surface a session is created for the tenant of the token, and is not found by that of another one."""
    path = tmp_path / "tokens.toml"
    ours, theirs = listed(path, tenant="ours", name="ann"), listed(path, tenant="theirs", name="bob")
    operator = listed(path, name="operator")
    async with (
        runtime() as service,
        gateway(service, token_file=path) as port,
        client(port, Authorization=f"Bearer {ours}") as http,
        client(port, Authorization=f"Bearer {theirs}") as other,
        connect(port, extra_headers=[(b"Authorization", f"Bearer {theirs}".encode())]) as program,
    ):
        await open_mcp(http)
        await open_mcp(other)
        by_mcp = (await over_mcp(http, "warren_run", {"prompt": "hi"}))["result"]["structuredContent"]
        made = [(await http.post("/sessions", json={"prompt": None})).json()["session_id"], by_mcp["session_id"]]
        for session_id in made:
            view = (await http.get(f"/sessions/{session_id}")).json()
            assert (view["state"]["tenant"], view["state"]["owner"]) == ("ours", "ann")
            missing = await other.get("/sessions/00000000-0000-7000-8000-000000000000")
            foreign = await other.get(f"/sessions/{session_id}")
            stream = await other.get(f"/sessions/{session_id}/events")
            assert missing.status_code == foreign.status_code == stream.status_code == 404
            assert foreign.json()["code"] == "SESSION_NOT_FOUND"
            assert (await program.error("session/read", session_id=session_id))["code"] == -32001
            read = await over_mcp(other, "warren_read", {"session_id": session_id})
            assert read["result"]["structuredContent"]["code"] == "SESSION_NOT_FOUND"
        assert (await other.get("/sessions")).json()["sessions"] == []
        assert (await over_mcp(other, "resources/list", {}))["result"]["resources"] == []
        assert len((await over_mcp(http, "resources/list", {}))["result"]["resources"]) == 2
        figures = await other.get("/metrics", headers={"Authorization": f"Bearer {operator}"})
        assert "warren_turns_total" in figures.text
        assert not [each for each in ("ours", "theirs", "ann", "bob", *made) if f'"{each}' in figures.text]
        stolen = {"Mcp-Session-Id": http.headers["Mcp-Session-Id"]}
        assert (await other.post("/mcp", json=request("ping", {}), headers=stolen)).status_code == 404
