"""The bounds of MCP sessions over HTTP: whose session ends for a new one, and who is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.support.models import Puppet
from tests.support.runtime import new_session, open_runtime
from tests.transport.clients import HOST, gateway
from tests.transport.http.tokens import listed
from tests.transport.mcp.clients import ACCEPT, HELLO, PING, at_rest
from warren.base.principals import Principal
from warren.calls.facade import RuntimeService
from warren.settings.config import Config, Limits
from warren.transport.mcp.http import open_mcp
from warren.transport.mcp.sessions import IDLE

NAMES = {"ann": "acme", "amy": "acme", "abe": "acme", "bob": "other", "cid": "third"}
"""Principals and their tenants."""


@attrs.frozen
class World:
    """Principals that open MCP sessions at a gateway.

    Attributes:
        http: their client.
        tokens: the token of each.
    """

    http: httpx.AsyncClient
    tokens: dict[str, str]

    def headers(self, name: str, session: str | None = None) -> dict[str, str]:
        """Return the headers of a principal's requests."""
        more = {} if session is None else {"mcp-session-id": session}
        return {"authorization": f"Bearer {self.tokens[name]}", **more}

    async def ask(self, name: str, body: Any = HELLO, session: str | None = None) -> httpx.Response:
        """Send a request."""
        return await self.http.post("/mcp", json=body, headers=self.headers(name, session))

    async def open(self, name: str) -> str:
        """Open a session that has to be let in; return its id."""
        answer = await self.ask(name)
        assert answer.status_code == 200, answer.text
        return answer.headers["mcp-session-id"]

    async def lives(self, name: str, session: str) -> bool:
        """Return whether a session lives; it has been used then."""
        status = (await self.ask(name, PING, session)).status_code
        assert status in (200, 404)
        return status == 200

    @asynccontextmanager
    async def stream(self, name: str, session: str) -> AsyncIterator[None]:
        """Hold the stream of a session open."""
        async with self.http.stream("GET", "/mcp", headers=self.headers(name, session)) as stream:
            assert stream.status_code == 200
            yield


@asynccontextmanager
async def world(service: RuntimeService, folder: Path, **limits: Any) -> AsyncIterator[World]:
    """Serve principals of three tenants."""
    file = folder / "tokens.toml"
    tokens = {name: listed(file, name=name, tenant=tenant) for name, tenant in NAMES.items()}
    runtime = Config(limits=Limits(**limits))
    async with (
        gateway(service, token_file=file, runtime=runtime) as port,
        httpx.AsyncClient(base_url=f"http://{HOST}:{port}", headers=ACCEPT, timeout=10) as http,
    ):
        yield World(http, tokens)


SHARES = {"mcp_sessions": 10, "tenant_share": 0.5, "principal_share": 0.3}
"""Three sessions of a principal, five of a tenant, ten of the process."""


async def test_beyond_its_bound_a_principal_loses_its_own_oldest_idle_session(tmp_path: Path) -> None:
    """However many it opens, others of its tenant and of other ones keep theirs, and open more."""
    async with open_runtime() as service, world(service, tmp_path, **SHARES) as clients:
        kept = {name: await clients.open(name) for name in ("amy", "bob")}
        own = [await clients.open("ann") for _ in range(3)]
        assert await clients.lives("ann", own[0])
        newer = [await clients.open("ann") for _ in range(2)]
        assert [await clients.lives("ann", each) for each in (*own, *newer)] == [True, False, False, True, True]
        for _ in range(20):
            await clients.open("ann")
        for name, session in kept.items():
            assert await clients.lives(name, session)
            assert await clients.open(name)


