"""Bad requests: each gets its status, in the one shape of errors, with the field."""

import json
import logging
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, gateway, http
from tests.transport.rest.clients import port_of, problem, rest
from warren.base.errors import InvalidParamsError
from warren.calls.sessions import ListRequest
from warren.settings.config import Config
from warren.transport.embed import open_supervisor
from warren.transport.rest.parameters import from_query

JSON = {"content-type": "application/json"}
BAD: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/", None, 404, "$.path"),
    ("GET", "/sessions/", None, 404, "$.path"),
    ("GET", "/health%0A", None, 404, "$.path"),
    ("GET", "/sessions/s1/history%0A", None, 404, "$.path"),
    ("GET", "/sessions/a/b/c", None, 404, "$.path"),
    ("PUT", "/sessions", {}, 405, "$.method"),
    ("PUT", "/sessions/s1", {}, 405, "$.method"),
    ("GET", "/sessions/s1/messages", None, 405, "$.method"),
    ("HEAD", "/sessions/s1/messages", None, 405, ""),
    ("OPTIONS", "/health", None, 405, "$.method"),
    ("TRACE", "/health", None, 405, "$.method"),
    ("POST", "/sessions", b"{", 400, "$"),
    ("POST", "/sessions", b"\xff", 400, "$"),
    ("POST", "/sessions", b'{"prompt": NaN}', 400, "$"),
    ("POST", "/sessions", b'{"prompt": "\\ud800"}', 400, "$"),
    ("POST", "/sessions", b"[" * 100_000, 400, "$"),
    ("POST", "/sessions", [], 422, "$"),
    ("POST", "/sessions", 3, 422, "$"),
    ("POST", "/sessions", b"", 422, "$.prompt"),
    ("POST", "/sessions", {}, 422, "$.prompt"),
    ("POST", "/sessions", {"prompt": ["x"]}, 422, "$.prompt"),
    ("POST", "/sessions", {"prompt": "x", "max_tokens": "12"}, 422, "$.max_tokens"),
    ("POST", "/sessions", {"prompt": "x", "labels": {"a": 1}}, 422, "$.labels.a"),
    ("POST", "/sessions", {"prompt": "x", "budget": {"max_steps": 0}}, 422, "$.budget.max_steps"),
    ("POST", "/sessions", {"prompt": "x", "colour": "red"}, 422, "$.colour"),
    ("POST", "/sessions?prompt=x", {}, 422, "$.query"),
    ("POST", "/sessions/s1/messages", {"prompt": "x", "session_id": "s2"}, 422, "$.session_id"),
    ("POST", "/sessions/s1/interrupt", {"now": True}, 422, "$.now"),
    ("GET", "/sessions", {"offset": 1}, 400, "$.body"),
    ("DELETE", "/sessions/s1", {}, 400, "$.body"),
    ("GET", "/sessions?limit=ten", None, 422, "$.limit"),
    ("GET", "/sessions?limit=1.0", None, 422, "$.limit"),
    ("GET", "/sessions?limit=0", None, 422, "$.limit"),
    ("GET", "/sessions?limit=" + "9" * 5000, None, 422, "$.limit"),
    ("GET", "/sessions?limit=1&limit=2", None, 422, "$.limit"),
    ("GET", "/sessions?include_archived=yes", None, 422, "$.include_archived"),
    ("GET", "/sessions?labels=red", None, 422, "$.labels"),
    ("GET", "/sessions?labels=red&labels[a]=b", None, 422, "$.labels[a]"),
    ("GET", "/sessions?labels[a][b]=c", None, 422, "$.labels"),
    ("GET", "/sessions?page=2", None, 422, "$.page"),
    ("GET", "/sessions/s1/history?offset=-1", None, 422, "$.offset"),
    ("GET", "/sessions/s1/events?after_seq=x", None, 422, "$.after_seq"),
    ("GET", "/health?x=1", None, 422, "$.x"),
]


async def test_bad_requests_are_answered_on_a_connection_that_goes_on() -> None:
    """Each of these gets its error, naming the bad field, and none of them reaches the service."""
    service = FakeService()
    async with rest(service) as client:
        for method, path, body, status, field in BAD:
            content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            response = await client.request(method, path, content=content, headers=JSON)
            assert response.status_code == status, (method, path, response.text)
            if field:
                assert problem(response) == (status, "INVALID_PARAMS", field), (method, path)
        assert (await client.get("/health")).status_code == 200
    assert service.calls == []


async def test_a_method_that_is_not_for_a_path_is_told_which_are() -> None:
    """`Allow` has them."""
    async with rest(FakeService()) as client:
        assert (await client.put("/sessions")).headers["allow"] == "POST, GET, HEAD"
        assert (await client.put("/sessions/s1/events")).headers["allow"] == "GET, HEAD"


