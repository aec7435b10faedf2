"""Web services that answer by HTTP alone: sessions that are lost, tokens that are refused, proxies, and restarts."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.services import FORBIDDEN, Service, empty, failed, is_call
from tests.actors.tools.mcp.world import LONG, SOON, call
from tests.support.asking import ask
from tests.support.models import reply, says
from tests.support.runtime import Recorder, open_runtime
from tests.support.waiting import until
from tests.transport.providers.byte_server import status
from tests.transport.providers.http.servers import proxying
from warren.actors.tools.mcp.pool import McpPool
from warren.conversation.events import ToolExecutionCompleted
from warren.conversation.messages import ToolUseBlock
from warren.models.tools import ToolError
from warren.settings.tool_config import McpServer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'http(core|x)2:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*async_generator object (PoolByteStream|Response):pytest.PytestUnraisableExceptionWarning"
    ),
]
CHALLENGE = 'Bearer error="invalid_token"'


def server(url: str, **settings: Any) -> McpServer:
    """Return the service as a server that is not pinged in between."""
    return McpServer("web", url=url, ping_interval=None, **settings)


def lost() -> Service:
    """Return a service that says nothing but 404 to an unknown session."""
    return Service(lambda _: empty(404))


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: status(404, failed(-32001, "Session not found")),
        lambda number: status(404, failed(-32600, "Session not found", number)),
        lambda _: status(404, {"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}}),
        lambda _: empty(404),
        lambda _: status(410, {"detail": "gone"}),
        lambda _: status(400, failed(-32000, "Bad Request: No valid session ID provided")),
        lambda number: status(400, failed(-32000, "Bad Request: Mcp-Session-Id header is required", number)),
        lambda _: status(400, {"error": "bad request"}),
        lambda _: status(401, {"error": "invalid_token"}, WWW_Authenticate=CHALLENGE),
        lambda _: status(403, failed(-32000, "Forbidden")),
        lambda _: status(503, {"error": "starting"}),
        lambda _: status(200, failed(-32001, "Session not found")),
    ],
)
async def test_a_service_that_has_lost_its_session(answer: Callable[[object], bytes]) -> None:
    """However it says so, the call that finds it out is made once more in a new session, and runs once."""
    service = Service(answer)
    async with service.served() as url, ready(server(url)) as pool:
        assert await call(pool, "look") == "look done"
        service.known.clear()
        assert await call(pool, "look") == "look done"
        assert (service.opened, service.ran) == (2, ["look"] * 2)
        (health,) = pool.health()
        assert (health.state, health.restarts) == ("ready", 1)
        assert str(answer(None).split()[1], "ascii") in str(health.last_error)


async def test_a_service_that_never_knows_a_session() -> None:
    """The call ends with its refusal after the second try."""
    service = Service(lambda _: empty(404), lambda said: empty(404) if is_call(said) else None)
    async with service.served() as url, ready(server(url)) as pool:
        with pytest.raises(ToolError, match=r"^the MCP server 'web' refused the call: HTTP 404 Not Found$"):
            await call(pool, "hop")
        assert service.opened == 2


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (FORBIDDEN, 'HTTP 403 Forbidden: {"error":"insufficient_scope"}: Bearer error="insufficient_scope"'),
        (empty(401, WWW_Authenticate=CHALLENGE), f"HTTP 401 Unauthorized: {CHALLENGE}"),
        (status(405, failed(-32000, "Method not allowed.")), "HTTP 405 Method Not Allowed: Method not allowed."),
        (status(409, {"detail": "taken"}), 'HTTP 409 Conflict: {"detail":"taken"}'),
        (status(429, failed(-32000, "slow down")), "HTTP 429 Too Many Requests: slow down"),
    ],
)
async def test_a_call_that_is_refused(refusal: bytes, said: str) -> None:
    """The model, the events and the health have the status; the session and its other calls go on."""
    service = Service(
        lambda _: empty(404), lambda said: refusal if is_call(said) and said["params"]["name"] == "hop" else None
    )
    async with service.served() as url, ready(server(url)) as pool, trio.open_nursery() as nursery:
        other = ask(nursery, call, pool, "wait")
        await service.waiting.wait()
        seen = Recorder()
        model = says(reply("", ToolUseBlock("c1", "hop", {})), reply("done"))
        async with open_runtime(model, tools=pool.tools()) as runtime:
            assert (await runtime.create_session("go", on_event=seen)).text == "done"
        (completed,) = seen.only(ToolExecutionCompleted)
        assert (completed.result, completed.is_error) == (f"the MCP server 'web' refused the call: {said}", True)
        assert pool.health()[0].last_error == f"refused a call: {said}"
        assert (pool.health()[0].state, service.opened) == ("ready", 1)
        service.release.set()
        assert await other.value() == "wait done"


@pytest.mark.parametrize("code", [401, 403, 405])
async def test_a_service_that_lets_nobody_in(code: int) -> None:
    """Health and calls name the status, again and again."""
    service = Service(lambda _: empty(404), lambda _: empty(code))
    async with service.served() as url, McpPool.running([server(url)], backoff=SOON, startup=LONG) as pool:
        assert str(pool.health()[0].last_error).startswith(f"refused to connect: HTTP {code} ")
        service.refuse = lambda _: None
        await until(lambda: pool.health()[0].state == "ready")
        service.known.clear()
        service.refuse = lambda _: empty(code)
        for _ in range(2):
            with pytest.raises(ToolError, match=f"HTTP {code} "):
                await call(pool, "hop")


@pytest.mark.parametrize("refusal", [empty(502), empty(503), empty(504), b""], ids=["502", "503", "504", "reset"])
async def test_a_call_that_may_have_begun(refusal: bytes) -> None:
    """It is made once more only if its tool says that this does no harm."""
    service, failures = lost(), list[str]()

    def refuse(said: dict[str, Any]) -> bytes | None:
        if not is_call(said) or said["params"]["name"] in failures:
            return None
        failures.append(said["params"]["name"])
        return refusal

    service.refuse = refuse
    async with service.served() as url, ready(server(url)) as pool:
        for name in ("look", "put"):
            assert await call(pool, name) == f"{name} done"
        with pytest.raises(ToolError, match="the call may have been carried out"):
            await call(pool, "hop")
        assert service.ran == ["look", "put"]
        assert await call(pool, "hop") == "hop done"


@pytest.mark.parametrize(
    ("settings", "restarts"),
    [
        ({}, {"hop": "report", "look": "replay", "put": "replay", "wait": "report"}),
        ({"restart": "report"}, dict.fromkeys(("hop", "look", "put", "wait"), "report")),
        (
            {"restart": "ask", "tool_restart": {"look": "report", "hop": "replay"}},
            {"hop": "replay", "look": "report", "put": "ask", "wait": "ask"},
        ),
    ],
)
async def test_a_call_that_may_be_replayed(settings: dict[str, Any], restarts: dict[str, str]) -> None:
    """The setting of the tool counts, then that of the server, then its hints: after a crash and a lost connection."""
    service, failed_once = lost(), set[str]()

    def refuse(said: dict[str, Any]) -> bytes | None:
        if not is_call(said) or said["params"]["name"] in failed_once:
            return None
        failed_once.add(said["params"]["name"])
        return empty(502)

    service.refuse = refuse
    async with service.served() as url, ready(server(url, **settings)) as pool:
        assert {each.spec.name: each.restart for each in pool.tools()} == restarts
        for name in ("hop", "look", "put"):
            if restarts[name] == "replay":
                assert await call(pool, name) == f"{name} done"
            else:
                with pytest.raises(ToolError, match="the call may have been carried out"):
                    await call(pool, name)


async def test_a_setting_of_a_tool_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """The log names it, as nothing else would tell of a wrong name."""
    service = lost()
    async with service.served() as url, ready(server(url, tool_restart={"put": "ask", "putt": "ask"})):
        assert "the MCP server web has no tool putt, which tool_restart names" in caplog.messages


async def test_a_proxy_whose_service_is_away() -> None:
    """A call that may be repeated waits a moment for the service; others come when it is back."""
    service = Service(lambda _: empty(404), lambda _: empty(502) if down else None)
    down = False
    async with service.served() as url, ready(server(url)) as pool, trio.open_nursery() as nursery:
        down = True
        service.known.clear()
        waiting = ask(nursery, call, pool, "look")
        await until(lambda: pool.health()[0].state == "failed")
        with pytest.raises(ToolError, match=r"'web' is not connected: it .*HTTP 502"):
            await call(pool, "hop")
        down = False
        assert await waiting.value() == "look done"


async def test_a_service_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service on this machine, or one that NO_PROXY names, is called directly; others are reached by the proxy."""
    service = lost()
    async with proxying() as proxy, service.served() as url:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
        async with ready(server(url)) as pool:
            assert await call(pool, "hop") == "hop done"
        assert proxy.opened == 0
        near, far = server("http://10.255.255.1:9/mcp", connect_timeout=0.2), server("http://far.example/mcp")
        for each in (near, far):
            async with McpPool.running([each], backoff=SOON, startup=LONG):
                pass
        assert {request.line for request in proxy.arrived} == {"POST http://far.example/mcp HTTP/1.1"}
        monkeypatch.setenv("HTTP_PROXY", "ftp://me:secret@far.example")
        async with McpPool.running([far], backoff=SOON, startup=LONG) as pool:
            assert "HTTP_PROXY is not the address of a proxy" in str(pool.health()[0].last_error)


async def test_answers_that_come_during_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever closes a connection is not told that its server cannot be talked to, whenever answers come."""
    service = lost()
    async with service.served() as url:
        for steps in range(25):
            service.waiting, service.release = trio.Event(), trio.Event()
            async with trio.open_nursery() as nursery:
                async with ready(server(url)) as pool:
                    nursery.start_soon(given_up, pool)
                    await service.waiting.wait()
                    service.release.set()
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
    assert caplog.messages == []


async def given_up(pool: McpPool) -> None:
    """Call a tool, whatever becomes of it."""
    with contextlib.suppress(ToolError):
        await call(pool, "wait")
