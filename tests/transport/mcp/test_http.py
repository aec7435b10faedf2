"""MCP over HTTP: the app on a real server, the official client over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Route

from tests.support.models import Puppet
from tests.support.runtime import new_session, open_runtime, transcript
from tests.transport.clients import HOST, gateway
from tests.transport.http import serving
from tests.transport.mcp.clients import ERAS, at_rest, using
from tests.transport.mcp.turning import PLAIN, under_way
from warren.calls.facade import RuntimeService
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.transport.mcp.http import open_mcp

# The client's own HTTP library leaves generators behind.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'http(core|x)2:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*async_generator object (PoolByteStream|Response):pytest.PytestUnraisableExceptionWarning"
    ),
]


@asynccontextmanager
async def served(service: RuntimeService, **options: Any) -> AsyncIterator[str]:
    """Serve the app at `/mcp` of a port; the server ends after the app."""
    site = Starlette()
    async with serving.served(site, close_timeout=1) as port, open_mcp(service, **options) as app:
        site.router.routes.append(Route("/mcp", app))
        yield f"http://{HOST}:{port}/mcp"


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_lives_over_http(era: str) -> None:
    """It is run with progress and resumed, over sessions of the transport and without them."""
    async with open_runtime() as service, served(service) as url, using(url, era) as program:
        session_id = (await program.ask("warren_run", watch=True, prompt="one"))["session_id"]
        assert program.told[-1] == "run completed"
        assert [event["type"] for event in program.events] == PLAIN
        assert (await program.ask("warren_resume", session_id=session_id, prompt="two"))["text"] == "two"
        body = await program.fail("warren_read", session_id="none")
        assert body["code"] == "SESSION_NOT_FOUND"


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_cancelled_over_http_interrupts_its_turn(era: str) -> None:
    """Whichever way the client has to say so, the turn ends with what it had, and the session goes on."""
    model = Puppet()
    async with open_runtime(model) as service, served(service) as url, using(url, era) as program:
        session_id = await new_session(service)
        async with under_way(program, "warren_resume", session_id=session_id, prompt="talk") as scope:
            model.say("half")
            await program.hear("half")
            scope.cancel()
        await at_rest(service, session_id)
        partial = AssistantMessage((TextBlock("half"),), "cancelled")
        assert await transcript(service, session_id) == [UserMessage("talk"), partial]
        model.say("whole", None)
        assert (await program.ask("warren_resume", session_id=session_id, prompt="again"))["text"] == "whole"


async def test_a_client_that_vanishes_loses_no_turn() -> None:
    """A connection that breaks off is no cancel: the turn ends as it would have, and another client reads it."""
    model = Puppet()
    async with open_runtime(model) as service, served(service) as url:
        session_id = await new_session(service)
        with trio.CancelScope() as vanishing:
            # Without the farewell that an orderly client sends.
            transport = streamable_http_client(url, terminate_on_close=False)
            async with using(transport) as program, trio.open_nursery() as nursery:
                nursery.start_soon(
                    program.client.call_tool, "warren_resume", {"session_id": session_id, "prompt": "talk"}
                )
                await model.reached(1)
                vanishing.cancel()
        assert (await service.read(session_id)).state.is_active
        model.say("whole", None)
        async with using(url) as other:
            await at_rest(service, session_id)
            read = await other.ask("warren_read", session_id=session_id)
        assert read["state"]["last_assistant_text"] == "whole"


async def test_the_app_ends_with_clients_connected_and_leaves_their_turns() -> None:
    """Calls end within a moment, with an error that says so, as do streams held open; the turn goes on."""
    model = Puppet()
    bodies: list[Any] = []
    async with open_runtime(model) as service:
        session_id = await new_session(service)

        async def resume(url: str) -> None:
            async with using(url) as program:
                bodies.append(await program.fail("warren_resume", session_id=session_id, prompt="talk"))
                await trio.sleep_forever()

        async with trio.open_nursery() as clients:
            with trio.fail_after(5):
                async with served(service) as url:
                    clients.start_soon(resume, url)
                    await model.reached(1)
            clients.cancel_scope.cancel()
        assert [body["details"]["cause"] for body in bodies] == ["shutting_down"]
        assert (await service.read(session_id)).state.is_active
        model.say("whole", None)
        assert await at_rest(service, session_id) == "whole"


async def test_too_many_calls_of_one_session_are_refused() -> None:
    """The bound is that of each client: another one has a place of its own."""
    model = Puppet()
    async with (
        open_runtime(model) as service,
        served(service, max_calls=1) as url,
        using(url) as program,
        using(url) as other,
    ):
        async with under_way(program, "warren_run", prompt="talk"):
            await model.reached(1)
            assert (await program.fail("warren_sessions"))["code"] == "CAPACITY_EXCEEDED"
            assert (await other.ask("warren_sessions"))["sessions"]
            model.say("done", None)
        assert (await program.ask("warren_sessions"))["sessions"]


async def test_an_app_that_has_ended_says_so() -> None:
    """A client that still asks it gets 503, and no traceback."""
    async with open_runtime() as service:
        async with open_mcp(service, security=None) as app:
            pass
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            assert (await http.post("/mcp", content=HELLO)).status_code == 503


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"content-type": "text/plain"}, 400),
    ],
)
async def test_only_this_machine_is_let_in(headers: dict[str, str], status: int) -> None:
    """Unless told otherwise, pages of other machines and names that others chose for this one are refused."""
    async with open_runtime() as service, served(service) as url:
        assert (await post(url, b"%s", headers)).status_code == status


async def test_whoever_checks_in_front_decides_alone() -> None:
    """Without settings of its own the app answers to any name."""
    async with open_runtime() as service, served(service, security=None) as url:
        assert (await post(url, b"%s", {"host": "warren.example", "origin": "https://a.example"})).status_code == 200


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"%s" + b" " * 2000, 413)])
async def test_a_bad_body_is_refused(body: bytes, status: int) -> None:
    """A body that is no message, or too long, gets an answer of the 400s and harms nobody."""
    async with open_runtime() as service, served(service, max_body=1000) as url:
        assert (await post(url, body, {})).status_code == status
        assert (await post(url, b"%s", {})).status_code == 200


@pytest.mark.parametrize(
    ("body", "number", "path"),
    [
        (b"{", -32700, "$"),
        (b"\xff", -32700, "$"),
        (b"7", -32600, "$"),
        (b"[]", -32600, "$"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, "$"),
        (b"{}", -32600, "$.jsonrpc"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, "$.id"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, "$.id"),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, "$.id"),
        (b'{"jsonrpc":"2.0","id":"a","method":7}', -32600, "$.method"),
    ],
)
@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_a_body_that_is_no_request_is_answered_as_a_line_is(
    body: bytes, number: int, path: str, revision: str
) -> None:
    """The error has JSON-RPC's number and the path of what is bad, within a session too, and the session goes on."""
    async with open_runtime() as service, served(service) as url:
        headers = {"mcp-protocol-version": revision}
        if revision == "2025-06-18":
            headers["mcp-session-id"] = (await post(url, HELLO, {})).headers["mcp-session-id"]
        refused = await post(url, body, headers)
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        error = refused.json()["error"]
        assert (error["code"], error["data"]["details"]["path"]) == (number, path)
        notified = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        assert (await post(url, notified, headers)).status_code == 202
        if revision == "2025-06-18":
            assert (await post(url, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', headers)).status_code == 200


HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"test","version":"1"}}}'
)


async def post(url: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    """Send one request; `%s` in the body is a good one."""
    ours = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    async with httpx.AsyncClient() as http:
        return await http.post(url, content=body.replace(b"%s", HELLO), headers=ours | headers)


async def test_a_gateway_that_ends_answers_calls_over_http() -> None:
    """A call whose turn runs gets its error before the connection closes."""
    model = Puppet()
    bodies: list[Any] = []
    answered = trio.Event()
    async with open_runtime(model) as service, trio.open_nursery() as clients:
        session_id = await new_session(service)

        async def resume(url: str) -> None:
            async with using(url) as program:
                bodies.append(await program.fail("warren_resume", session_id=session_id, prompt="talk"))
                answered.set()
                await trio.sleep_forever()

        async with gateway(service) as port:
            clients.start_soon(resume, f"http://{HOST}:{port}/mcp")
            await model.reached(1)
        with trio.fail_after(5):
            await answered.wait()
        clients.cancel_scope.cancel()
    assert [body["details"]["cause"] for body in bodies] == ["shutting_down"]