async def test_options_that_the_model_does_not_take_conflict() -> None:
    """They are well written, and another model would take them: 409 tells them from what is wrong anywhere."""
    async with open_supervisor(Config(), environ={"ANTHROPIC_API_KEY": "k"}) as service, rest(service) as client:
        for option, status, field in (
            ({"fallback": ["no-such-model"]}, 409, "$.fallback[0]"),
            ({"fallback": [1]}, 422, "$.fallback[0]"),
            ({"effort": "none", "model": "claude-fable-5"}, 409, "$.effort"),
            ({"effort": "some", "model": "claude-fable-5"}, 422, "$.effort"),
            ({"reasoning_tokens": 2000, "model": "claude-fable-5"}, 409, "$.reasoning_tokens"),
            ({"temperature": 0.5, "model": "claude-fable-5"}, 409, "$.temperature"),
            ({"hosted_tools": {"web search": {}}}, 422, "$.hosted_tools.web search"),
            ({"hosted_tools": {"web_search": {}}, "model": "echo"}, 409, "$.hosted_tools.web_search"),
        ):
            response = await client.post("/sessions", json={"prompt": None, **option})
            assert problem(response) == (status, "INVALID_PARAMS", field), response.text


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_what_is_not_said_to_be_json_is_not_read(kind: str | None) -> None:
    """A page can send such a request without asking; so it must do nothing."""
    service = FakeService()
    async with rest(service) as client:
        headers = {"content-type": kind} if kind else {}
        response = await client.post("/sessions", content=b'{"prompt": "x"}', headers=headers)
        assert problem(response) == (415, "INVALID_PARAMS", "$.headers.content-type")
        assert service.calls == []


async def test_a_charset_does_no_harm() -> None:
    """JSON is in UTF-8, whatever else is said of it."""
    async with rest(FakeService()) as client:
        headers = {"content-type": "Application/JSON; charset=latin-1"}
        created = await client.post("/sessions", content='{"prompt": "hé"}'.encode(), headers=headers)
        assert created.json()["text"] == "hé"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(chunked: bool) -> None:  # noqa: FBT001
    """One of just the limit is read, a longer one gets 413, whether it says its length or not."""

    async def in_chunks(body: bytes) -> Any:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with rest(FakeService(), max_message_bytes=100_000) as client:
        for size, status in ((100_000, 201), (100_001, 413), (5_000_000, 413)):
            body = b'{"prompt": "x"}' + b" " * (size - 15)
            content = in_chunks(body) if chunked else body
            try:
                response = await client.post("/sessions", content=content, headers=JSON)
            except httpx.WriteError:
                assert size == 5_000_000  # it was told before it had said all
                continue
            assert response.status_code == status
        assert (await client.get("/health")).status_code == 200


async def test_what_is_no_http_gets_an_answer_too() -> None:
    """Heads that are broken or too long are refused in the same shape, and closed."""
    async with gateway(FakeService()) as port:
        long = f"GET /health HTTP/1.1\nHost: {HOST}\nX: {'x' * 200_000}\n\n"
        for request, status in (("nonsense\n\n", 400), (long, 431)):
            got, headers, body = await http(port, request)
            assert (got, headers["connection"]) == (status, "close")
            assert json.loads(body)["code"] == "INVALID_PARAMS"


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=6))
def test_any_query_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    """However odd a query is, it is read; only what is said twice, or is both a text and an object, is refused."""
    keys = [key for key, _ in pairs]
    try:
        data = from_query(ListRequest, QueryParams(pairs))
    except InvalidParamsError:
        assert len({*keys}) < len(keys) or any("[" in key for key in keys)
    else:
        assert {key.partition("[")[0] for key in data} == {key.partition("[")[0] for key in keys}


@given(
    offset=st.integers(0, 2**60),
    archived=st.booleans(),
    labels=st.dictionaries(st.text(min_size=1), st.text(), min_size=1),
)
def test_a_query_says_what_its_class_has(offset: int, archived: bool, labels: dict[str, str]) -> None:  # noqa: FBT001
    """Numbers, truth values and objects come back as they were meant."""
    pairs = [("offset", str(offset)), ("include_archived", str(archived).lower())]
    pairs += [(f"labels[{key}]", value) for key, value in labels.items()]
    data = from_query(ListRequest, QueryParams(pairs))
    assert data == {"offset": offset, "include_archived": archived, "labels": labels}


async def test_a_client_that_does_not_read_a_refusal_is_not_waited_for() -> None:
    """Somebody who sends a body that nobody wants, for ever, is let go."""
    async with rest(FakeService(), max_message_bytes=1000) as client:
        request = f"POST /nowhere HTTP/1.1\nHost: {HOST}\nContent-Length: 3000000\n\n{'x' * 3_000_000}"
        assert (await http(port_of(client), request))[0] == 404


@pytest.mark.parametrize("path", ["/sessions", "/mcp"])
async def test_a_body_that_is_not_whole_is_refused(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also by what is mounted: it never sees such a body, and nothing is logged as a fault of ours."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
    async with gateway(FakeService()) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(head.encode() + b'{"jsonrpc"')
        await stream.send_eof()
        answer = b"".join([data async for data in stream])
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
