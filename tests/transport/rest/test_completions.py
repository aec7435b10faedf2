"""`POST /complete/{token}`: a completion token is the only credential, and strangers learn nothing."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import trio

from tests.support.completions import token_for
from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, gateway, http
from tests.transport.rest.clients import port_of, problem, rest
from warren.base.errors import InvalidParamsError, LeasedError, SessionNotFoundError, StoreError, WarrenError
from warren.calls.turns import CompleteRequest
from warren.conversation.completion import FORGED

TOKEN: Final = token_for("s1", tenant="acme")
CREDENTIAL: Final = "x" * 40
"""The token of the gateway's clients, which nobody here has."""


def failing(error: WarrenError) -> Callable[[FakeService, Any], Awaitable[object]]:
    """Return an answer of the fake that is an error."""

    async def answer(_service: FakeService, _call: object) -> object:
        await trio.lowlevel.checkpoint()
        raise error

    return answer


async def test_the_token_is_enough() -> None:
    """No other credential is asked for, and the call is one of the token's tenant, which may do nothing else."""
    service = FakeService()
    async with rest(service, token=CREDENTIAL) as client:
        body = {"result": {"state": "passed"}, "is_error": True}
        response = await client.post(f"/complete/{TOKEN}", json=body)
        assert (response.status_code, response.json()) == (200, {"completed": True})
        assert (await client.post("/complete", json={"token": TOKEN, **body})).status_code == 401
        assert (await client.get("/sessions/s1")).status_code == 401
    assert service.calls == [("complete_tool", {"token": TOKEN, **body})]
    (bearer,) = [each for each in service.principals if each.tenant == "acme"]
    assert bearer.scopes == {"session:write"}


async def test_a_prefix_stands_before_it() -> None:
    """A gateway below a path takes results there."""
    async with rest(FakeService(), token=CREDENTIAL, public_url="https://example.org/warren") as client:
        assert (await client.post(f"/warren/complete/{TOKEN}", json={"result": 1})).status_code == 200


@pytest.mark.parametrize(
    "token", ["abcdef", TOKEN[:-1] + "~", TOKEN[:-2] + "AA", token_for("s1").replace(".", ".A")[:-1]]
)
async def test_strangers_hear_that_nothing_is_there(token: str) -> None:
    """Whatever their token looks like, the answer is the same, nothing is looked up, and the audit has it."""
    service = FakeService()
    async with rest(service, token=CREDENTIAL) as client:
        response = await client.post(f"/complete/{token}", content=b"no JSON at all")
        assert problem(response) == (404, "INVALID_PARAMS", "$.path")
        assert token not in response.text
    assert service.calls == []
    (entry,) = service.entries
    assert (entry.action, entry.outcome, entry.tenant, entry.who) == ("complete", "refused", None, "")
    assert entry.details == {"reason": "bad_token"}


async def test_the_body_of_a_stranger_is_not_read() -> None:
    """The answer is there before ten gigabytes are: the connection is closed behind it."""
    async with gateway(FakeService()) as port:
        head = (
            f"POST /complete/abc HTTP/1.1\nHost: {HOST}\nContent-Type: application/json\nContent-Length: {10**10}\n\n"
        )
        status, headers, _ = await http(port, head)
        assert (status, headers["connection"]) == (404, "close")