async def test_a_session_in_use_does_not_give_way(tmp_path: Path) -> None:
    """Neither one with an open stream nor one with a call that runs, although its client is gone; 429 says when."""
    model = Puppet()
    async with open_runtime(model) as service, world(service, tmp_path, **SHARES) as clients:
        called, watched, idle = [await clients.open("ann") for _ in range(3)]
        session_id = await new_session(service.as_(Principal("acme", "ann")))
        async with clients.stream("ann", watched), trio.open_nursery() as tasks:
            tasks.start_soon(clients.ask, "ann", resume(session_id), called)
            await model.reached(1)
            tasks.cancel_scope.cancel()
        async with clients.stream("ann", watched):
            newest = await clients.open("ann")
            async with clients.stream("ann", newest):
                refused = await clients.ask("ann")
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                error = refused.json()["error"]
                assert (refused.json()["id"], error["data"]["details"]["cause"]) == (1, "token_share")
                await clients.open("amy")
                await clients.open("bob")
            model.say("whole", None)
            assert await at_rest(service.as_(Principal("acme", "ann")), session_id) == "whole"
            assert [await clients.lives("ann", each) for each in (called, watched, idle, newest)] == [
                *(True, True, False, True)
            ]


async def test_a_tenant_and_the_process_have_bounds(tmp_path: Path) -> None:
    """Beyond them an idle session of those who have most gives way, and none of one who has no more."""
    async with open_runtime() as service, world(service, tmp_path, **SHARES) as clients:
        amys = [await clients.open("amy") for _ in range(3)]
        abes = [await clients.open("abe") for _ in range(2)]
        anns = [await clients.open("ann")]
        assert [await clients.lives("amy", each) for each in amys] == [False, True, True]
        bobs = [await clients.open("bob") for _ in range(3)]
        cids = [await clients.open("cid") for _ in range(3)]
        for name, sessions, alive in (
            ("amy", amys, [False, False, True]),
            ("abe", abes, [True, True]),
            ("ann", anns, [True]),
            ("bob", bobs, [True] * 3),
            ("cid", cids, [True] * 3),
        ):
            assert [await clients.lives(name, each) for each in sessions] == alive, name


async def test_no_room_at_all(tmp_path: Path) -> None:
    """If no session is idle, one more is refused with 503, and one that ends makes room at once."""
    async with open_runtime() as service, world(service, tmp_path, mcp_sessions=1) as clients:
        only = await clients.open("ann")
        async with clients.stream("ann", only):
            refused = await clients.ask("bob")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["data"]["details"]["cause"] == "process_share"
        deleted = await clients.http.delete("/mcp", headers=clients.headers("ann", only))
        assert deleted.status_code == 200
        assert await clients.open("bob")


async def test_a_request_that_begins_nothing_takes_no_place(tmp_path: Path) -> None:
    """A request without a session that is no `initialize`, and one with a bad session, leave all others alone."""
    async with open_runtime() as service, world(service, tmp_path, mcp_sessions=2) as clients:
        kept = await clients.open("ann")
        for _ in range(5):
            assert (await clients.ask("ann", PING)).status_code == 400
            assert (await clients.http.get("/mcp", headers=clients.headers("ann"))).status_code == 400
            assert (await clients.http.delete("/mcp", headers=clients.headers("ann"))).status_code == 400
            assert (await clients.ask("ann", HELLO, "x")).status_code == 404
        assert await clients.lives("ann", kept)


@pytest.mark.virtual_time
async def test_an_idle_session_ends_after_half_an_hour() -> None:
    """Each request puts that off; later ones get 404, as the protocol has it, and the client begins anew."""
    async with open_runtime() as service, open_mcp(service, security=None) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=ACCEPT) as http:
            session = {"mcp-session-id": (await http.post("/mcp", json=HELLO)).headers["mcp-session-id"]}
            for wait, status in ((IDLE - 1, 200), (IDLE - 1, 200), (IDLE + 1, 404)):
                await trio.sleep(wait)
                assert (await http.post("/mcp", json=PING, headers=session)).status_code == status


def resume(session_id: str) -> Any:
    """Return a call that runs a turn."""
    call = {"name": "warren_resume", "arguments": {"session_id": session_id, "prompt": "talk"}}
    return {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}
