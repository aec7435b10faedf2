"""Access over HTTP: tokens, pages, names; and the answers that browsers get."""

import logging

import pytest

from tests.support.fake_service import FakeService
from tests.transport.rest.clients import create, events, port_of, problem, rest

TOKEN = "s3cret-t0ken"  # noqa: S105 - not one of ours
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PAGE = {"Origin": "https://good.example"}
PATHS = ("/health", "/sessions", "/sessions/s1/events", "/openapi.json", "/mcp")


async def test_without_the_token_nobody_gets_in() -> None:
    """Every route asks for it, on every request of a connection; one that is wrong or elsewhere is none."""
    service = FakeService()
    async with rest(service, token=TOKEN) as http:
        for path in PATHS:
            for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}, {"Cookie": TOKEN}):
                refused = await http.get(path, headers=headers)
                assert problem(refused) == (401, "INVALID_PARAMS", "$.headers.authorization"), path
                challenge = refused.headers["www-authenticate"]
                assert challenge.startswith('Bearer error="invalid_token"' if "Bearer" in str(headers) else "Bearer")
                assert ("resource_metadata" in challenge) == (path == "/mcp")
        assert (await http.get("/health", headers=BEARER)).status_code == 200
        assert (await http.get("/health")).status_code == 401
        assert (await http.get(f"/health?token={TOKEN}")).status_code == 401
        assert service.calls == []


async def test_no_token_is_needed_to_learn_that_there_is_nothing() -> None:
    """A session that is not there is there for nobody."""
    async with rest(FakeService(), token=TOKEN) as http:
        assert (await http.get("/nowhere")).status_code == 404
        assert (await http.put("/health")).status_code == 405


async def test_with_the_token_a_stream_opens() -> None:
    """Streams take it as every other route does."""
    async with rest(FakeService(), token=TOKEN) as http:
        http.headers.update(BEARER)
        session_id = await create(http)
        async with events(port_of(http), session_id, **BEARER) as followed:
            await http.post(f"/sessions/{session_id}/messages", json={"prompt": "hello"})
            assert (await followed.until("run_completed"))[0].kind == "run_started"


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_pages_of_others_are_kept_out(token: str | None) -> None:
    """A page that is not on the list gets 403, even where it knows the token, and nothing was done for it."""
    service = FakeService()
    async with rest(service, token=token, origins=("https://good.example",)) as http:
        for origin in ("http://evil.example", "null", "http://localhost.evil.example"):
            refused = await http.post("/sessions", json={"prompt": "x"}, headers={**BEARER, "Origin": origin})
            assert problem(refused) == (403, "INVALID_PARAMS", "$.headers.origin")
            assert "access-control-allow-origin" not in refused.headers
        assert service.calls == []
        for origin in ("https://good.example", "http://127.0.0.1:8420", "https://localhost", "http://[::1]:1"):
            allowed = await http.get("/health", headers={**BEARER, "Origin": origin})
            assert allowed.headers["access-control-allow-origin"] == origin
            assert "origin" in allowed.headers["vary"].lower()


async def test_a_name_that_leads_here_is_not_enough() -> None:
    """A page whose own name leads to this machine is of no other origin for its browser; its Host gives it away."""
    async with rest(FakeService()) as http:
        for host in (
            "evil.example",
            "evil.example:8420",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::",
            "evil@localhost",
        ):
            refused = await http.get("/sessions", headers={"Host": host})
            assert problem(refused) == (403, "INVALID_PARAMS", "$.headers.host"), host
        for host in ("localhost", "LOCALHOST:8420", "127.0.0.1:1", "[::1]:8420"):
            assert (await http.get("/health", headers={"Host": host})).status_code == 200
    async with rest(FakeService(), token=TOKEN) as http:
        proxied = {"Host": "warren.example", **BEARER}
        assert (await http.get("/health", headers=proxied)).status_code == 200


async def test_a_browser_may_ask_first() -> None:
    """A preflight needs no token and says what a page of the list may send; another page is told no."""
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    async with rest(FakeService(), token=TOKEN, origins=("https://good.example",)) as http:
        allowed = await http.options("/sessions", headers={**PAGE, **ask})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://good.example"
        assert "DELETE" in allowed.headers["access-control-allow-methods"]
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        refused = await http.options("/sessions", headers={"Origin": "http://evil.example", **ask})
        assert refused.status_code == 403
        page = await http.get("/health", headers=PAGE)
        assert page.status_code == 401
        assert page.headers["access-control-allow-origin"] == "https://good.example"


async def test_a_page_may_send_what_the_gateway_reads() -> None:
    """The headers of traces, keys, ranges and MCP, which a browser has to ask for, and HEAD with a token."""
    sent = (
        "authorization, content-type, idempotency-key, last-event-id, warren-tenant, traceparent, tracestate, baggage"
    )
    sent += ", if-none-match, if-range, range, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name"
    ask = {**PAGE, "Access-Control-Request-Headers": sent}
    async with rest(FakeService(), token=TOKEN, origins=("https://good.example",)) as http:
        for verb in ("GET", "HEAD", "POST", "PATCH", "DELETE"):
            for path in ("/sessions", "/sessions/s1/events", "/mcp"):
                allowed = await http.options(path, headers={**ask, "Access-Control-Request-Method": verb})
                assert (allowed.status_code, allowed.headers["access-control-max-age"]) == (200, "600"), allowed.text
        page = await http.get("/health", headers={**PAGE, **BEARER, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
        shown = page.headers["access-control-expose-headers"].lower().split(", ")
        assert {"etag", "location", "retry-after", "mcp-session-id", "content-disposition"} <= set(shown)


async def test_the_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """However much is logged, the token is not."""
    caplog.set_level(logging.DEBUG)
    async with rest(FakeService(on_read=RuntimeError("boom")), token=TOKEN) as http:
        assert (await http.get("/sessions/s1", headers=BEARER)).status_code == 500
        assert TOKEN not in (await http.get("/config", headers=BEARER)).text
    assert "boom" in caplog.text
    assert TOKEN not in caplog.text