async def test_the_body_of_a_holder_is_bounded() -> None:
    """Like that of any message, whether it says its length or not."""
    service = FakeService()
    async with rest(service, max_message_bytes=100_000) as client:
        head = f"POST /complete/{TOKEN} HTTP/1.1\nHost: {HOST}\nContent-Type: application/json\n"
        assert (await http(port_of(client), f"{head}Content-Length: {10**10}\n\n"))[0] == 413
        piece = f"2710\n{' ' * 10_000}\n"
        assert (await http(port_of(client), f"{head}Transfer-Encoding: chunked\n\n{piece * 100}"))[0] == 413
        assert (await client.get("/health")).status_code == 200
    assert service.called("complete_tool") == []


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, "$.result"),
        (b"{}", 422, "$.result"),
        (b"[1]", 422, "$"),
        (b"{", 400, "$"),
        (b'{"result": NaN}', 400, "$"),
        (b'{"result": 1, "is_error": "yes"}', 422, "$.is_error"),
        (b'{"result": 1, "tokem": "x"}', 422, "$.tokem"),
        (b'{"result": 1, "token": "x"}', 422, "$.token"),
    ],
)
async def test_a_bad_body_is_refused_with_its_field(body: bytes, status: int, field: str) -> None:
    """The holder of a token reads what is wrong with the result."""
    service = FakeService()
    async with rest(service) as client:
        headers = {"content-type": "application/json"}
        response = await client.post(f"/complete/{TOKEN}", content=body, headers=headers)
        assert problem(response) == (status, "INVALID_PARAMS", field)
    assert service.calls == []


@pytest.mark.parametrize("result", [None, "", "done", 1.5, True, [1, None], {"a": {"b": []}}])
async def test_any_json_is_a_result(result: object) -> None:
    """A text, null, and whatever else JSON has."""
    service = FakeService()
    async with rest(service) as client:
        assert (await client.post(f"/complete/{TOKEN}", json={"result": result})).status_code == 200
    assert service.called("complete_tool") == [{"token": TOKEN, "result": result, "is_error": False}]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InvalidParamsError.at("$.token", "has expired, at 2026"), 410, "$.token: has expired, at 2026"),
        (SessionNotFoundError("no session s1", session_id="s1"), 410, "$.token: the call waits for no result any more"),
        (InvalidParamsError.at("$.result", "is too long"), 422, "$.result: is too long"),
        (LeasedError("node berta has it", session_id="s1"), 503, "the result cannot be taken now: send it again"),
        (StoreError("disk /x is full", cause="disk_full"), 503, "the result cannot be taken now: send it again"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, WarrenError) else None,
)
async def test_a_refusal_says_what_to_do_and_no_more(error: WarrenError, status: int, text: str) -> None:
    """The token is used up, the result is bad, or it is to be sent again: nothing of sessions, nodes and disks."""
    service = FakeService(answers={CompleteRequest: failing(error)})
    async with rest(service) as client:
        response = await client.post(f"/complete/{TOKEN}", json={"result": 1})
    shown = response.json()
    assert (response.status_code, shown["message"]) == (status, text)
    assert (status == 503) == ("retry-after" in response.headers) == shown["retryable"]
    assert not any(word in response.text for word in ("s1", "berta", "disk"))


async def test_a_bug_shows_and_logs_no_token(caplog: pytest.LogCaptureFixture) -> None:
    """The path of the request, which other logs have, is the credential."""
    service = FakeService(answers={CompleteRequest: failing(ZeroDivisionError())})  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG):
        async with rest(service) as client:
            response = await client.post(f"/complete/{TOKEN}", json={"result": 1})
    assert (response.status_code, response.json()["code"]) == (500, "AGENT_ERROR")
    ours = [record for record in caplog.records if record.name.startswith("warren")]
    assert any(record.exc_info is not None for record in ours)
    assert not any(TOKEN in record.getMessage() for record in ours)


async def test_only_post_is_there() -> None:
    """A link that somebody opens gives no result."""
    async with rest(FakeService()) as client:
        response = await client.get(f"/complete/{TOKEN}")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_a_forged_token_is_an_error_of_the_parameter_for_clients() -> None:
    """Who is known to the gateway is told which parameter is wrong, and that the token may have another signature."""
    service = FakeService(answers={CompleteRequest: failing(InvalidParamsError.at("$.token", FORGED))})
    async with rest(service) as client:
        response = await client.post("/complete", json={"token": TOKEN, "result": 1})
        assert problem(response) == (409, "INVALID_PARAMS", "$.token")
        assert FORGED in json.loads(response.content)["message"]
        response = await client.post("/complete", json={"token": "x", "result": 1})
        assert problem(response) == (422, "INVALID_PARAMS", "$.token")
