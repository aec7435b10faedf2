"""What clients can open at a gateway: a principal beyond its share is refused, and others are not."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.support.runtime import open_runtime
from tests.transport.clients import Client, connect, gateway
from tests.transport.http.tokens import listed
from tests.transport.mcp.clients import ACCEPT, HELLO
from tests.transport.rest.clients import client, create
from warren.settings.config import Config, Limits

LIMITS: Final = Limits(subscriptions=5, watches=5, mcp_sessions=50, tenant_share=0.8, principal_share=0.4)
"""Two of the five are a principal's share."""


@attrs.frozen
class Caller:
    """A principal of the tenant `default`.

    Attributes:
        port: the gateway's port.
        bearer: the value of its header.
        sessions: sessions of the tenant.
    """

    port: int
    bearer: str
    sessions: list[str]

    def http(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        """Make a client over HTTP."""
        return client(self.port, Authorization=self.bearer)

    def socket(self) -> AbstractAsyncContextManager[Client]:
        """Make a client over a WebSocket."""
        return connect(self.port, extra_headers=[(b"Authorization", self.bearer.encode())])


@asynccontextmanager
async def callers(folder: Path, **settings: Any) -> AsyncIterator[tuple[Caller, Caller]]:
    """Serve two principals of a tenant."""
    file = folder / "tokens.toml"
    tokens = [listed(file, name=name) for name in ("ann", "bob")]
    runtime = Config(limits=LIMITS)
    async with open_runtime() as service, gateway(service, token_file=file, runtime=runtime, **settings) as port:
        sessions = list[str]()
        first, second = (Caller(port, f"Bearer {token}", sessions) for token in tokens)
        async with first.http() as http:
            sessions += [await create(http) for _ in range(3)]
        yield first, second


@asynccontextmanager
async def followed(caller: Caller, session: str) -> AsyncIterator[str | None]:
    """Follow a session over a WebSocket of its own; yield the cause of a refusal."""
    async with caller.socket() as socket:
        yield await cause_of(socket, "session/subscribe", session_id=session)


@asynccontextmanager
async def watched(caller: Caller, _session: str) -> AsyncIterator[str | None]:
    """Watch the list of sessions over a WebSocket of its own; yield the cause of a refusal."""
    async with caller.socket() as socket:
        yield await cause_of(socket, "session/watch")


async def cause_of(socket: Client, method: str, **params: Any) -> str | None:
    """Return the cause of the error of a call; None if it succeeds."""
    answer = await socket.reply(await socket.send(method, **params))
    return answer["error"]["data"]["details"]["cause"] if "error" in answer else None


@asynccontextmanager
async def streamed(caller: Caller, session: str) -> AsyncIterator[str | None]:
    """Follow a session over a stream; yield the cause of a refusal."""
    async with caller.http() as http, http.stream("GET", f"/sessions/{session}/events") as answer:
        yield await refusal(answer)


@asynccontextmanager
async def changes(caller: Caller, _session: str) -> AsyncIterator[str | None]:
    """Watch the list of sessions over a stream; yield the cause of a refusal."""
    async with caller.http() as http, http.stream("GET", "/changes") as answer:
        yield await refusal(answer)


async def refusal(answer: httpx.Response) -> str | None:
    """Return the cause of a refusal; None if there is none."""
    if answer.status_code == 200:
        return None
    await answer.aread()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    cause = answer.json()["details"]["cause"]
    assert isinstance(cause, str)
    return cause


Open = Callable[[Caller, str], AbstractAsyncContextManager[str | None]]


@pytest.mark.parametrize("ways", [(followed, streamed), (watched, changes)])
async def test_a_principal_has_its_share(tmp_path: Path, ways: tuple[Open, Open]) -> None:
    """By whichever ways it opens them, on however many connections; what it closes makes room, and others have room."""
    async with callers(tmp_path) as (ann, bob):
        one, two, three = ann.sessions
        async with ways[0](ann, one) as first:
            async with ways[1](ann, two) as second:
                assert (first, second) == (None, None)
                for way in ways:
                    async with way(ann, three) as third, way(bob, three) as other:
                        assert (third, other) == ("token_share", None)
            for way in ways:
                with trio.fail_after(10):  # the server sees a moment later that a connection is closed
                    while not await is_let_in(way, ann, three):
                        pass


async def is_let_in(way: Open, caller: Caller, session: str) -> bool:
    """Return whether one more is let in."""
    async with way(caller, session) as cause:
        return cause is None


async def test_a_subscription_over_mcp_counts(tmp_path: Path) -> None:
    """It is one of its principal's."""
    async with callers(tmp_path) as (ann, _), AsyncExitStack() as stack:
        for session in ann.sessions[:2]:
            assert await stack.enter_async_context(followed(ann, session)) is None
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{ann.port}",
            headers={"authorization": ann.bearer, **ACCEPT},
            timeout=30,
        ) as http:
            begun = await http.post("/mcp", json=HELLO)
            headers = {"mcp-session-id": begun.headers["mcp-session-id"]}
            uri = f"warren://sessions/{ann.sessions[2]}"
            answer = await http.post("/mcp", json=request("resources/subscribe", uri=uri), headers=headers)
            assert "token_share" in answer.text


def request(method: str, **params: Any) -> dict[str, Any]:
    """Return a request."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("settings", [{"max_connections": 10}, {"max_http": 10}])
async def test_connections_of_a_principal(tmp_path: Path, settings: dict[str, int]) -> None:
    """It may have four of ten, and one more is refused and closed, while another principal is served."""
    async with callers(tmp_path, **settings) as (ann, bob), AsyncExitStack() as stack:
        for _ in range(4):
            http = await stack.enter_async_context(ann.http())
            assert (await http.get("/sessions")).status_code == 200
        async with ann.http() as more:
            assert await refusal(await more.get("/sessions")) == "token_share"
        for _ in range(4):
            http = await stack.enter_async_context(bob.http())
            assert (await http.get("/sessions")).status_code == 200
